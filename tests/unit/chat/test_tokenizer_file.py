"""A tokenizer read from its files writes what `transformers` writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_r1.chat import load_renderer, read_context_length, read_renderer
from agent_r1.chat.tokenizer_file import read_tokenizer_file
from agent_r1.errors import ChatTemplateError
from agent_r1.types import Observation

TOOLS = ({"type": "function", "function": {"name": "price", "description": "Ça coûte <5 & >3", "parameters": {}}},)
CONVERSATIONS: list[tuple[dict[str, Any], ...]] = [
    ({"role": "user", "content": "What do 2 tea cost? <|end|> naïve ✓"},),
    (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tea?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "price", "arguments": {"a": 1}}}]},
        {"role": "tool", "name": "price", "content": "4"},
    ),
]


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_prompts_are_those_of_transformers(model_folder: Path, messages: Any, tools: Any) -> None:
    light, full = read_renderer(model_folder), load_renderer(model_folder)
    assert light is not None
    observation = Observation(messages=messages, tools=tools)
    assert light.render(observation) == full.render(observation)
    assert light.stop_ids == full.stop_ids


def test_text_is_decoded_as_transformers_decodes_it(model_folder: Path) -> None:
    light, full = read_renderer(model_folder), load_renderer(model_folder)
    assert light is not None
    ids = full.encode("What do 7 honey cost? é")
    assert light.encode("What do 7 honey cost? é") == ids
    assert light.parse(ids, truncated=True) == full.parse(ids, truncated=True)


def test_the_context_length_is_that_of_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 77}}')
    assert read_context_length(tmp_path) == 77
    (tmp_path / "config.json").write_text('{"n_positions": 1024}')
    assert read_context_length(tmp_path) is None


def write_template(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)


def test_a_template_may_refuse_write_json_and_name_special_tokens(model_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    write_template(folder, "{% for m in messages %}{{ eos_token }}{{ m.content | tojson }}{% break %}{% endfor %}")
    tokenizer = read_tokenizer_file(folder)
    assert tokenizer is not None
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a<é"}]) == '<|end|>"a<é"'
    write_template(folder, "{{ raise_exception('no system prompt') }}")
    light = read_renderer(folder)
    assert light is not None
    with pytest.raises(ChatTemplateError, match="no system prompt"):
        light.render(Observation(messages=({"role": "user", "content": "hi"},)))


@pytest.mark.parametrize("change", ["generation tag", "several templates", "own code", "no file", "broken settings"])
def test_what_the_files_do_not_say_is_left_to_transformers(model_folder: Path, tmp_path: Path, change: str) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if change == "generation tag":
        write_template(folder, "{% generation %}{{ messages[0].content }}{% endgeneration %}")
    elif change == "several templates":
        (folder / "additional_chat_templates").mkdir()
    elif change == "own code":
        (folder / "tokenizer_config.json").write_text(
            json.dumps({**settings, "auto_map": {"AutoTokenizer": ["a", "b"]}})
        )
    elif change == "no file":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "tokenizer_config.json").write_text("[")
    assert read_renderer(folder) is None
