"""A replay as tables and as JSON."""

from __future__ import annotations

from typing import Any

from agent_r1.console import RunConsole
from agent_r1.training.replay.compare import AdvantageChange, Change, Example
from agent_r1.training.replay.offline import OfflineUpdate
from agent_r1.training.replay.record import in_words
from agent_r1.training.replay.replay import Replay

_NOTHING = "-"
_EXAMPLES = 5
_CHARS = 32


def print_replay(replay: Replay, console: RunConsole, *, show: int = 0) -> None:
    """Print what changes; `show` of the examples as whole conversations."""
    console.info(f"{replay.run}: {replay.trajectories} trajectories of {in_words(replay.steps)}")
    for line in replay.settings:
        console.info(f"  {line}")
    if not replay.settings:
        console.info("  the run's own configuration: only changed code, such as an edited reward, can change anything")
    for note in replay.notes:
        console.warn(note)
    _print_reproduced(replay, console)
    header = ["reward", "recorded", "replayed", "changed", "rank correlation", "within groups"]
    rows = [_change_row("outcome", replay.outcome), *(_change_row(name, part) for name, part in replay.parts.items())]
    console.rows("rewards", [header, *rows])
    console.info(f"groups whose members earn different returns: {replay.spread[0]:.1%} -> {replay.spread[1]:.1%}")
    if replay.advantages is not None:
        console.info(_advantages_in_words(replay.advantages))
    if replay.examples:
        console.rows("what changes most", [_EXAMPLE_HEADER, *map(_example_row, replay.examples[:_EXAMPLES])])
    for example in replay.examples[:show]:
        title = f"step {example.step}, {example.trajectory.task_id}: {_pair(example.reward)}"
        console.trajectory(title, example.trajectory)
    if replay.update is not None:
        _print_update(replay.update, console)


def _print_reproduced(replay: Replay, console: RunConsole) -> None:
    result = replay.reproduced
    if result is None:
        return
    if not result.differing and not result.differing_steps:
        console.info(
            f"recorded credit: {result.tokens:,} advantages and {result.steps:,} rewards of steps are reproduced "
            "exactly"
        )
        return
    console.warn(
        f"recorded credit: {result.differing:,} of {result.tokens:,} advantages and {result.differing_steps:,} "
        f"of {result.steps:,} rewards of steps differ from those that follow from the recorded rewards, by at most "
        f"{result.largest:.3g}; another version or other hardware wrote them"
    )


def _change_row(name: str, change: Change) -> list[str]:
    return [
        name,
        _number(change.before),
        _number(change.after),
        f"{change.changed:.1%}",
        _number(change.rank_correlation),
        _number(change.within_groups),
    ]


def _advantages_in_words(change: AdvantageChange) -> str:
    if change.identical:
        return f"advantages: all of {change.trajectories} trajectories with credit are identical"
    return (
        f"advantages: {change.flipped:.1%} of {change.trajectories} trajectories with credit change their sign "
        f"({change.to_negative} to negative, {change.to_positive} to positive), {change.lost} lose their credit, "
        f"{change.gained} gain some; {change.flipped_tokens:.1%} of tokens change their sign; rank correlation "
        f"{_number(change.rank_correlation)}"
    )


_EXAMPLE_HEADER = ["step", "task", "member", "answer", "ground truth", "reward", "advantage"]


def _example_row(example: Example) -> list[str]:
    trajectory = example.trajectory
    return [
        str(example.step),
        _short(trajectory.task_id),
        str(trajectory.member),
        _short(trajectory.episode.final_text),
        _short(example.ground_truth),
        _pair(example.reward),
        _pair(example.advantage),
    ]


def _print_update(update: OfflineUpdate, console: RunConsole) -> None:
    console.info(f"one offline update from step {update.step}, starting from {update.weights}; nothing is saved")
    rows = [
        [name, _number(update.recorded.get(name)), _number(value)]
        for name, value in sorted(
            update.metrics.items(), key=lambda entry: (not entry[0].startswith("loss/"), entry[0])
        )
    ]
    kl = [
        ("KL(sampling policy, before)", update.kl_before),
        ("KL(sampling policy, after)", update.kl_after),
        ("KL(before, after)", update.kl_update),
        ("relative change of the weights", update.moved),
    ]
    rows += [[name, _NOTHING, _number(value)] for name, value in kl]
    console.rows("offline update", [["metric", "recorded", "replayed"], *rows])


def _number(number: float | None) -> str:
    return _NOTHING if number is None else f"{number:.4g}"


def _pair(numbers: tuple[float | None, float | None]) -> str:
    return f"{_number(numbers[0])} -> {_number(numbers[1])}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CHARS else f"{line[: _CHARS - 3]}..."


def replay_as_json(replay: Replay) -> dict[str, Any]:
    """The replay for `--json`: everything that is printed, and every example."""
    update = replay.update
    return {
        "run": str(replay.run),
        "steps": list(replay.steps),
        "settings": list(replay.settings),
        "notes": list(replay.notes),
        "trajectories": replay.trajectories,
        "rewards": {"outcome": _fields(replay.outcome), **{name: _fields(part) for name, part in replay.parts.items()}},
        "groups_with_spread": list(replay.spread),
        "advantages": None if replay.advantages is None else _fields(replay.advantages),
        "reproduced": None if replay.reproduced is None else _fields(replay.reproduced),
        "examples": [
            {
                "step": example.step,
                "task_id": example.trajectory.task_id,
                "group_id": example.trajectory.group_id,
                "member": example.trajectory.member,
                "answer": example.trajectory.episode.final_text,
                "ground_truth": example.ground_truth,
                "reward": list(example.reward),
                "advantage": list(example.advantage),
            }
            for example in replay.examples
        ],
        "update": None if update is None else {**_fields(update), **{k: dict(getattr(update, k)) for k in _MAPPINGS}},
    }


_MAPPINGS = ("metrics", "recorded")


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
