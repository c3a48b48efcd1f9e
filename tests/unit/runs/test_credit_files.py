"""The files of `tracking.record_credit`: what is written is what is read."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from agent_r1.errors import DataError
from agent_r1.runs import RunFolder, read_credit, write_credit
from agent_r1.types import StepCredit, TrajectoryCredit

TWO_TOKENS = StepCredit(
    reward=0.1,
    observed_return=1.1,
    advantages=(0.5, None),
    values=(0.25, None),
    old_logprobs=(-1.0, -2.0),
    logprobs=(-0.5, None),
    entropies=(0.75, None),
)
EMPTY = StepCredit(
    reward=1.0, observed_return=1.0, advantages=(), values=(), old_logprobs=(), logprobs=(), entropies=()
)
SAME = StepCredit(
    reward=None,
    observed_return=None,
    advantages=(-0.7071068,) * 3,
    values=(),
    old_logprobs=(-1.0, -1.5, -2.0),
    logprobs=(None, None, None),
    entropies=(None, None, None),
)


def test_credit_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "credit" / "3.jsonl"
    batch = [
        TrajectoryCredit(group_id=0, member=2, steps=(TWO_TOKENS, EMPTY)),
        TrajectoryCredit(group_id=7, member=0, steps=(SAME,)),
    ]
    write_credit(path, batch)
    assert read_credit(path) == {(0, 2): (TWO_TOKENS, EMPTY), (7, 0): (SAME,)}


def test_equal_numbers_are_written_once(tmp_path: Path) -> None:
    write_credit(tmp_path / "1.jsonl", [TrajectoryCredit(group_id=0, member=0, steps=(SAME,))])
    [step] = json.loads((tmp_path / "1.jsonl").read_text())["steps"]
    assert step["advantages"] == -0.7071068
    assert step["logprobs"] is None
    assert step["old_logprobs"] == [-1.0, -1.5, -2.0]


def test_a_number_that_is_not_finite_is_read_as_none(tmp_path: Path) -> None:
    broken = StepCredit(
        reward=math.nan,
        observed_return=math.inf,
        advantages=(math.nan, 1.0),
        values=(),
        old_logprobs=(-1.0, -1.0),
        logprobs=(math.nan, math.nan),
        entropies=(0.0, 0.0),
    )
    write_credit(tmp_path / "1.jsonl", [TrajectoryCredit(group_id=0, member=0, steps=(broken,))])
    [step] = read_credit(tmp_path / "1.jsonl")[0, 0]
    assert (step.reward, step.observed_return, step.advantages) == (None, None, (None, 1.0))
    assert step.ratios == (None, None)


def test_ratio_advantage_and_value_follow_from_the_arrays() -> None:
    assert TWO_TOKENS.ratios == (pytest.approx(math.exp(0.5)), None)
    assert (TWO_TOKENS.advantage, TWO_TOKENS.value) == (0.5, 0.25)
    assert (EMPTY.advantage, EMPTY.value, EMPTY.ratios) == (None, None, ())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"group_id": 0, "member": 0}', "steps"),
        ('{"group_id": 0, "member": 0, "steps": [{"num_tokens": 2}]}', "advantages"),
    ],
)
def test_another_file_is_one_error_that_names_its_line(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "1.jsonl"
    write_credit(path, [TrajectoryCredit(group_id=0, member=0, steps=(TWO_TOKENS,))])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=f"line 2 of .*{reason}"):
        read_credit(path)


@pytest.mark.parametrize(("name", "value"), [("advantages", [1.0]), ("logprobs", ["<b>", 1.0]), ("entropies", True)])
def test_arrays_of_another_length_or_kind_are_refused(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "1.jsonl"
    write_credit(path, [TrajectoryCredit(group_id=0, member=0, steps=(TWO_TOKENS,))])
    entry = json.loads(path.read_text())
    entry["steps"][0][name] = value
    path.write_text(json.dumps(entry) + "\n")
    with pytest.raises(DataError, match="line 1 of"):
        read_credit(path)


def test_rewinding_a_run_deletes_the_credit_of_later_steps(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        write_credit(folder.step_credit(step), [])
    folder.rewind(1)
    assert (folder.step_credit(1).exists(), folder.step_credit(2).exists()) == (True, False)


@pytest.mark.whole
def test_credit_is_read_without_torch() -> None:
    command = "import sys; from agent_r1.runs import read_credit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command]).returncode == 0
