"""Two ranks learn what one process learns, and read each other's checkpoints."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_r1.runs import find_damage
from tests.helpers import sharded_cases
from tests.helpers.sharded_cases import CASES, RESUMED, flat, loaded, make_case, run_case, run_on_ranks, save

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> dict[str, Any]:
    """What two ranks have computed, in processes of their own; one process has written checkpoints before."""
    for case in RESUMED:
        learner, experience = make_case(case)
        learner.learn_sync(experience, step=0)
        save(learner, folder / "one" / case)
    run_on_ranks(2, [str(folder / "results.pt"), str(folder)])
    results: dict[str, Any] = torch.load(folder / "results.pt", weights_only=False)
    return results


@cache
def of_one(case: str) -> dict[str, Any]:
    """What one process computes."""
    return run_case(case)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
        assert same, name


@pytest.mark.parametrize("case", [case for case in CASES if case != "nan"])
def test_two_ranks_have_the_gradients_of_one_process(case: str, two_ranks: dict[str, Any]) -> None:
    one, two = of_one(case), two_ranks[case]
    assert two["gradients"].keys() == one["gradients"].keys()
    for name, expected in one["gradients"].items():
        assert float(expected.abs().max()) > 0, f"{name} has no gradient"
        assert float((two["gradients"][name] - expected).abs().max()) <= 1e-5 * float(expected.abs().max()), name
    assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-4, abs=1e-6)
    assert two["bytes"] == one["bytes"]


@pytest.mark.parametrize("case", ["tries", "lora", "reference", "own_critic"])
def test_what_two_ranks_record_of_each_token_is_what_one_process_records(case: str, two_ranks: dict[str, Any]) -> None:
    one, two = of_one(case)["credit"], two_ranks[case]["credit"]
    assert len(one) == len(two) > 0
    for expected, found in zip(one, two, strict=True):
        for logprobs, others in zip(expected, found, strict=True):
            assert others == pytest.approx(logprobs, abs=1e-5)


@pytest.mark.parametrize("case", ["tied", "lora"])
def test_the_engine_gets_whole_weights_under_the_plain_names(case: str, two_ranks: dict[str, Any]) -> None:
    one, two = of_one(case)["weights"], two_ranks[case]["weights"]
    assert list(one) == list(two)
    for name, tensor in one.items():
        assert two[name].shape == tensor.shape
        assert torch.allclose(two[name], tensor, atol=2e-3), name  # AdamW moves a weight by its rate, whatever the sign


def test_an_update_that_is_not_finite_on_one_rank_is_skipped_on_all(two_ranks: dict[str, Any]) -> None:
    result, before = two_ranks["nan"], sharded_cases.make_policy().state_dict()
    assert result["skips"] == 1
    assert math.isnan(result["metrics"]["loss/policy"])
    assert all(torch.equal(result["weights"][name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("case", RESUMED)
def test_two_ranks_resume_bit_for_bit(case: str, two_ranks: dict[str, Any]) -> None:
    assert_same(two_ranks["resumed"][case]["resumed"], two_ranks["resumed"][case]["continued"])


@pytest.mark.parametrize("case", RESUMED)
def test_one_process_reads_the_checkpoint_of_two_ranks(case: str, two_ranks: dict[str, Any], folder: Path) -> None:
    learner, _ = loaded(case, folder / "two" / case)
    assert_same(flat(learner.state_dict()), two_ranks["resumed"][case]["saved"])


@pytest.mark.parametrize("case", RESUMED)
def test_two_ranks_read_the_checkpoint_of_one_process(case: str, two_ranks: dict[str, Any], folder: Path) -> None:
    learner, _ = loaded(case, folder / "one" / case)
    assert_same(two_ranks["resumed"][case]["of_one"], flat(learner.state_dict()))


def test_a_damaged_shard_is_found(two_ranks: dict[str, Any], folder: Path) -> None:
    checkpoint = folder / "two" / "lora" / "step_1"
    assert find_damage(checkpoint) is None
    [shard] = (checkpoint / "shards").glob("__1_0*")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert find_damage(checkpoint) == f"the checksum of shards/{shard.name} is wrong"
