"""Policy losses, the value loss, KL estimators and aggregations: numbers by hand, gradients, properties."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agent_r1.algorithms import LossInputs, aggregations, kl_estimators, policy_losses, value_loss
from agent_r1.algorithms.losses import clip, negative_log_likelihood
from agent_r1.errors import UnknownNameError


def inputs_of(ratios: list[float], advantages: list[float]) -> LossInputs:
    """Tokens whose probability has changed by these ratios since the old policy."""
    old_N = torch.full((len(ratios),), -1.5, dtype=torch.float64)
    policy_N = (old_N + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    return LossInputs(
        policy_logprobs_N=policy_N,
        old_logprobs_N=old_N,
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        step_N=torch.zeros(len(ratios), dtype=torch.long),
    )


def gradient(loss_N: Tensor, wanted: Tensor) -> list[float]:
    (found,) = torch.autograd.grad(loss_N.sum(), wanted)
    numbers: list[float] = found.tolist()
    return numbers


# --- clip ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        pytest.param(1.0, 2.0, -2.0, id="unchanged"),
        pytest.param(1.1, 1.0, -1.1, id="inside the band"),
        pytest.param(1.5, 1.0, -1.2, id="good token already more likely: clipped"),
        pytest.param(0.5, 1.0, -0.5, id="good token less likely: not clipped"),
        pytest.param(1.5, -1.0, 1.5, id="bad token more likely: not clipped"),
        pytest.param(0.5, -1.0, 0.8, id="bad token already less likely: clipped"),
        pytest.param(5.0, -1.0, 3.0, id="bad token far more likely: dual clip"),
        pytest.param(5.0, 0.0, 0.0, id="no advantage"),
    ],
)
def test_clip_by_hand(ratio: float, advantage: float, loss: float) -> None:
    assert clip(inputs_of([ratio], [advantage])).loss_N.item() == pytest.approx(loss)


def test_clip_has_two_sides() -> None:
    losses = clip(inputs_of([1.5, 0.5], [1.0, -1.0]), clip_low=0.1, clip_high=0.28).loss_N
    assert losses.tolist() == pytest.approx([-1.28, 0.9])


def test_dual_clip_can_be_moved_and_switched_off() -> None:
    inputs = inputs_of([50.0], [-2.0])
    assert clip(inputs, dual_clip=4.0).loss_N.item() == pytest.approx(8.0)
    assert clip(inputs, dual_clip=None).loss_N.item() == pytest.approx(100.0)


def test_dual_clip_leaves_positive_advantages_alone() -> None:
    inputs = inputs_of([0.01, 1.0, 9.0], [1.0, 1.0, 1.0])
    assert clip(inputs, dual_clip=3.0).loss_N.tolist() == clip(inputs, dual_clip=None).loss_N.tolist()


def test_clip_reports_what_was_clipped() -> None:
    metrics = clip(inputs_of([1.5, 1.0, 0.5, 1.5], [1.0, 1.0, -1.0, -1.0])).metrics_N
    assert metrics["clip_fraction"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert metrics["ratio"].tolist() == pytest.approx([1.5, 1.0, 0.5, 1.5])
    assert metrics["approx_kl"].tolist() == pytest.approx([-math.log(1.5), 0.0, math.log(2), -math.log(1.5)])


def test_clip_metrics_carry_no_gradient() -> None:
    assert not any(tensor.requires_grad for tensor in clip(inputs_of([1.5], [1.0])).metrics_N.values())


def test_gradient_at_ratio_one_is_the_policy_gradient() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([0, 3, 3, 6, 1])
    advantages_N = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0], dtype=torch.float64)
    logprobs_N = logits.log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
    inputs = LossInputs(
        policy_logprobs_N=logprobs_N,
        old_logprobs_N=logprobs_N.detach(),
        advantages_N=advantages_N,
        step_N=torch.zeros(5, dtype=torch.long),
    )
    (found,) = torch.autograd.grad(clip(inputs).loss_N.sum(), logits, retain_graph=True)
    # d log pi(token) / d logits = one_hot(token) - pi
    one_hot = torch.nn.functional.one_hot(tokens, 7).double()
    expected = -advantages_N[:, None] * (one_hot - logits.detach().softmax(-1))
    assert torch.allclose(found, expected, atol=1e-12)


def test_clipped_tokens_push_nowhere_and_others_push_by_their_ratio() -> None:
    inputs = inputs_of([1.5, 0.5, 5.0, 1.5, 0.5], [1.0, -1.0, -1.0, -1.0, 1.0])
    found = gradient(clip(inputs).loss_N, inputs.policy_logprobs_N)
    assert found == pytest.approx([0.0, 0.0, 0.0, 1.5, -0.5])


@pytest.mark.parametrize("dual_clip", [3.0, None])
@pytest.mark.parametrize("advantage", [-1e3, -1.0, 0.0, 1.0, 1e3])
@pytest.mark.parametrize("difference", [-1e4, -25.0, 25.0, 1e4])
def test_any_log_ratio_gives_a_finite_loss_and_gradient(
    difference: float, advantage: float, dual_clip: float | None
) -> None:
    policy_N = torch.tensor([difference], requires_grad=True)
    inputs = LossInputs(
        policy_logprobs_N=policy_N,
        old_logprobs_N=torch.zeros(1),
        advantages_N=torch.tensor([advantage]),
        step_N=torch.zeros(1, dtype=torch.long),
    )
    losses = clip(inputs, dual_clip=dual_clip)
    assert torch.isfinite(losses.loss_N).all()
    assert all(torch.isfinite(tensor).all() for tensor in losses.metrics_N.values())
    assert all(math.isfinite(number) for number in gradient(losses.loss_N, policy_N))


def test_the_log_ratio_is_bounded_at_twenty() -> None:
    losses = clip(inputs_of([math.e**30], [-1.0]), dual_clip=None)
    assert losses.loss_N.item() == pytest.approx(math.e**20)


def test_imitation_is_minus_the_log_probability_whatever_the_advantage() -> None:
    inputs = inputs_of([1.0, 1.0], [5.0, -5.0])
    loss_N = negative_log_likelihood(inputs).loss_N
    assert loss_N.tolist() == [1.5, 1.5]
    assert gradient(loss_N, inputs.policy_logprobs_N) == [-1.0, -1.0]


def test_an_unknown_loss_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'clip'"):
        policy_losses.get("clipp")


# --- value loss ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "old", "target", "clip_range", "loss"),
    [
        pytest.param(2.0, 0.0, 0.0, None, 2.0, id="half the square"),
        pytest.param(1.0, 0.0, 1.0, 0.2, 0.32, id="moved further than allowed: the held value is off by .8"),
        pytest.param(0.1, 0.0, 1.0, 0.2, 0.405, id="within the range"),
        pytest.param(-1.0, 0.0, 1.0, 0.2, 2.0, id="moved away: the larger loss counts"),
    ],
)
def test_value_loss_by_hand(value: float, old: float, target: float, clip_range: float | None, loss: float) -> None:
    found = value_loss(torch.tensor([value]), torch.tensor([old]), torch.tensor([target]), clip_range=clip_range)
    assert found.item() == pytest.approx(loss)


def test_a_value_that_moved_too_far_is_pushed_no_further() -> None:
    values_N = torch.tensor([1.0, 0.1], requires_grad=True)
    loss_N = value_loss(values_N, torch.zeros(2), torch.full((2,), 2.0), clip_range=0.2)
    assert gradient(loss_N, values_N) == pytest.approx([0.0, -1.9])


# --- KL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "difference", "expected"),
    [
        ("k1", 0.5, 0.5),
        ("k1", -0.5, -0.5),
        ("k2", 0.5, 0.125),
        ("k2", -0.5, 0.125),
        ("k3", 0.0, 0.0),
        ("k3", math.log(2), 0.5 + math.log(2) - 1),
        ("k3", -math.log(2), 2 - math.log(2) - 1),
        ("k3", -15.0, 10.0),
        ("k3", -1e4, 10.0),
        ("k3", 1e4, 10.0),
    ],
)
def test_kl_estimators_by_hand(name: str, difference: float, expected: float) -> None:
    policy_N = torch.tensor([difference - 1.0], dtype=torch.float64)
    found = kl_estimators.get(name)(policy_N, torch.full_like(policy_N, -1.0))
    assert found.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_unbiased_estimators_average_to_the_divergence(name: str) -> None:
    policy = torch.tensor([0.7, 0.2, 0.1]).double()
    reference = torch.tensor([0.3, 0.3, 0.4]).double()
    exact = float((policy * (policy / reference).log()).sum())
    estimate = float((policy * kl_estimators.get(name)(policy.log(), reference.log())).sum())
    assert estimate == pytest.approx(exact)


@pytest.mark.parametrize("name", ["k2", "k3"])
@pytest.mark.parametrize("difference", [-2.0, 2.0])
def test_descending_k2_or_k3_pulls_a_token_towards_the_reference(name: str, difference: float) -> None:
    policy_N = torch.tensor([difference], requires_grad=True)
    (slope,) = gradient(kl_estimators.get(name)(policy_N, torch.zeros(1)), policy_N)
    assert math.copysign(1.0, slope) == math.copysign(1.0, difference)


# --- aggregations --------------------------------------------------------------------------------------------------

# Two trajectories: steps of 1 and 2 tokens, and one step of 1 token.
STEP_N = torch.tensor([0, 1, 1, 2])
TRAJECTORY_N = torch.tensor([0, 0, 0, 1])
MEANS = ["token-mean", "step-mean-token-mean", "trajectory-mean-token-mean"]


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("token-mean", [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("step-mean-token-mean", [1 / 3, 1 / 6, 1 / 6, 1 / 3]),
        ("trajectory-mean-token-mean", [1 / 6, 1 / 6, 1 / 6, 1 / 2]),
        ("trajectory-mean-token-sum", [1 / 2, 1 / 2, 1 / 2, 1 / 2]),
    ],
)
def test_aggregations_by_hand(name: str, weights: list[float]) -> None:
    found = aggregations.get(name)(torch.ones(4, dtype=torch.bool), STEP_N, TRAJECTORY_N)
    assert found.tolist() == pytest.approx(weights)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("token-mean", [1 / 3, 1 / 3, 1 / 3, 0]),
        ("step-mean-token-mean", [1 / 2, 1 / 4, 1 / 4, 0]),
        ("trajectory-mean-token-mean", [1 / 3, 1 / 3, 1 / 3, 0]),
        ("trajectory-mean-token-sum", [1, 1, 1, 0]),
    ],
)
def test_a_trajectory_without_credit_leaves_the_denominator(name: str, weights: list[float]) -> None:
    found = aggregations.get(name)(torch.tensor([True, True, True, False]), STEP_N, TRAJECTORY_N)
    assert found.tolist() == pytest.approx(weights)


@pytest.mark.parametrize("name", [*MEANS, "trajectory-mean-token-sum"])
def test_without_credit_every_weight_is_zero(name: str) -> None:
    aggregate = aggregations.get(name)
    assert aggregate(torch.zeros(4, dtype=torch.bool), STEP_N, TRAJECTORY_N).tolist() == [0.0] * 4
    nothing = torch.zeros(0, dtype=torch.long)
    assert aggregate(nothing.bool(), nothing, nothing).tolist() == []


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[list[int]], list[bool]]:
    """Step lengths of each trajectory, and which tokens have credit."""
    trajectories = draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=6))
    total = sum(map(sum, trajectories))
    return trajectories, draw(st.lists(st.booleans(), min_size=total, max_size=total))


def owners(trajectories: list[list[int]]) -> tuple[Tensor, Tensor]:
    steps, members, number = [], [], 0
    for index, lengths in enumerate(trajectories):
        for length in lengths:
            steps += [number] * length
            members += [index] * length
            number += 1
    return torch.tensor(steps, dtype=torch.long), torch.tensor(members, dtype=torch.long)


def reference_weights(name: str, credited: list[bool], steps: list[int], members: list[int]) -> list[float]:
    """Counting, token by token."""
    weights = []
    for token, has_credit in enumerate(credited):
        if not has_credit:
            weights.append(0.0)
            continue
        live = [other for other, also in enumerate(credited) if also]
        in_step = sum(steps[other] == steps[token] for other in live)
        in_member = sum(members[other] == members[token] for other in live)
        num_steps, num_members = len({steps[o] for o in live}), len({members[o] for o in live})
        weight = {
            "token-mean": Fraction(1, len(live)),
            "step-mean-token-mean": Fraction(1, in_step * num_steps),
            "trajectory-mean-token-mean": Fraction(1, in_member * num_members),
            "trajectory-mean-token-sum": Fraction(1, num_members),
        }[name]
        weights.append(float(weight))
    return weights


@settings(deadline=None, max_examples=40)
@given(layouts(), st.sampled_from([*MEANS, "trajectory-mean-token-sum"]))
def test_weights_agree_with_counting(layout: tuple[list[list[int]], list[bool]], name: str) -> None:
    trajectories, credited = layout
    step_N, trajectory_N = owners(trajectories)
    found = aggregations.get(name)(torch.tensor(credited, dtype=torch.bool), step_N, trajectory_N)
    assert found.tolist() == pytest.approx(reference_weights(name, credited, step_N.tolist(), trajectory_N.tolist()))


@settings(deadline=None, max_examples=40)
@given(layouts(), st.sampled_from(MEANS))
def test_weights_of_a_mean_sum_to_one_and_spare_tokens_without_credit(
    layout: tuple[list[list[int]], list[bool]], name: str
) -> None:
    trajectories, credited = layout
    step_N, trajectory_N = owners(trajectories)
    credited_N = torch.tensor(credited, dtype=torch.bool)
    weights_N = aggregations.get(name)(credited_N, step_N, trajectory_N)
    assert float(weights_N.sum()) == pytest.approx(1.0 if any(credited) else 0.0)
    assert (weights_N[~credited_N] == 0).all()
    assert (weights_N[credited_N] > 0).all()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=6))
def test_trajectory_mean_weighs_every_trajectory_the_same_however_many_steps_it_has(
    trajectories: list[list[int]],
) -> None:
    step_N, trajectory_N = owners(trajectories)
    everywhere_N = torch.ones(len(step_N), dtype=torch.bool)
    weights_N = aggregations.get("trajectory-mean-token-mean")(everywhere_N, step_N, trajectory_N)
    weight_R = torch.zeros(len(trajectories), dtype=torch.float64).index_add(0, trajectory_N, weights_N)
    assert weight_R.tolist() == pytest.approx([1 / len(trajectories)] * len(trajectories))
