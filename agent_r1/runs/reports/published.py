"""Published results: one small JSON file per run or evaluation, from which docs/results.md is made.

`agent-r1 table RUN... --export FOLDER` writes them. A file has what tables and curves need, and no path of the machine:

    {"kind": "run", "name": "hotpotqa_grpo", "recipe": "hotpotqa", "model": "Qwen2.5-Coder-1.5B-Instruct",
     "split": "test", "algorithm": "grpo", "seed": 0, "steps": 20, "minutes": 3.8, "peak_gpu_gb": 48.9,
     "warm_start": true, "commands": ["agent-r1 train recipes/hotpotqa ...", "agent-r1 eval runs/hotpotqa_grpo ..."],
     "tasks": ["a", "b"], "sources": ["hotpotqa", "hotpotqa"],
     "before": {"solved": [0, 1], "metrics": {...}}, "after": {"solved": [1, 1], "metrics": {...}},
     "curves": {"reward/success": [[1, 0.41], [2, 0.44]]}}

An evaluation of an untrained model (`agent-r1 eval RECIPE --baseline react --json FILE`) is the same with `kind`
"evaluation", `baseline`, no `before` and no curves.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agent_r1.codec import write_json
from agent_r1.config import Config, from_yaml, load_config, override_texts, to_yaml
from agent_r1.errors import AgentR1Error, DataError
from agent_r1.files import write_atomically
from agent_r1.metric_names import eval_metric
from agent_r1.runs.evaluations import EvaluationRecord
from agent_r1.runs.folder import base_model
from agent_r1.runs.read import RunRecord
from agent_r1.runs.reports.plot import DEFAULT_KEYS, curve

_NOT_IN_COMMANDS = ("run.", "tracking.", "data.", "recipe", "model.path", "model.prepare", "sft.folder", "trainer.seed")
"""Keys that say where things are on a machine, or that a command names in another way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One published run or evaluation."""

    kind: str
    """`run`, or `evaluation` of a model that was not trained here."""
    name: str
    """The run's name; of an evaluation, what was evaluated."""
    recipe: str
    """The recipe's name."""
    model: str
    """The model at the root of it."""
    split: str
    """Where the tasks come from."""
    commands: Sequence[str]
    """What gives these figures."""
    tasks: Sequence[str]
    """The ids of the tasks."""
    sources: Sequence[str]
    """The data source of each."""
    after: Mapping[str, Any]
    """`solved`, one number per task, and all `metrics`."""
    before: Mapping[str, Any] | None = None
    """The figures before training; None for an evaluation."""
    algorithm: str = ""
    """The algorithm of a run."""
    seed: int = 0
    """Its seed."""
    steps: int = 0
    """Its training steps."""
    minutes: float = 0.0
    """Minutes of these steps."""
    peak_gpu_gb: float | None = None
    """Peak GPU memory; None on a CPU."""
    warm_start: bool = False
    """Whether the run started from a model that was tuned on demonstrations."""
    baseline: str | None = None
    """The baseline of an evaluation: `react` for the untrained model in the ReAct format."""
    title: str | None = None
    """What tables call an evaluation, where `baseline` does not say it."""
    curves: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """Logged metrics as pairs of step and value."""

    def solved(self, stage: str, source: str | None = None) -> dict[str, float]:
        """How well each task of a source (None: of all) was solved `before` or `after` training."""
        return self._record(stage).by_task(source)

    def figure(self, stage: str, name: str, source: str = "all") -> float | None:
        """One figure of an evaluation; None when it has none of that name."""
        value = self._stage(stage)["metrics"].get(eval_metric(name, source))
        return None if value is None else float(value)

    def record(self, label: str) -> RunRecord:
        """The run for plots: what it logged."""
        steps = sorted({step for points in self.curves.values() for step, _ in points})
        values = {key: {point[0]: point[1] for point in points} for key, points in self.curves.items()}
        lines = [
            {"step": step, **{key: value_at[step] for key, value_at in values.items() if step in value_at}}
            for step in steps
        ]
        return RunRecord(label=label, lines=lines, config_text="", summary={})

    def _stage(self, stage: str) -> Mapping[str, Any]:
        evaluation: Mapping[str, Any] | None = self.before if stage == "before" else self.after
        if evaluation is None:
            raise DataError(f"{self.name} was not evaluated before training")
        return evaluation

    def _record(self, stage: str) -> EvaluationRecord:
        evaluation = self._stage(stage)
        return EvaluationRecord(
            split=self.split,
            model=self.model,
            step=0,
            tasks=self.tasks,
            sources=self.sources,
            solved=evaluation["solved"],
            metrics=evaluation["metrics"],
            intervals={},
        )


def publish_run(run: RunRecord, *, split: str = "test", model: str | None = None) -> Published:
    """What is published of a finished run that was evaluated on a split."""
    if split not in run.splits:
        raise DataError(
            f"the run {run.label} has no evaluation on {split} rows before and after training; make it with: "
            f"agent-r1 eval RUN --split {split}"
        )
    before, after = run.splits[split]
    if list(before.tasks) != list(after.tasks):
        raise DataError(f"the run {run.label} was evaluated on different {split} rows before and after training")
    config = from_yaml(run.config_text)
    recipe = Path(config.recipe).name if config.recipe else "none"
    started = str(run.summary.get("base_model") or base_model(config.model.path))
    name = model or run.model
    return Published(
        kind="run",
        name=run.label,
        recipe=recipe,
        model=name,
        split=split,
        commands=[_train_command(config, recipe, name), f"agent-r1 eval runs/{config.run.name} --split {split}"],
        tasks=list(after.tasks),
        sources=list(after.sources),
        before=_stage(before),
        after=_stage(after),
        algorithm=run.algorithm,
        seed=config.trainer.seed,
        steps=int(max((line["step"] for line in run.lines), default=0)),
        minutes=round(run.minutes, 1),
        peak_gpu_gb=None if run.peak_gpu_gb is None else round(run.peak_gpu_gb, 1),
        warm_start=started != config.model.path,
        curves={key: points for key in DEFAULT_KEYS if (points := _points(run, key))},
    )


