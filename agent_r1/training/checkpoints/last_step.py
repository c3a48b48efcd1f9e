"""The checkpoint of the last finished step, whatever happens during the next one.

A step in progress changes more than the weights: counters of skipped updates, the balance of process rewards, which
groups were started. These are recorded whenever a step is finished. The weights are too large to copy: an update that
fails after it has changed some of them loses the steps since the last checkpoint.

A run with `trainer.keep_checkpoints=0` saves nothing here either: a disk that has no room for checkpoints has none when
a run fails, and a run that needs none should stop at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from agent_r1.config import Config
from agent_r1.console import RunConsole
from agent_r1.errors import AgentR1Error
from agent_r1.learner import Learner
from agent_r1.learner.sharded import Ranks
from agent_r1.rewards import ProcessBalance
from agent_r1.rollout import Collector
from agent_r1.runs import RunFolder, list_checkpoints
from agent_r1.training.checkpoints.files import RUN_ID, save_checkpoint


@dataclass
class Progress:
    """How far the training loop is."""

    step: int = 0
    train_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Snapshot:
    """The state after the last finished step."""

    learner: Mapping[str, Any]
    """Its tensors are the learner's own, not copies."""
    versions: tuple[int, ...]
    """How often each of these tensors had been changed in place."""
    process: Mapping[str, float]
    collector: Mapping[str, Any]


class LastStep:
    """Saves the last finished step of a run."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        learner: Learner,
        process: ProcessBalance,
        collector: Collector,
        ranks: Ranks | None = None,
    ) -> None:
        self.progress = Progress()
        self._config = config
        self._folder = folder
        self._learner = learner
        self._process = process
        self._collector = collector
        self._ranks = ranks or Ranks()
        self._snapshot = self._now()

    @property
    def may_save(self) -> bool:
        """Whether the run writes checkpoints."""
        return self._config.trainer.keep_checkpoints > 0

    def note(self) -> None:
        """A step is finished, or a checkpoint was loaded."""
        self._snapshot = self._now()

    def _now(self) -> _Snapshot:
        state = self._learner.state_dict()
        return _Snapshot(
            learner=state,
            versions=tuple(tensor._version for tensor in _tensors(state)),
            process=self._process.state_dict(),
            collector=self._collector.state_dict(self.progress.step),
        )

    def save(self) -> None:
        """Write the checkpoint of the last step."""
        self._ranks.agree_now(self._folder.ensure_in_place)
        state: dict[str, Any] = {
            RUN_ID: self._folder.read_run_id(),
            "learner": self._snapshot.learner,
            "process_balance": self._snapshot.process,
            "collector": self._snapshot.collector,
            "train_seconds": self.progress.train_seconds,
        }
        keep = self._config.trainer.keep_checkpoints
        save_checkpoint(self._folder.checkpoints, step=self.progress.step, state=state, keep=keep, ranks=self._ranks)

    def save_if_missing(self, console: RunConsole, *, is_error: bool) -> None:
        """Write its checkpoint if there is none, when a run ends early. A failure here is a warning: the error to
        report is the one that ended the run. Weights that an unfinished update has changed belong to no step and are
        not saved."""
        step = self.progress.step
        if step <= self._ranks.from_first(self.last_saved()):
            return
        if not self.may_save:
            if is_error:
                console.info(self.outcome())
            return
        if not self._is_intact():
            console.warn(f"step {step} cannot be saved: the update after it failed when it had changed some weights")
            return
        try:
            self.save()
        except (AgentR1Error, RuntimeError) as error:
            console.warn(f"step {step} could not be saved: {error}")
            return
        if is_error:
            console.info(f"a checkpoint of step {step} was saved: {self._how_to_resume()}")

    def _is_intact(self) -> bool:
        """Whether the tensors of the snapshot are unchanged since the last finished step.

        Tensors that were replaced by others are unchanged. Fused optimizers change weights without raising the tensors'
        versions, but count their steps in tensors, which a first step adds.
        """
        versions = tuple(tensor._version for tensor in _tensors(self._snapshot.learner))
        num_now = sum(1 for _ in _tensors(self._learner.state_dict()))
        return versions == self._snapshot.versions and num_now == len(versions)

    def last_saved(self) -> int:
        """The step of the newest checkpoint; 0 when there is none."""
        return max((step for step, _ in list_checkpoints(self._folder.checkpoints)), default=0)

    def outcome(self) -> str:
        """What a run that ends early leaves, for the user."""
        saved = self.last_saved()
        if not saved and not self.may_save:
            model = f"; the trained model is in {self._folder.model}" if self._folder.has_model else ""
            return (
                "No checkpoint was written (trainer.keep_checkpoints=0), so nothing can be resumed: the same command "
                f"starts over{model}"
            )
        if not saved:
            return "There is no checkpoint: the same command starts over"
        return f"The last checkpoint is that of step {saved}: {self._how_to_resume()}"

    def _how_to_resume(self) -> str:
        changed = " with run.resume=auto" if self._config.run.resume == "never" else ""
        return f"the same command{changed} resumes from there ({self._folder.path})"


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield getattr(state, "_local_tensor", state)  # this rank's part of a sharded tensor
    elif isinstance(state, Mapping):
        for entry in state.values():
            yield from _tensors(entry)
    elif isinstance(state, list | tuple):
        for entry in state:
            yield from _tensors(entry)
