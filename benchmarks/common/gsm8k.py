"""GRPO steps on GSM8K, through `agent_r1`'s own training run: what a user's step costs.

Rows are GSM8K's own: `question`, and an `answer` that ends in `#### 72`.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.api import resolve
from agent_r1.console import RunConsole
from agent_r1.data import read_rows
from agent_r1.errors import DataError
from agent_r1.rewards import last_number
from agent_r1.training import train_run
from agent_r1.types import Episode, Task

INSTRUCTION = "\nThink step by step. End with the answer alone after ####, for example: #### 42"
HOW_TO_GET = (
    "give GSM8K with --gsm8k FILE (.jsonl, .jsonl.xz or .parquet with question and answer): train.jsonl of "
    "github.com/openai/grade-school-math, or main/train-00000-of-00001.parquet of the dataset openai/gsm8k on the hub"
)

_ANSWER = re.compile(r"####([^\n]*)")


def answer_after_mark(text: str) -> float | None:
    """The number after the last `####`, or None.

    >>> answer_after_mark("8 + 4 = 12 #### 1,012 eggs")
    1012.0
    """
    marked = _ANSWER.findall(text)
    return last_number(marked[-1]) if marked else None


def answer(task: Task, episode: Episode) -> float:
    """1 for the right number after `####`."""
    return float(answer_after_mark(episode.answer) == float(task.ground_truth))


def spread(task: Task, episode: Episode) -> float:
    """The same, and up to 0.1 that depends on the tokens alone: the members of a group hardly ever earn the same, so
    the update has to compute every trajectory of the batch."""
    total = sum(token for step in episode.steps for token in step.action_ids)
    return answer(task, episode) + 0.1 * (total % 997) / 997


REWARDS = {"answer": answer, "spread": spread}


def as_task_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A GSM8K row as a task of one step."""
    truth = answer_after_mark(str(row.get("answer", "")))
    if "question" not in row or truth is None:
        raise DataError(
            f"not a GSM8K row: it needs 'question' and an 'answer' that ends in '#### n', found {row!r:.200}"
        )
    return {
        "prompt": [{"role": "user", "content": str(row["question"]) + INSTRUCTION}],
        "agent_name": "single_step",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "data_source": "gsm8k",
    }


def read_gsm8k(path: Path, limit: int) -> list[dict[str, Any]]:
    """The first rows of the file, as tasks."""
    rows = _xz_rows(path) if path.suffix == ".xz" else read_rows(path)
    return [as_task_row(row) for row, _ in zip(rows, range(limit), strict=False)]


def _xz_rows(path: Path) -> Iterator[Any]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """How many steps of what size."""

    groups: int
    """Prompts per step."""
    members: int
    """Rollouts of each."""
    new_tokens: int
    """At most, a rollout."""
    warmup: int
    """Steps that are not counted: compilation, graphs, the first growth of memory."""
    steps: int
    """Steps that are."""

    @property
    def name(self) -> str:
        """In words."""
        return f"GSM8K {self.groups} x {self.members}, <= {self.new_tokens} new"


class _Measured(BaseException):
    """Ends the run after its last step, before anything is saved. A run that ends with an error would save."""


class _Meter(RunConsole):
    """Keeps the metrics of each step instead of printing them."""

    def __init__(self, num_steps: int) -> None:
        super().__init__(quiet=True)
        self.metrics: list[Mapping[str, float]] = []
        self._num_steps = num_steps

    def step_line(self, step: int, total: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Keep; after the last one there is nothing more to see."""
        self.metrics.append(metrics)
        if len(self.metrics) == self._num_steps:
            raise _Measured


def run_steps(
    plan: StepPlan, *, model: str, rows: Sequence[Mapping[str, Any]], reward: str, overrides: Sequence[str]
) -> dict[str, float]:
    """Median seconds of a GRPO step and of its parts: one epoch, one update, no KL, no evaluation, nothing saved."""
    total = plan.warmup + plan.steps
    meter = _Meter(total)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "gsm8k.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = [
            "algorithm=grpo",
            f"run.folder='{folder}'",
            f"rollout.groups_per_step={plan.groups}",
            f"rollout.group_size={plan.members}",
            f"rollout.max_tokens={plan.new_tokens}",
            f"rollout.concurrency={plan.groups * plan.members}",
            "optimizer.learning_rate=1e-6",
            f"trainer.steps={total}",
            "tracking.record_every=0",
        ]
        config = resolve(overrides=[*settings, *overrides], model=model, data=data, reward=REWARDS[reward])
        with contextlib.suppress(_Measured):
            train_run(config, meter)
    return _figures(meter.metrics[plan.warmup :])


def _figures(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians over steps. What is neither rollout nor update is the push of the weights."""

    def median(name: str) -> float:
        return statistics.median(metrics.get(name, 0.0) for metrics in steps)

    seconds = [metrics["time/step"] for metrics in steps]
    return {
        "seconds": statistics.median(seconds),
        "fastest_seconds": min(seconds),
        "slowest_seconds": max(seconds),
        "rollout_seconds": median("time/rollout"),
        "update_seconds": median("time/update"),
        "push_seconds": statistics.median(
            metrics["time/step"] - metrics["time/rollout"] - metrics["time/update"] for metrics in steps
        ),
        "response_tokens": median("episode/action_tokens"),
        "generated_per_second": median("perf/tokens_per_second"),
        "credited_share": median("policy/credited_trajectories"),
        "reward": median("reward/outcome"),
        "failed_rollouts": sum(metrics["error/failed_rollouts"] for metrics in steps),
    }