def publish_evaluation(file: Path, *, model: str | None = None, title: str | None = None) -> Published:
    """What is published of the result of `agent-r1 eval --json`; tables call it by its `title`."""
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        overrides = [text for text in record["overrides"] if not text.startswith(("eval.split=", *_NOT_IN_COMMANDS))]
        paths = [text.partition("=")[2] for text in record["overrides"] if text.startswith("model.path=")]
        named = model or Path(str(record["model"] or (paths or ["?"])[-1])).name
        recipe = Path(str(record["recipe"])).name
        options = f" --baseline {record['baseline']}" if record["baseline"] else ""
        changes = shlex.join([*overrides, f"model.path={named}"])
        kind = record["baseline"] or re.sub(r"[^a-z0-9]+", "_", (title or "model").lower())
        return Published(
            kind="evaluation",
            name=f"{recipe}_{kind}_{named}",
            recipe=recipe,
            model=named,
            split=record["split"],
            commands=[f"agent-r1 eval recipes/{recipe}{options} --split {record['split']} {changes}"],
            tasks=record["tasks"],
            sources=record["sources"],
            after={
                "solved": [_short(value) for value in record["solved"]],
                "metrics": _round_metrics(record["metrics"]),
            },
            baseline=record["baseline"],
            title=title,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file} is not a result of `agent-r1 eval --json` ({type(error).__name__}: {error})"
        ) from error


def write_published(folder: Path, published: Published) -> Path:
    """Write one file, named after the run."""
    file = folder / f"{published.name}.json"
    plain = {name: getattr(published, name) for name in Published.__slots__}
    text = ",\n ".join(f"{write_json(name)}: {write_json(value)}" for name, value in plain.items())
    write_atomically(file, f"{{{text}}}\n")
    return file


def read_published(folder: Path) -> list[Published]:
    """Every published result of a folder, in the order of their names; `DataError` names a file that is none."""
    return [_read(file) for file in sorted(folder.glob("*.json"))]


def _read(file: Path) -> Published:
    try:
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        published = Published(**fields)
        for stage in ("after", *(["before"] if published.kind == "run" else [])):
            published.solved(stage)
            published.figure(stage, "greedy")
        published.record("")
        if published.kind not in ("run", "evaluation"):
            raise ValueError(f"kind={published.kind}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AgentR1Error) as error:
        raise DataError(
            f"{file} is not a published result ({type(error).__name__}: {error}); write it with: agent-r1 "
            f"table RUN --export {file.parent}"
        ) from error
    return published


def _train_command(config: Config, recipe: str, model: str) -> str:
    """The command that trains with a configuration, without what belongs to a machine."""
    preset = config.algorithm.preset
    words = [] if preset is None else [f"algorithm={preset}"]
    try:
        base = load_config(config.recipe, [*words, *override_texts({"run.folder": config.run.folder})])
    except AgentR1Error:  # the recipe is gone, or has changed
        base = None
    if base is not None:
        old, new = (_flat(OmegaConf.to_container(OmegaConf.create(to_yaml(side)))) for side in (base, config))
        changed = {
            key: value
            for key, value in new.items()
            if old.get(key) != value and not key.startswith(_NOT_IN_COMMANDS) and value is not None
        }
        words += override_texts({key: _without_folders(value) for key, value in changed.items()})
    named = [] if base is not None and _makes_its_model(base, config) else [f"model.path={model}"]
    words = [f"run.name={config.run.name}", *words, *named, f"trainer.seed={config.trainer.seed}"]
    return f"agent-r1 train recipes/{recipe} {shlex.join(words)}"


def _makes_its_model(recipe: Config, config: Config) -> bool:
    """Whether a run started from the model that its recipe makes, given the recipe in the run's folder."""
    return recipe.model.prepare is not None and recipe.model.path == config.model.path


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, Mapping) or not values:
        return {prefix: values}
    return {
        key: leaf
        for name, value in values.items()
        for key, leaf in _flat(value, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def _without_folders(value: Any) -> Any:
    """A value without the folders of this machine."""
    if isinstance(value, list):
        return [_without_folders(entry) for entry in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def _stage(record: EvaluationRecord) -> dict[str, Any]:
    return {"solved": [_short(value) for value in record.solved], "metrics": _round_metrics(record.metrics)}


def _points(run: RunRecord, key: str) -> list[list[float]]:
    steps, values = curve(run, key)
    return [[_short(step), float(f"{value:.4g}")] for step, value in zip(steps, values, strict=True)]


def _round_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: _short(float(f"{value:.6g}")) for name, value in sorted(metrics.items())}


def _short(value: float) -> float:
    """0 and 1 instead of 0.0 and 1.0."""
    return int(value) if float(value).is_integer() else float(value)
