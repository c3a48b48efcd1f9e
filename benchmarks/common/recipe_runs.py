"""Runs of a recipe that share a folder: its data, one warm start with its evaluation, and training from there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent_r1.errors import DataError
from agent_r1.runs import RunFolder, is_locked
from benchmarks.common.processes import ROOT

Settings = Mapping[str, str]
"""Keys of the configuration with their values, as on a command line."""

NO_WASTE: Settings = MappingProxyType(
    {
        "eval.before": "false",  # the warm start is evaluated once, for all runs
        "eval.every": "0",
        "trainer.keep_checkpoints": "0",  # an interrupted run begins again
        "tracking.record_every": "0",
    }
)
"""Settings that change nothing of what is learned."""

_SMOKE: Settings = MappingProxyType(
    {
        "rollout.groups_per_step": "2",
        "rollout.group_size": "2",
        "rollout.max_steps": "2",
        "rollout.max_tokens": "8",
        "trainer.steps": "1",
        "sft.steps": "2",
        "sft.batch_size": "2",
        "eval.max_tasks": "4",
        "engine.kv_memory": "20000",
        "rollout.concurrency": "8",
        "rollout.context_length": "512",
        "trainer.device": "cpu",
        "trainer.compile": "false",
        "model.prepare": "agent_r1.training.tiny_start:make_warm_start",
    }
)
"""A tiny model learns nothing, quickly."""
_UNTRAINED = "agent_r1.training.tiny_start:make_untrained"
TINY_MODEL = "${run.folder}/tiny/hf"
"""Where the tiny model is made."""


class RecipeRuns:
    """The runs of one recipe with one model, in a folder of their own."""

    def __init__(self, work: Path, recipe: str, model: str | None, label: str, *, makes_model: bool = False) -> None:
        """Without a `model` they start from the recipe's. `makes_model`: the recipe makes the model itself, and has it
        where others have their warm start."""
        self.recipe, self.model, self.label, self.makes_model = recipe, model, label, makes_model
        self.folder = work / label / recipe
        self.warm_start = self.folder / f"{recipe}_warm_start"
        self.evaluation = self.folder / "warm_start.json"

    def log(self, name: str) -> Path:
        """Where the output of a process goes."""
        return self.folder / "logs" / f"{name}.log"

    def eval_command(self, file: Path, settings: Settings, *options: str) -> list[str]:
        """Evaluates a model of the recipe into a file."""
        given = {**settings, "run.folder": str(self.folder), **self._model_setting()}
        return ["eval", str(ROOT / "recipes" / self.recipe), "--json", str(file), *options, *overrides(given)]

    def data_command(self, base: Settings) -> list[str]:
        """Makes the data, and looks for no model."""
        to_be_made = {"model.prepare": _UNTRAINED, "model.path": str(self.folder / "untrained" / "hf")}
        given = {**base, "run.folder": str(self.folder), **to_be_made}
        return ["train", str(ROOT / "recipes" / self.recipe), "--dry-run", *overrides(given)]

    def prepare_command(self, base: Settings) -> list[str]:
        """Makes the data and the warm start, and evaluates it."""
        place = {} if self.makes_model else {"sft.folder": str(self.warm_start)}
        return self.eval_command(self.evaluation, {**base, **place})

    def own_episodes(self, settings: Settings, *options: str) -> Path:
        """The file for what the untrained model solves, sampled in this way: other settings have another file."""
        text = json.dumps([self.model, *options, *sorted(overrides(settings))])
        return self.folder / f"own_episodes_{hashlib.sha256(text.encode()).hexdigest()[:8]}.jsonl"

    def demonstrate_command(self, settings: Settings, *options: str) -> list[str]:
        """Makes demonstrations of what the untrained model solves."""
        given = {**settings, "run.folder": str(self.folder), **self._model_setting()}
        recipe, file = str(ROOT / "recipes" / self.recipe), str(self.own_episodes(settings, *options))
        return ["demonstrate", recipe, "--out", file, *options, *overrides(given)]

    def _model_setting(self) -> dict[str, str]:
        return {} if self.model is None else {"model.path": self.model}

    def train_command(self, name: str, seed: int, settings: Settings) -> list[str]:
        """Trains one run from the warm start."""
        return [
            *("train", str(ROOT / "recipes" / self.recipe)),
            *overrides(
                {
                    **settings,
                    **NO_WASTE,
                    "run.folder": str(self.folder),
                    "run.name": name,
                    "run.resume": "never",
                    "trainer.seed": str(seed),
                    "model.path": str(RunFolder(self.warm_start).model),
                    "sft.folder": "null",
                }
            ),
        ]

    def read_evaluation(self, base: Settings) -> dict[str, Any] | None:
        """The evaluation of the warm start that this machine has; None when there is none, or one with other
        settings."""
        try:
            found: dict[str, Any] = json.loads(self.evaluation.read_text(encoding="utf-8"))
            settings = dict(text.split("=", 1) for text in found["overrides"])
        except (OSError, ValueError, KeyError):
            return None
        expected = {**base, **self._model_setting()}
        is_other = any(settings.get(key) != value for key, value in expected.items())
        return None if is_other or not self.weights() else found

    def weights(self) -> list[Path]:
        """The files with the weights of the warm start."""
        return sorted(RunFolder(self.warm_start).model.glob("*.safetensors"))

    def forget_start(self) -> None:
        """Forget the evaluation of a warm start before another is made."""
        self.evaluation.unlink(missing_ok=True)

    def clear(self, name: str) -> None:
        """Remove what an interrupted run has left; `DataError` while a process is still writing it."""
        folder = self.folder / name
        if is_locked(folder):
            raise DataError(f"another process is still working in {folder}; wait for it, or end it")
        shutil.rmtree(folder, ignore_errors=True)


def overrides(settings: Settings) -> list[str]:
    """Settings as arguments of a command."""
    return [f"{key}={value}" for key, value in settings.items()]


def smoke_settings(work: Path, samples: Mapping[str, Path]) -> dict[str, str]:
    """Settings of a tiny model with few, short episodes on samples of data: where each of the data sets has one."""
    data = work / "samples"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    for name, sample in samples.items():
        (data / name).symlink_to(sample)
    os.environ["AGENT_R1_DATA"] = str(data)
    return dict(_SMOKE)
