"""Off-policy corrections and the divergence between engine and trainer: numbers by hand, a slow reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agent_r1.algorithms import LossInputs, corrections, engine_divergence
from agent_r1.algorithms.losses import reinforce
from agent_r1.errors import ConfigError, UnknownNameError
from agent_r1.registry import bind_part
from tests.helpers.fuzzing import cases

NAMES = ["none", "token", "sequence", "mask"]


def logprobs(weights: list[float]) -> tuple[Tensor, Tensor]:
    """Old and rollout log-probs whose probability ratios are these weights."""
    rollout_N = torch.full((len(weights),), -1.5, dtype=torch.float64)
    return rollout_N + torch.tensor(weights, dtype=torch.float64).log(), rollout_N


def corrected(name: str, weights: list[float], steps: list[int] | None = None, **arguments: float) -> list[float]:
    old_N, rollout_N = logprobs(weights)
    step_N = torch.tensor(steps or [0] * len(weights), dtype=torch.long)
    found: list[float] = corrections.get(name)(old_N, rollout_N, step_N, **arguments).tolist()
    return found


# --- by hand -------------------------------------------------------------------------------------------------------


def test_without_correction_every_token_weighs_one() -> None:
    assert corrected("none", [0.1, 1.0, 70.0]) == [1.0, 1.0, 1.0]


def test_token_weights_are_each_tokens_own_ratio_up_to_the_cap() -> None:
    assert corrected("token", [0.5, 1.0, 1.9, 3.0]) == pytest.approx([0.5, 1.0, 1.9, 2.0])
    assert corrected("token", [0.5, 1.0, 1.9, 3.0], cap=1.5) == pytest.approx([0.5, 1.0, 1.5, 1.5])


def test_sequence_weights_are_the_product_over_the_step_up_to_the_cap() -> None:
    # .5 * .5 = .25; 2 * 3 = 6, capped at 2; 4 * .25 = 1 although each token alone is far off; .8 alone
    weights, steps = [0.5, 0.5, 2.0, 3.0, 4.0, 0.25, 0.8], [0, 0, 1, 1, 2, 2, 3]
    assert corrected("sequence", weights, steps) == pytest.approx([0.25, 0.25, 2.0, 2.0, 1.0, 1.0, 0.8])
    assert corrected("sequence", weights, steps, cap=10) == pytest.approx([0.25, 0.25, 6.0, 6.0, 1.0, 1.0, 0.8])


def test_a_steps_sequence_weight_does_not_depend_on_its_neighbours() -> None:
    both = corrected("sequence", [0.5, 0.9, 1.1], steps=[0, 1, 1])
    assert both == pytest.approx(corrected("sequence", [0.5]) + corrected("sequence", [0.9, 1.1]))


def test_the_mask_keeps_tokens_within_the_band_and_drops_the_others() -> None:
    weights = [0.01, 0.45, 0.55, 1.0, 1.9, 2.1, 100.0]
    assert corrected("mask", weights) == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert corrected("mask", weights, low=0.02, high=3.0) == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_the_edges_of_the_masks_band_belong_to_it() -> None:
    assert corrected("mask", [1.0], low=1.0, high=2.0) == [1.0]
    assert corrected("mask", [1.0], low=0.5, high=1.0) == [1.0]


# --- a slow reference ----------------------------------------------------------------------------------------------

Pairs = list[list[tuple[float, float]]]


@st.composite
def ragged_pairs(draw: st.DrawFn) -> Pairs:
    """For each step, which may be empty: the trainer's and the engine's log-prob of its tokens."""
    difference = st.one_of(st.floats(-1.0, 1.0), st.floats(-40.0, 40.0), st.sampled_from([0.0, -1e4, 1e4]))
    one = st.tuples(st.floats(-20.0, 0.0), difference)
    steps = draw(st.lists(st.lists(one, max_size=5), max_size=5))
    return [[(rollout + change, rollout) for rollout, change in step] for step in steps]


def flat(steps: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    tokens = [(old, rollout, index) for index, step in enumerate(steps) for old, rollout in step]
    return (
        torch.tensor([old for old, _, _ in tokens], dtype=torch.float64),
        torch.tensor([rollout for _, rollout, _ in tokens], dtype=torch.float64),
        torch.tensor([index for _, _, index in tokens], dtype=torch.long),
    )


def bounded_exp(number: float) -> float:
    return math.exp(min(max(number, -20.0), 20.0))


def reference_weights(name: str, steps: Pairs, cap: float = 2.0, low: float = 0.5, high: float = 2.0) -> list[float]:
    weights = []
    for step in steps:
        product = bounded_exp(sum(old - rollout for old, rollout in step))
        for old, rollout in step:
            own = bounded_exp(old - rollout)
            weights.append(
                {
                    "none": 1.0,
                    "token": min(own, cap),
                    "sequence": min(product, cap),
                    "mask": 1.0 if low <= own <= high else 0.0,
                }[name]
            )
    return weights


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("none", {}),
        ("token", {}),
        ("token", {"cap": 1.1}),
        ("sequence", {}),
        ("sequence", {"cap": 1e6}),
        ("mask", {}),
        ("mask", {"low": 0.9, "high": 1.2}),
    ],
)
@settings(deadline=None, max_examples=cases(30))
@given(steps=ragged_pairs())
def test_weights_agree_with_the_formulas_token_by_token(name: str, arguments: dict[str, float], steps: Pairs) -> None:
    found = corrections.get(name)(*flat(steps), **arguments)
    assert found.tolist() == pytest.approx(reference_weights(name, steps, **arguments))


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=cases(30))
@given(steps=ragged_pairs())
def test_weights_are_never_negative_and_never_above_the_cap(name: str, steps: Pairs) -> None:
    weights = corrections.get(name)(*flat(steps)).tolist()
    assert all(0.0 <= weight <= 2.0 for weight in weights)


# --- what every correction must do ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_where_engine_and_trainer_agree_every_weight_is_one(name: str) -> None:
    assert corrected(name, [1.0] * 5, steps=[0, 0, 1, 2, 2]) == [1.0] * 5


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_flows_through_a_weight(name: str) -> None:
    weights, advantages_N = [0.7, 1.4, 3.0, 1.1], torch.tensor([1.0, -2.0, 0.5, 1.0], dtype=torch.float64)
    step_N = torch.tensor([0, 0, 1, 2])
    old_N, rollout_N = logprobs(weights)
    policy_N = old_N.clone().requires_grad_()
    # The harshest case: the weight is made of the very tensor that is trained.
    weight_N = corrections.get(name)(policy_N, rollout_N.requires_grad_(), step_N)
    assert not weight_N.requires_grad
    inputs = LossInputs(policy_logprobs_N=policy_N, old_logprobs_N=old_N, advantages_N=advantages_N, step_N=step_N)
    (found,) = torch.autograd.grad((weight_N * reinforce(inputs).loss_N).sum(), policy_N)
    assert found.tolist() == pytest.approx((-weight_N * advantages_N).tolist())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("difference", [-1e4, 1e4])
def test_huge_differences_give_finite_weights_in_single_precision(name: str, difference: float) -> None:
    old_N, step_N = torch.tensor([difference, difference, 0.0]), torch.tensor([0, 0, 1])
    weights_N = corrections.get(name)(old_N, torch.zeros(3), step_N)
    assert weights_N.dtype == torch.float32
    expected = {"none": 1.0, "mask": 0.0}.get(name, 2.0 if difference > 0 else 0.0)
    assert weights_N.tolist() == pytest.approx([expected, expected, 1.0], abs=1e-8)


def test_huge_differences_of_one_step_cancel_before_they_are_bounded() -> None:
    old_N = torch.tensor([1e4, -1e4, 0.0])
    assert corrections.get("sequence")(old_N, torch.zeros(3), torch.zeros(3, dtype=torch.long)).tolist() == [1.0] * 3


@pytest.mark.parametrize("name", NAMES)
def test_no_tokens_have_no_weights(name: str) -> None:
    nothing = torch.zeros(0)
    found = corrections.get(name)(nothing, nothing, torch.zeros(0, dtype=torch.long))
    assert found.tolist() == []
    assert found.dtype == nothing.dtype


# --- how far the engine is from the trainer ------------------------------------------------------------------------


def test_engine_divergence_by_hand() -> None:
    # w - ln w - 1
    found = engine_divergence(*logprobs([2.0, 0.5, 1.0, math.e])).tolist()
    assert found == pytest.approx([1 - math.log(2), math.log(2) - 0.5, 0.0, math.e - 2])


def test_engine_divergence_averages_to_the_divergence_of_the_trainer_from_the_engine() -> None:
    rollout, old = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.3, 0.3, 0.4]).double()
    exact = float((rollout * (rollout / old).log()).sum())
    assert float((rollout * engine_divergence(old.log(), rollout.log())).sum()) == pytest.approx(exact)


@settings(deadline=None, max_examples=cases(30))
@given(st.lists(st.tuples(st.floats(-30.0, 0.0, width=32), st.floats(-30.0, 0.0, width=32)), max_size=8))
def test_engine_divergence_is_never_negative_and_zero_where_they_agree(pairs: list[tuple[float, float]]) -> None:
    old_N, rollout_N = torch.tensor([old for old, _ in pairs]), torch.tensor([rollout for _, rollout in pairs])
    divergence_N = engine_divergence(old_N, rollout_N)
    assert torch.isfinite(divergence_N).all()
    assert (divergence_N >= 0).all()
    assert engine_divergence(old_N, old_N).tolist() == [0.0] * len(pairs)


def test_engine_divergence_of_almost_equal_policies_is_half_the_squared_difference() -> None:
    # Rounding between engine and trainer is of this size, so this is what a healthy run logs.
    old_N = torch.linspace(-2e-3, 2e-3, 4001)
    divergence_N = engine_divergence(old_N, torch.zeros_like(old_N))
    assert divergence_N.min().item() >= 0
    assert torch.allclose(divergence_N, 0.5 * old_N**2, rtol=1e-2, atol=1e-11)


@pytest.mark.parametrize("difference", [-1e4, 1e4])
def test_engine_divergence_of_huge_differences_is_finite_and_carries_no_gradient(difference: float) -> None:
    old_N = torch.tensor([difference], requires_grad=True)
    divergence_N = engine_divergence(old_N, torch.zeros(1))
    assert torch.isfinite(divergence_N).all()
    assert not divergence_N.requires_grad


# --- names ---------------------------------------------------------------------------------------------------------


@corrections.register("tests_geometric")
def geometric(old_logprobs_N: Tensor, rollout_logprobs_N: Tensor, step_N: Tensor, *, power: float = 0.5) -> Tensor:
    return (power * (old_logprobs_N - rollout_logprobs_N)).detach().exp()


def bound(part: dict[str, Any]) -> list[float]:
    old_N, rollout_N = logprobs([4.0, 0.25])
    found: list[float] = bind_part(corrections, "algorithm.off_policy", part)(
        old_N, rollout_N, torch.zeros(2, dtype=torch.long)
    ).tolist()
    return found


def test_a_users_correction_takes_its_arguments_from_the_configuration() -> None:
    assert bound({"name": "tests_geometric"}) == pytest.approx([2.0, 0.5])
    assert bound({"name": "tests_geometric", "power": 1.0}) == pytest.approx([4.0, 0.25])


def test_the_corrections_own_arguments_come_from_the_configuration() -> None:
    assert bound({"name": "token", "cap": 3.0}) == pytest.approx([3.0, 0.25])
    assert bound({"name": "mask", "low": 0.1, "high": 5.0}) == [1.0, 1.0]


def test_wrong_names_and_arguments_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'token'"):
        bound({"name": "tokens"})
    with pytest.raises(ConfigError, match="Did you mean 'cap'"):
        bound({"name": "token", "capp": 2.0})
    with pytest.raises(ConfigError, match="takes no argument 'cap'"):
        bound({"name": "none", "cap": 2.0})
