"""Read runs for reports: name, logged lines, configuration and result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from agent_r1.codec import read_json
from agent_r1.config import algorithm_name, check_saved, from_yaml
from agent_r1.errors import ConfigError, DataError, did_you_mean
from agent_r1.metric_names import EVAL_GREEDY, PEAK_GPU_GB, SFT_LOSS, STEP_SECONDS
from agent_r1.runs.evaluations import OWN_SETTINGS, EvaluationPair, Settings, read_evaluations
from agent_r1.runs.folder import RunFolder
from agent_r1.runs.model_names import model_name


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run, finished or not."""

    label: str
    """Its folder's name, or the whole path where two runs share the name."""
    lines: Sequence[Mapping[str, float]]
    """The lines it logged, in order; each has its `step`."""
    config_text: str
    """Its config.yaml; "" when there is none."""
    summary: Mapping[str, Any]
    """Its summary.json; empty while it is unfinished."""
    splits: Mapping[str, EvaluationPair] = field(default_factory=dict)
    """The splits whose tasks it recorded one by one, before and after training."""
    settings: Settings = OWN_SETTINGS
    """What these evaluations changed in the run's configuration."""
    changed: Mapping[Settings, Mapping[str, EvaluationPair]] = field(default_factory=dict)
    """Its evaluations with changed settings."""

    @property
    def metric_names(self) -> set[str]:
        """The names of all metrics it logged."""
        return {key for line in self.lines for key in line} - {"step"}

    @cached_property
    def config(self) -> Any:
        """The configuration as plain keys, so that runs of an earlier schema can be read too."""
        try:
            check_saved(self.config_text)
            config = OmegaConf.create(self.config_text or "{}")
        except ConfigError as error:
            raise DataError(f"the config.yaml of the run {self.label} cannot be read: {error}") from error
        except (YAMLError, OmegaConfBaseException, RecursionError):
            config = None
        if not isinstance(config, DictConfig):
            raise DataError(f"the config.yaml of the run {self.label} is not a configuration; restore or delete it")
        return config

    @property
    def is_warm_start(self) -> bool:
        """Whether it tuned a model on demonstrations (`agent-r1 sft`)."""
        return SFT_LOSS in self.metric_names

    @property
    def total_steps(self) -> Any:
        """Steps that its configuration asks for; "?" when it does not say."""
        return self.setting("sft.steps" if self.is_warm_start else "trainer.steps")

    @property
    def steps(self) -> str:
        """Training steps done, for an unfinished run with the total: `20`, `7 of 20`."""
        done = int(max((line["step"] for line in self.lines), default=0))
        is_done = bool(self.summary) or (self.is_warm_start and done == self.total_steps)
        return str(done) if is_done else f"{done} of {self.total_steps}"

    @property
    def model(self) -> str:
        """The model it started from; for a warm start the model it was made from."""
        return model_name(str(self.summary.get("base_model") or self.setting("model.path")))

    @property
    def algorithm(self) -> str:
        """The preset of the algorithm, with what was changed in it; `sft` for a warm start."""
        if self.is_warm_start:
            return "sft"
        if "algorithm" in self.summary:
            return str(self.summary["algorithm"])
        needed = OmegaConf.masked_copy(self.config, ["model", "rollout", "algorithm"])
        try:
            return algorithm_name(from_yaml(OmegaConf.to_yaml(needed))) if "algorithm" in needed else "?"
        except ConfigError:
            return "?"

    @property
    def minutes(self) -> float:
        """Minutes of its training steps, without evaluations."""
        return sum(line.get(STEP_SECONDS, 0.0) for line in self.lines) / 60

    @property
    def peak_gpu_gb(self) -> float | None:
        """Peak GPU memory; None on a CPU."""
        return max((line[PEAK_GPU_GB] for line in self.lines if PEAK_GPU_GB in line), default=None)

    @property
    def evaluations(self) -> list[Mapping[str, float]]:
        """The lines that are evaluations."""
        return [line for line in self.lines if EVAL_GREEDY in line]

    def evaluated_with(self, settings: Settings) -> RunRecord:
        """The run with one of its `changed` evaluations instead of those that it made itself."""
        return replace(self, splits=self.changed[settings], settings=settings, changed={})

    def setting(self, key: str) -> Any:
        """A value of its configuration, by dotted key; "?" when it has none."""
        value = OmegaConf.select(self.config, key)
        return "?" if value is None else value


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """The runs in these folders, in order; a DataError names every folder that is not a run's."""
    missing = [folder for folder in folders if not RunFolder(folder).metrics.is_file()]
    if missing:
        named = ", ".join(map(str, missing))
        raise DataError(f"no metrics.jsonl in {named}: not the folder of a run. {_nearby(missing[0])}")
    names = [folder.resolve().name for folder in folders]
    return [
        read_run(folder, label=name if names.count(name) == 1 else str(folder))
        for folder, name in zip(folders, names, strict=True)
    ]


def _nearby(folder: Path) -> str:
    """Which runs could be meant: those in the folder, else those beside it, else those in `runs`."""
    for place in (folder, folder.parent, Path("runs")):
        runs = {str(path): path.name for path in sorted(place.glob("*")) if RunFolder(path).metrics.is_file()}
        if runs and place == folder:
            return f"It holds runs: {', '.join(runs)}."
        if runs:
            same = [path for path, name in runs.items() if name == folder.name]
            return f"Did you mean {same[0]}?" if same else did_you_mean(folder.name, runs.values())
    return "There are no runs beside it and none in runs/."


def read_run(folder: Path, *, label: str) -> RunRecord:
    """The run in a folder, which may not have logged anything yet."""
    run = RunFolder(folder)
    evaluations = read_evaluations(run.evaluations)
    return RunRecord(
        label=label,
        lines=run.read_metrics(),
        config_text=_text(run.config),
        summary=_summary(run),
        splits=evaluations.pop(OWN_SETTINGS, {}),
        changed=evaluations,
    )


def _summary(folder: RunFolder) -> Mapping[str, Any]:
    """Empty for an unfinished run. Unlike a run that resumes, a report needs no key of it."""
    text = _text(folder.summary)
    try:
        summary = read_json(text) if folder.summary.is_file() else {}
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        raise DataError(f"{folder.summary} is not the summary of a run; delete it, and the run counts as unfinished")
    return summary


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error
