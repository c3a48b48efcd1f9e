"""The README's own example, word for word."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.helpers.forks import run_python

ROOT = Path(__file__).parents[2]


def python_example() -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


@pytest.mark.whole
def test_the_example_trains_a_model_with_its_own_tool_reward_and_data(tmp_path: Path, model_folder: Path) -> None:
    warm = tmp_path / "runs" / "quickstart_warm_start"
    warm.mkdir(parents=True)
    (warm / "hf").symlink_to(model_folder)
    # A random model babbles up to every limit; two steps and short answers prove as much as ten.
    shortened = python_example().replace('"trainer.steps": 10', '"trainer.steps": 2, "rollout.max_tokens": 16')
    (tmp_path / "example.py").write_text(shortened)
    result = run_python("example.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "runs" / "my_shop" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert (tmp_path / "runs" / "my_shop" / "hf" / "model.safetensors").is_file()
    assert "step 2/2" in result.stdout


def test_the_example_is_short() -> None:
    lines = [line for line in python_example().splitlines() if line.strip()]
    assert len(lines) <= 11
