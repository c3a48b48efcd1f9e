"""`model=tiny`: any recipe with demonstrations on a laptop, with a model that is made for them on the spot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_r1.chat import read_context_length
from agent_r1.config import load_config
from agent_r1.errors import ConfigError
from agent_r1.training.tiny_start import make_untrained
from tests.helpers import commands
from tests.helpers.recipe_runs import ROOT

RECIPES = ROOT / "recipes"
SHORT = (
    *("sft.steps=2", "sft.batch_size=2", "trainer.steps=1", "rollout.groups_per_step=2", "rollout.group_size=2"),
    *("rollout.max_tokens=8", "eval.max_tasks=2"),
)


@pytest.mark.whole
def test_a_recipe_for_a_gpu_trains_with_a_tiny_model_that_has_room_for_its_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forecasting").symlink_to(RECIPES / "forecasting" / "sample")
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path))
    commands.train(str(RECIPES / "forecasting"), "model=tiny", f"run.folder={tmp_path}/runs", *SHORT, quiet=True)
    warm = tmp_path / "runs" / "forecasting_warm_start"
    untrained = warm.with_name(f"{warm.name}_untrained") / "hf"
    assert read_context_length(untrained) == 1536 == load_config(RECIPES / "forecasting").rollout.context_length
    made, started = (folder / "model.safetensors" for folder in (untrained, warm / "hf"))
    assert made.read_bytes() != started.read_bytes()
    summary = json.loads((tmp_path / "runs" / "forecasting" / "summary.json").read_text())
    assert summary["steps"] == 1


def test_without_a_warm_start_random_weights_are_refused(tmp_path: Path) -> None:
    tiny = ["model=tiny", "sft.folder=null", f"run.folder={tmp_path}"]
    with pytest.raises(ConfigError, match=r"model\.path=.*_untrained/hf is made of sft\.folder, which is null"):
        load_config(RECIPES / "forecasting", tiny)
    config = load_config(RECIPES / "forecasting", [*tiny, f"model.path={tmp_path}/made"])
    with pytest.raises(ConfigError, match=r"model=tiny has random weights and needs a warm start: the recipe sets no"):
        make_untrained(config)
    assert not list(tmp_path.iterdir())
