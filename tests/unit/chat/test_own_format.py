"""A tool format in a recipe's folder: one file, named in the configuration."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent_r1.chat import tool_formats
from agent_r1.config import load_config
from agent_r1.registry import recipe_folder
from agent_r1.training import check_model, make_plan

PAGE = (Path(__file__).parents[3] / "docs" / "tool_formats.md").read_text()
[CODE] = re.findall(r"```python\n(.*?)```", PAGE.partition("## Your own format")[2], re.DOTALL)
BASE = """
defaults: [agent_r1, {algorithm: grpo}, _self_]
imports: [bang_format]
model: {path: PATH, tool_format: FORMAT}
data: {train: [TASKS]}
reward: {function: exact_match}
env: {name: tool, tools: [calculate]}
rollout: {max_tokens: 8}
"""


@pytest.mark.parametrize("name", ["bang", "bang_format:BangFormat"])
def test_a_format_of_a_recipe_parses_what_the_policy_writes(
    name: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_formats, "_entries", dict(tool_formats._entries))
    (tmp_path / "bang_format.py").write_text(CODE)
    tasks = tmp_path / "tasks.jsonl"
    row = {"prompt": [{"role": "user", "content": "1 + 1?"}], "reward_model": {"ground_truth": "2"}}
    tasks.write_text(json.dumps(row) + "\n")
    base = BASE.replace("PATH", str(model_folder)).replace("FORMAT", f"'{name}'").replace("TASKS", str(tasks))
    (tmp_path / "base.yaml").write_text(base)
    with recipe_folder(tmp_path):
        renderer = check_model(make_plan(load_config(tmp_path))).renderer
    action = renderer.parse(renderer.encode("Hm. !calculate"), truncated=False)
    assert ([call.name for call in action.tool_calls], action.content) == (["calculate"], "Hm.")
