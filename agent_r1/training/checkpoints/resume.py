"""Resuming a run: its checkpoint is checked and loaded before anything in its folder changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent_r1.errors import AgentR1Error, CheckpointError
from agent_r1.learner import Learner
from agent_r1.learner.sharded import Ranks
from agent_r1.runs import RunFolder, newest_readable
from agent_r1.training.checkpoints.files import Checkpoint, load_checkpoint

_PARTS = {"learner", "process_balance", "collector", "train_seconds"}


def resume_run(
    folder: RunFolder, learner: Learner, say: Callable[[str], None], ranks: Ranks | None = None
) -> Checkpoint:
    """Load the newest undamaged checkpoint into the learner and rewind the folder to its step. A checkpoint that does
    not fit, and logs that cannot be read, are one error, and the folder stays as it was."""
    ranks = ranks or Ranks()
    ranks.by_first(lambda: len(folder.read_metrics()))
    step, path = ranks.by_first(lambda: newest_readable(folder.checkpoints, say))
    make_shard = getattr(learner, "empty_shard", None)
    checkpoint = ranks.agree_now(lambda: load_checkpoint(step, path, make_shard=make_shard))
    ranks.agree_now(lambda: _load(checkpoint, learner))
    ranks.by_first(lambda: folder.rewind(checkpoint.step))
    return checkpoint


def _load(checkpoint: Checkpoint, learner: Learner) -> None:
    _check_parts(checkpoint, learner)
    try:
        learner.load_state_dict(checkpoint.state["learner"])
    except AgentR1Error as error:
        raise CheckpointError(f"the checkpoint {checkpoint.path} does not fit: {error}") from error
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"the checkpoint {checkpoint.path} is of another shape than this run's model, critic or optimizer; set "
            "model, algorithm and optimizer as they were, or start a new run with run.resume=never. "
            f"{type(error).__name__}: {reason[:300]}"
        ) from error


def _check_parts(checkpoint: Checkpoint, learner: Learner) -> None:
    state = checkpoint.state
    lacking = sorted(_PARTS - state.keys()) if isinstance(state, Mapping) else sorted(_PARTS)
    if lacking:
        raise CheckpointError(
            f"{checkpoint.path} is not the checkpoint of a run of this version: it lacks {', '.join(lacking)}. Resume "
            "it with the version that wrote it, or start a new run with run.resume=never"
        )
    saved, expected = set(state["learner"]), set(learner.state_dict())
    if saved != expected:
        surplus = ", ".join(sorted(saved - expected)) or "nothing"
        missing = ", ".join(sorted(expected - saved)) or "nothing"
        raise CheckpointError(
            f"the checkpoint {checkpoint.path} was written with another algorithm or version: it has {surplus} that "
            f"this run does not use and lacks {missing}. Set algorithm as it was, or run.resume=never for a new run"
        )
