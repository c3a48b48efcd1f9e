"""`replay`: the recorded rollouts of a run, scored again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_r1.api.arguments import Reward, reward_settings
from agent_r1.config import Overrides, override_texts
from agent_r1.console import RunConsole
from agent_r1.errors import ConfigError
from agent_r1.event_loop import callable_in_event_loop

if TYPE_CHECKING:
    from agent_r1.training.replay import Replay


@callable_in_event_loop
def replay(
    run: str | Path,
    *,
    reward: Reward | None = None,
    overrides: Overrides = (),
    steps: Sequence[int] = (),
    train: bool = False,
    model: str | Path | None = None,
    show: int = 0,
    quiet: bool = False,
) -> Replay:
    """Score the recorded rollouts of a run with another reward or estimator, and say what would have changed.

    Nothing is rolled out, and the run's folder is only read.

    Args:
        run: The folder of the run.
        reward: Another reward, as for `train`; without one, the run's own as its code is now.
        overrides: Changes of the run's configuration: keys of `reward`, `algorithm`, `optimizer` and `trainer`, for
            example `["algorithm=rloo"]`.
        steps: Training steps to replay; without any, all that were recorded.
        train: Also make one update from the last of them, with the weights that sampled it, and save nothing.
        model: With `train`, other weights to start from.
        show: Print this many of the trajectories that change most.
        quiet: Print nothing.
    """
    from agent_r1.training.replay import print_replay, replay_run

    if isinstance(steps, str) or not isinstance(steps, Iterable) or not all(type(step) is int for step in steps):
        raise ConfigError(f"steps must be a list of numbers of training steps, such as [1, 20], found {steps!r:.80}")
    texts = override_texts(overrides)
    if reward is not None:
        texts += override_texts(reward_settings(reward))
    console = RunConsole(quiet=quiet)
    weights = None if model is None else str(model)
    result = replay_run(Path(run), texts, console, steps=steps, train=train, model=weights)
    print_replay(result, console, show=show)
    return result
