"""The model of recipes that train at once: made from their demonstrations, the same for every run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_r1.config import Config, load_config
from agent_r1.errors import DataError
from agent_r1.training.tiny_start import make_warm_start
from tests.helpers.tiny_runs import write_tasks

MODEL = "agent_r1.training.tiny_start:make_warm_start"


def warm_config(folder: Path, *overrides: str) -> Config:
    folder.mkdir()
    turns = [[{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": n}] for n in "123"]
    rows = [{"messages": messages} for messages in turns]
    (folder / "demonstrations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_config(
        None,
        [
            f"model.path={folder}/warm/hf",
            f"model.prepare={MODEL}",
            f"data.train=[{write_tasks(folder / 'tasks.jsonl')}]",
            f"sft.data=[{folder}/demonstrations.jsonl]",
            "data.agent_name=single_step",
            "sft.steps=2",
            "sft.batch_size=2",
            *overrides,
        ],
    )


def weights(config: Config) -> bytes:
    return (Path(config.model.path) / "model.safetensors").read_bytes()


def test_demonstrations_without_tools_make_a_model(tmp_path: Path) -> None:
    config = warm_config(tmp_path / "a")
    make_warm_start(config)
    assert weights(config) != (tmp_path / "a" / "warm_untrained" / "model.safetensors").read_bytes()


@pytest.mark.whole
def test_the_warm_start_follows_from_the_demonstrations_and_not_from_the_run(tmp_path: Path) -> None:
    one = warm_config(tmp_path / "a")
    other = warm_config(tmp_path / "b", "trainer.seed=5", "algorithm=ppo", "optimizer.gradient_clip=0.1")
    make_warm_start(one)
    make_warm_start(other)
    assert weights(one) == weights(other)


def test_missing_demonstrations_are_named(tmp_path: Path) -> None:
    config = warm_config(tmp_path / "a", "sft.data=[nowhere.jsonl]")
    with pytest.raises(DataError, match=r"there is no nowhere\.jsonl.*model\.path"):
        make_warm_start(config)


def test_a_row_that_is_no_demonstration_is_shown(tmp_path: Path) -> None:
    config = warm_config(tmp_path / "a", f"sft.data=[{tmp_path}/a/tasks.jsonl]")
    with pytest.raises(DataError, match="needs 'messages'"):
        make_warm_start(config)
