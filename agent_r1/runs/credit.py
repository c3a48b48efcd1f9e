"""Write what the learner made of the trajectories of a step, and read it back (`tracking.record_credit`).

`credit/<n>.jsonl` has one JSON object per line and trajectory of `trajectories/<n>.jsonl` that was trained on:

    {"group_id": 0, "member": 1, "steps": [
      {"reward": 1.0, "return": 1.0, "num_tokens": 2, "advantages": 0.7071, "values": [], "old_logprobs": [-0.51, -1.2],
       "logprobs": [-0.49, -1.3], "entropies": [0.9, 1.1]}]}

Arrays have one number per token of the step's `action_ids`; null stands where there is none. An array whose numbers are
all equal is written as that one number. Log-probs and entropies have seven digits; all other numbers have every digit,
so that `agent-r1 replay` can reproduce them. `penalties` and `next_value` are left out where there are none. Failed and
greedy rollouts and dropped groups have no line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agent_r1.codec import write_json
from agent_r1.errors import DataError
from agent_r1.files import write_atomically
from agent_r1.types import Numbers, StepCredit, TrajectoryCredit

_ARRAYS = ("advantages", "values", "old_logprobs", "logprobs", "entropies")
_ROUNDED = ("old_logprobs", "logprobs", "entropies")


def write_credit(path: Path, credits: Iterable[TrajectoryCredit]) -> None:
    """Write the credit of a batch to one file."""
    entries = [
        {"group_id": credit.group_id, "member": credit.member, "steps": [_as_json(step) for step in credit.steps]}
        for credit in credits
    ]
    write_atomically(path, "".join(write_json(entry) + "\n" for entry in entries))


def read_credit(path: Path) -> dict[tuple[int, int], tuple[StepCredit, ...]]:
    """The credit of each trajectory's steps, by `(group_id, member)`; the tokens are those of `read_trajectories`.

    Raises `DataError` for a file that `write_credit` did not write.
    """
    credit_of: dict[tuple[int, int], tuple[StepCredit, ...]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                credit = parse_credit(line)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"line {number} of {path} is not the credit of a trajectory ({type(error).__name__}: {error}); "
                    "restore the file, or delete it to read the trajectories without it"
                ) from error
            credit_of[credit.group_id, credit.member] = credit.steps
    return credit_of


def parse_credit(line: str | bytes) -> TrajectoryCredit:
    """The credit in one line; `ValueError`, `KeyError` or `TypeError` when it is not one."""
    entry = json.loads(line)
    steps = tuple(_from_json(step) for step in entry["steps"])
    return TrajectoryCredit(group_id=int(entry["group_id"]), member=int(entry["member"]), steps=steps)


def _as_json(step: StepCredit) -> dict[str, Any]:
    return {
        "reward": step.reward,
        "return": step.observed_return,
        "num_tokens": len(step.advantages),
        **{name: _shorten(getattr(step, name), is_rounded=name in _ROUNDED) for name in _ARRAYS},
        **({"penalties": _shorten(step.penalties)} if step.penalties else {}),
        **({"next_value": step.next_value} if step.next_value is not None else {}),
    }


def _from_json(entry: Mapping[str, Any]) -> StepCredit:
    length = int(entry["num_tokens"])
    arrays = {name: _expand(entry[name], length) for name in _ARRAYS}
    arrays["penalties"] = _expand(entry.get("penalties", []), length)
    wrong = {name: len(array) for name, array in arrays.items() if len(array) not in (length, 0)}
    if wrong:
        raise ValueError(f"arrays of {wrong} numbers in a step of {length} tokens")
    return StepCredit(
        reward=_number(entry["reward"]),
        observed_return=_number(entry["return"]),
        next_value=_number(entry.get("next_value")),
        **arrays,
    )


def _shorten(numbers: Numbers, *, is_rounded: bool = False) -> list[float | None] | float | None:
    values = [_round(number) for number in numbers] if is_rounded else list(numbers)
    return values[0] if values and all(number == values[0] for number in values) else values


def _expand(entry: Any, length: int) -> Numbers:
    return tuple(map(_number, entry)) if isinstance(entry, list) else (_number(entry),) * length


def _number(value: Any) -> float | None:
    if value is not None and type(value) not in (int, float):
        raise ValueError(f"{value!r:.40} is not a number")
    return value  # type: ignore[no-any-return]


def _round(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.7g}")
