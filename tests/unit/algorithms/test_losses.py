"""Policy losses, the value loss, KL estimators and aggregations: numbers by hand, gradients, properties."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agent_r1.algorithms import (
    LossInputs,
    TokenLosses,
    adapted_coefficient,
    aggregations,
    kl_estimators,
    policy_losses,
    value_loss,
)
from agent_r1.algorithms.losses import cispo, clip, negative_log_likelihood, reinforce, step_log_ratio
from agent_r1.errors import ConfigError, UnknownNameError
from agent_r1.registry import bind_part
from tests.helpers.fuzzing import cases


def inputs_of(ratios: list[float], advantages: list[float], steps: list[int] | None = None) -> LossInputs:
    """Tokens whose probability has changed by these ratios since the old policy; all of one step unless told."""
    old_N = torch.full((len(ratios),), -1.5, dtype=torch.float64)
    policy_N = (old_N + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    return LossInputs(
        policy_logprobs_N=policy_N,
        old_logprobs_N=old_N,
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        step_N=torch.tensor(steps or [0] * len(ratios), dtype=torch.long),
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


# --- one ratio a step ----------------------------------------------------------------------------------------------


def test_the_step_ratio_is_the_geometric_mean_over_the_steps_tokens() -> None:
    # (4 * 1)^(1/2) = 2; (8 * 1 * 1)^(1/3) = 2; .5 alone
    inputs = inputs_of([4.0, 1.0, 8.0, 1.0, 1.0, 0.5], [1.0] * 6, steps=[0, 0, 1, 1, 1, 2])
    assert step_log_ratio(inputs).exp().tolist() == pytest.approx([2.0, 2.0, 2.0, 2.0, 2.0, 0.5])
    assert clip(inputs, ratio="step").metrics_N["ratio"].tolist() == pytest.approx([2.0] * 5 + [0.5])


@pytest.mark.parametrize(
    ("ratios", "advantage", "loss", "slope"),
    [
        pytest.param([4.0, 1.0], 1.0, -1.2, 0.0, id="good step already more likely: clipped"),
        pytest.param([4.0, 1.0], -1.0, 2.0, 2.0, id="bad step more likely: not clipped"),
        pytest.param([0.25, 1.0], 1.0, -0.5, -0.5, id="good step less likely: not clipped"),
        pytest.param([0.25, 1.0], -1.0, 0.8, 0.0, id="bad step already less likely: clipped"),
        pytest.param([4.0, 0.25], 3.0, -3.0, -3.0, id="tokens far outside the band, the step in its middle"),
        pytest.param([100.0, 1.0], -1.0, 3.0, 0.0, id="bad step far more likely: dual clip"),
    ],
)
def test_step_clip_by_hand(ratios: list[float], advantage: float, loss: float, slope: float) -> None:
    inputs = inputs_of(ratios, [advantage] * 2)
    loss_N = clip(inputs, ratio="step").loss_N
    assert loss_N.tolist() == pytest.approx([loss, loss])
    assert gradient(loss_N, inputs.policy_logprobs_N) == pytest.approx([slope, slope])


def test_the_step_ratio_is_clipped_per_step_not_per_token() -> None:
    inputs = inputs_of([1.5, 1 / 1.5, 1.5, 1.5], [1.0] * 4, steps=[0, 0, 1, 1])
    assert clip(inputs, ratio="token").metrics_N["clip_fraction"].tolist() == [1.0, 0.0, 1.0, 1.0]
    assert clip(inputs, ratio="step").metrics_N["clip_fraction"].tolist() == [0.0, 0.0, 1.0, 1.0]


@settings(deadline=None, max_examples=cases(30))
@given(
    st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=6),
    st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0]),
)
def test_the_steps_mean_loss_has_the_gradient_of_the_step_ratio_objective(
    differences: list[float], advantage: float
) -> None:
    unclipped = {"clip_low": 0.999, "clip_high": 1e6, "dual_clip": None}
    inputs = inputs_of([math.exp(difference) for difference in differences], [advantage] * len(differences))
    policy_N = inputs.policy_logprobs_N
    objective = -advantage * (policy_N - inputs.old_logprobs_N).mean().exp()
    (expected,) = torch.autograd.grad(objective, policy_N)
    loss_N = clip(inputs, ratio="step", **unclipped).loss_N
    assert float(loss_N.detach().mean()) == pytest.approx(float(objective.detach()))
    assert gradient(loss_N / len(differences), policy_N) == pytest.approx(expected.tolist(), abs=1e-12)


def test_in_single_precision_too_all_tokens_of_a_step_have_one_ratio() -> None:
    # Clips of GSPO are about 3e-4: a ratio that is rounded token by token would clip tokens of one step apart.
    generator = torch.Generator().manual_seed(0)
    old_N = -15.0 * torch.rand(200, generator=generator)
    inputs = LossInputs(
        policy_logprobs_N=old_N + 1e-3 * torch.randn(200, generator=generator),
        old_logprobs_N=old_N,
        advantages_N=torch.ones(200),
        step_N=torch.zeros(200, dtype=torch.long),
    )
    assert len(set(clip(inputs, ratio="step").metrics_N["ratio"].tolist())) == 1


def test_a_wrong_ratio_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="ratio=sequence is not one of token, step"):
        clip(inputs_of([1.0], [1.0]), ratio="sequence")


# --- reinforce, cispo, imitation -----------------------------------------------------------------------------------


def test_reinforce_by_hand() -> None:
    # log pi = -1.5, -1.5 + ln 2, -1.5 - ln 2; the old policy does not matter
    inputs = inputs_of([1.0, 2.0, 0.5], [2.0, -1.0, 0.0])
    losses = reinforce(inputs)
    assert losses.loss_N.tolist() == pytest.approx([3.0, -1.5 + math.log(2), 0.0])
    assert gradient(losses.loss_N, inputs.policy_logprobs_N) == pytest.approx([-2.0, 1.0, 0.0])
    assert losses.metrics_N["approx_kl"].tolist() == pytest.approx([0.0, -math.log(2), math.log(2)])


def test_cispo_by_hand() -> None:
    # Ratios 9, 1, .5 with a bound of 5 weigh 5, 1, .5. A weight with a gradient would give -w A (log pi + 1) instead.
    inputs = inputs_of([9.0, 1.0, 0.5], [1.0, -2.0, 1.0])
    loss_N = cispo(inputs).loss_N
    assert loss_N.tolist() == pytest.approx([-5 * (-1.5 + math.log(9)), -3.0, 0.5 * (1.5 + math.log(2))])
    assert gradient(loss_N, inputs.policy_logprobs_N) == pytest.approx([-5.0, 2.0, -0.5])


def test_cispo_bounds_the_weight_from_above_alone_and_no_token_loses_its_gradient() -> None:
    inputs = inputs_of([1e6, 2.0, 1.2, 0.01], [1.0, -1.0, 1.0, 1.0])
    losses = cispo(inputs, clip_high=0.28)
    assert gradient(losses.loss_N, inputs.policy_logprobs_N) == pytest.approx([-1.28, 1.28, -1.2, -0.01])
    assert losses.metrics_N["clip_fraction"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert losses.metrics_N["ratio"].tolist() == pytest.approx([1e6, 2.0, 1.2, 0.01])
    assert not any(tensor.requires_grad for tensor in losses.metrics_N.values())


# --- all losses ----------------------------------------------------------------------------------------------------

LOSSES: list[dict[str, Any]] = [
    {"name": "clip", "ratio": "token"},
    {"name": "clip", "ratio": "token", "clip_low": 0.1, "clip_high": 0.28, "dual_clip": None},
    {"name": "clip", "ratio": "step"},
    {"name": "clip", "ratio": "step", "clip_low": 3e-4, "clip_high": 4e-4, "dual_clip": None},
    {"name": "reinforce"},
    {"name": "cispo"},
    {"name": "cispo", "clip_high": 0.28},
    {"name": "nll"},
]


@dataclass(frozen=True)
class Token:
    policy: float
    old: float
    advantage: float
    step: int


def inputs_from(tokens: list[Token], dtype: torch.dtype = torch.float64) -> LossInputs:
    return LossInputs(
        policy_logprobs_N=torch.tensor([token.policy for token in tokens], dtype=dtype, requires_grad=True),
        old_logprobs_N=torch.tensor([token.old for token in tokens], dtype=dtype),
        advantages_N=torch.tensor([token.advantage for token in tokens], dtype=dtype),
        step_N=torch.tensor([token.step for token in tokens], dtype=torch.long),
    )


def reference_clip(
    token: Token,
    tokens: list[Token],
    ratio: str = "token",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> tuple[float, float]:
    mates = [other for other in tokens if other.step == token.step] if ratio == "step" else [token]
    differences = [min(max(mate.policy - mate.old, -20.0), 20.0) for mate in mates]
    changed = math.exp(sum(differences) / len(differences))
    plain = -token.advantage * changed
    loss = max(plain, -token.advantage * min(max(changed, 1 - clip_low), 1 + clip_high))
    if dual_clip is not None and token.advantage < 0:
        loss = min(loss, -token.advantage * dual_clip)
    moves = loss == plain and (ratio == "step" or abs(token.policy - token.old) <= 20.0)
    return loss, plain if moves else 0.0


def reference_loss(token: Token, tokens: list[Token], part: dict[str, Any]) -> tuple[float, float]:
    """The loss of a token and its slope in the token's log-probability: the formulas, token by token."""
    arguments = {key: argument for key, argument in part.items() if key != "name"}
    if part["name"] == "clip":
        return reference_clip(token, tokens, **arguments)
    weight = {
        "reinforce": token.advantage,
        "nll": 1.0,
        "cispo": token.advantage
        * min(math.exp(min(max(token.policy - token.old, -20.0), 20.0)), 1 + arguments.get("clip_high", 4.0)),
    }[part["name"]]
    return -weight * token.policy, -weight


@st.composite
def ragged_tokens(draw: st.DrawFn) -> list[Token]:
    """Steps of different lengths, some empty, with advantages of both signs and some log-ratios beyond +-20."""
    difference = st.one_of(st.floats(-0.5, 0.5), st.floats(-40.0, 40.0), st.sampled_from([0.0, -21.0, 21.0, 1e4]))
    one = st.tuples(st.floats(-30.0, -0.01), difference, st.one_of(st.just(0.0), st.floats(-5.0, 5.0)))
    steps = draw(st.lists(st.lists(one, max_size=5), max_size=5))
    return [
        Token(policy=old + change, old=old, advantage=advantage, step=index)
        for index, step in enumerate(steps)
        for old, change, advantage in step
    ]


@pytest.mark.parametrize("part", LOSSES, ids=str)
@settings(deadline=None, max_examples=cases(30))
@given(tokens=ragged_tokens())
def test_losses_and_their_gradients_agree_with_the_formulas_token_by_token(
    part: dict[str, Any], tokens: list[Token]
) -> None:
    inputs = inputs_from(tokens)
    loss_N = bind_part(policy_losses, "algorithm.loss", part)(inputs).loss_N
    expected = [reference_loss(token, tokens, part) for token in tokens]
    assert loss_N.tolist() == pytest.approx([loss for loss, _ in expected], rel=1e-9, abs=1e-9)
    slopes = gradient(loss_N, inputs.policy_logprobs_N)
    assert slopes == pytest.approx([slope for _, slope in expected], rel=1e-9, abs=1e-9)


DEGENERATE: dict[str, list[Token]] = {
    "no token": [],
    "one token": [Token(policy=-1.0, old=-1.2, advantage=1.0, step=0)],
    "no advantage": [Token(policy=-float(index), old=-9.0, advantage=0.0, step=index // 2) for index in range(5)],
    "certain tokens": [Token(policy=0.0, old=0.0, advantage=advantage, step=0) for advantage in (-1.0, 1.0)],
    "huge differences": [
        Token(policy=policy, old=old, advantage=advantage, step=step)
        for step, (policy, old) in enumerate([(-1e4, 0.0), (0.0, -1e4), (-1e4, -1e4)])
        for advantage in (-1e3, 1e3)
    ],
    "huge differences in one step": [
        Token(policy=policy, old=-1e4 - policy, advantage=-1.0, step=0) for policy in (-1e4, 0.0, -5e3)
    ],
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("part", LOSSES, ids=str)
def test_degenerate_tokens_give_finite_losses_metrics_and_gradients(part: dict[str, Any], case: str) -> None:
    inputs = inputs_from(DEGENERATE[case], dtype=torch.float32)
    losses = bind_part(policy_losses, "algorithm.loss", part)(inputs)
    slopes = gradient(losses.loss_N, inputs.policy_logprobs_N)
    assert len(losses.loss_N) == len(slopes) == len(DEGENERATE[case])
    assert torch.isfinite(losses.loss_N).all()
    assert all(torch.isfinite(tensor).all() for tensor in losses.metrics_N.values())
    assert all(math.isfinite(slope) for slope in slopes)


@pytest.mark.parametrize("part", [part for part in LOSSES if part["name"] != "nll"], ids=str)
def test_without_advantages_nothing_is_pushed(part: dict[str, Any]) -> None:
    inputs = inputs_of([0.1, 1.0, 30.0], [0.0] * 3)
    loss_N = bind_part(policy_losses, "algorithm.loss", part)(inputs).loss_N
    assert loss_N.tolist() == [0.0] * 3
    assert gradient(loss_N, inputs.policy_logprobs_N) == [0.0] * 3


@pytest.mark.parametrize("part", [part for part in LOSSES if part["name"] != "nll"], ids=str)
def test_before_the_first_update_every_loss_has_the_plain_policy_gradient(part: dict[str, Any]) -> None:
    inputs = inputs_of([1.0] * 4, [1.0, -2.0, 0.5, -0.5], steps=[0, 0, 1, 2])
    loss_N = bind_part(policy_losses, "algorithm.loss", part)(inputs).loss_N
    assert gradient(loss_N, inputs.policy_logprobs_N) == pytest.approx([-1.0, 2.0, -0.5, 0.5])


@policy_losses.register("tests_power")
def power_loss(inputs: LossInputs, *, power: float = 1.0) -> TokenLosses:
    return TokenLosses(loss_N=-inputs.advantages_N * inputs.policy_logprobs_N**power)


def test_a_users_loss_takes_its_arguments_from_the_configuration() -> None:
    inputs = inputs_of([1.0], [2.0])
    assert bind_part(policy_losses, "algorithm.loss", {"name": "tests_power"})(inputs).loss_N.item() == 3.0
    squared = bind_part(policy_losses, "algorithm.loss", {"name": "tests_power", "power": 2})
    assert squared(inputs).loss_N.item() == -4.5
    with pytest.raises(ConfigError, match="Did you mean 'power'"):
        bind_part(policy_losses, "algorithm.loss", {"name": "tests_power", "powr": 2})


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
        ("abs", 0.5, 0.5),
        ("abs", -0.5, 0.5),
        ("k3", 0.0, 0.0),
        ("k3", math.log(2), 0.5 + math.log(2) - 1),
        ("k3", -math.log(2), 2 - math.log(2) - 1),
        ("k3", -15.0, 10.0),
        ("k3", -1e4, 10.0),
        ("k3", 1e4, 10.0),
        ("k1+", -0.5, -0.5),
        ("abs+", -0.5, 0.5),
        ("k2+", -0.5, 0.125),
        ("k3+", -math.log(2), 2 - math.log(2) - 1),
        ("k3+", 30.0, 10.0),
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


@pytest.mark.parametrize(
    ("name", "difference", "slope"),
    [
        ("k1", -0.5, 1.0),
        ("abs", 0.5, 1.0),
        ("abs", -0.5, -1.0),
        ("k2", -0.5, -0.5),
        ("k3", math.log(2), 0.5),  # 1 - e^-d
        ("k3", -math.log(2), -1.0),
        ("k3", 25.0, 0.0),  # beyond its bounds
        ("k3", -25.0, 0.0),
    ],
)
def test_kl_gradients_by_hand(name: str, difference: float, slope: float) -> None:
    policy_N = torch.tensor([difference], dtype=torch.float64, requires_grad=True)
    reference_N = torch.zeros(1, dtype=torch.float64)
    assert gradient(kl_estimators.get(name)(policy_N, reference_N), policy_N) == pytest.approx([slope])


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3"])
def test_a_plus_keeps_the_value_and_takes_the_gradient_of_k2(name: str) -> None:
    differences = [-1e4, -25.0, -2.0, -0.5, 0.0, 0.5, 2.0, 25.0, 1e4]
    policy_N = torch.tensor(differences, dtype=torch.float64, requires_grad=True)
    reference_N = torch.zeros(len(differences), dtype=torch.float64)
    plain_N = kl_estimators.get(name)(policy_N, reference_N)
    mixed_N = kl_estimators.get(f"{name}+")(policy_N, reference_N)
    assert mixed_N.tolist() == pytest.approx(plain_N.tolist())
    assert gradient(mixed_N, policy_N) == differences


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3"])
def test_a_plus_keeps_the_value_exactly_in_single_precision(name: str) -> None:
    policy_N, reference_N = torch.tensor([1e4, -300.0, 3e-5]), torch.tensor([0.0, -0.1, 1e-6])
    plain_N = kl_estimators.get(name)(policy_N, reference_N)
    assert kl_estimators.get(f"{name}+")(policy_N, reference_N).tolist() == plain_N.tolist()


def test_on_average_a_plus_has_the_gradient_of_the_divergence_and_k1_has_none() -> None:
    logits = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64).log()
    policy = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)

    def average(name: str) -> Tensor:
        weights = policy.detach().exp()
        (found,) = torch.autograd.grad(
            (weights * kl_estimators.get(name)(policy, reference)).sum(), logits, retain_graph=True
        )
        return found

    assert all(torch.allclose(average(name), exact) for name in ("k1+", "abs+", "k2", "k2+", "k3+"))
    assert torch.allclose(average("k1"), torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert not torch.allclose(average("k3"), exact)


def test_k3_is_never_negative_in_single_precision() -> None:
    policy_N = torch.linspace(-2e-3, 2e-3, 4001)
    values_N = kl_estimators.get("k3")(policy_N, torch.zeros_like(policy_N))
    assert values_N.min().item() >= 0
    assert torch.allclose(values_N, 0.5 * policy_N**2, rtol=1e-2, atol=1e-11)


@pytest.mark.parametrize(
    ("observed", "num_trajectories", "coefficient"),
    [
        pytest.param(0.1, 100, 0.5, id="on target"),
        pytest.param(0.11, 100, 0.505, id="10 % too far, a tenth of the horizon"),
        pytest.param(0.09, 100, 0.495, id="10 % too close"),
        pytest.param(0.2, 100, 0.51, id="twice the target counts as 20 %"),
        pytest.param(50.0, 100, 0.51, id="any excess counts as 20 %"),
        pytest.param(0.0, 100, 0.49, id="none at all counts as -20 %"),
        pytest.param(-3.0, 100, 0.49, id="k1 below zero counts as -20 %"),
        pytest.param(0.2, 1000, 0.6, id="the whole horizon"),
        pytest.param(0.2, 0, 0.5, id="no trajectories"),
    ],
)
def test_the_adapted_coefficient_by_hand(observed: float, num_trajectories: int, coefficient: float) -> None:
    found = adapted_coefficient(0.5, observed=observed, target=0.1, horizon=1000, num_trajectories=num_trajectories)
    assert found == pytest.approx(coefficient)


@pytest.mark.parametrize("start", [1e-3, 1.0])
def test_the_adapted_coefficient_moves_the_divergence_to_the_target(start: float) -> None:
    # A run whose divergence falls as the coefficient rises: KL = .01 / beta, so the target .1 asks for beta = .1.
    coefficient, misses = start, []
    for _ in range(300):
        divergence = 0.01 / coefficient
        misses.append(abs(math.log(divergence / 0.1)))
        coefficient = adapted_coefficient(
            coefficient, observed=divergence, target=0.1, horizon=1000, num_trajectories=100
        )
    assert all(later <= earlier for earlier, later in itertools.pairwise(misses))
    assert coefficient == pytest.approx(0.1, rel=1e-3)


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


@settings(deadline=None, max_examples=cases(40))
@given(layouts(), st.sampled_from([*MEANS, "trajectory-mean-token-sum"]))
def test_weights_agree_with_counting(layout: tuple[list[list[int]], list[bool]], name: str) -> None:
    trajectories, credited = layout
    step_N, trajectory_N = owners(trajectories)
    found = aggregations.get(name)(torch.tensor(credited, dtype=torch.bool), step_N, trajectory_N)
    assert found.tolist() == pytest.approx(reference_weights(name, credited, step_N.tolist(), trajectory_N.tolist()))


@settings(deadline=None, max_examples=cases(40))
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


@settings(deadline=None, max_examples=cases(40))
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=6))
def test_trajectory_mean_weighs_every_trajectory_the_same_however_many_steps_it_has(
    trajectories: list[list[int]],
) -> None:
    step_N, trajectory_N = owners(trajectories)
    everywhere_N = torch.ones(len(step_N), dtype=torch.bool)
    weights_N = aggregations.get("trajectory-mean-token-mean")(everywhere_N, step_N, trajectory_N)
    weight_R = torch.zeros(len(trajectories), dtype=torch.float64).index_add(0, trajectory_N, weights_N)
    assert weight_R.tolist() == pytest.approx([1 / len(trajectories)] * len(trajectories))


# --- a constant divisor --------------------------------------------------------------------------------------------


def sum_norm(credited: list[bool], divisor: float) -> list[float]:
    weights: list[float] = aggregations.get("token-sum-norm")(
        torch.tensor(credited, dtype=torch.bool), STEP_N, TRAJECTORY_N, divisor=divisor
    ).tolist()
    return weights


def test_token_sum_norm_divides_by_a_constant_and_the_trajectories_that_count() -> None:
    assert sum_norm([True] * 4, divisor=4.0) == [1 / 8] * 4
    assert sum_norm([True] * 4, divisor=0.5) == [1.0] * 4


def test_token_sum_norm_leaves_out_tokens_without_credit_and_trajectories_without_any() -> None:
    assert sum_norm([True, False, True, True], divisor=4.0) == [1 / 8, 0.0, 1 / 8, 1 / 8]
    assert sum_norm([True, False, True, False], divisor=4.0) == [1 / 4, 0.0, 1 / 4, 0.0]
    assert sum_norm([False] * 4, divisor=4.0) == [0.0] * 4
    nothing = torch.zeros(0, dtype=torch.long)
    assert aggregations.get("token-sum-norm")(nothing.bool(), nothing, nothing, divisor=4.0).tolist() == []


@pytest.mark.parametrize("divisor", [0, 0.0, -3.0])
def test_token_sum_norm_refuses_a_divisor_that_is_not_above_zero(divisor: float) -> None:
    with pytest.raises(ValueError, match="needs a divisor above 0, found"):
        sum_norm([True] * 4, divisor=divisor)


@settings(deadline=None, max_examples=cases(30))
@given(layouts(), st.floats(0.1, 1000.0))
def test_token_sum_norm_weighs_a_token_the_same_however_long_its_answer(
    layout: tuple[list[list[int]], list[bool]], divisor: float
) -> None:
    trajectories, credited = layout
    step_N, trajectory_N = owners(trajectories)
    credited_N = torch.tensor(credited, dtype=torch.bool)
    weights_N = aggregations.get("token-sum-norm")(credited_N, step_N, trajectory_N, divisor=divisor)
    num_alive = len({member for member, alive in zip(trajectory_N.tolist(), credited, strict=True) if alive})
    assert weights_N.tolist() == pytest.approx([float(alive) / (divisor * max(1, num_alive)) for alive in credited])


@aggregations.register("tests_first_steps")
def first_steps(credited_N: Tensor, step_N: Tensor, trajectory_N: Tensor, *, num_steps: int = 1) -> Tensor:
    return (credited_N & (step_N < num_steps)).double()


def test_a_users_aggregation_takes_its_arguments_from_the_configuration() -> None:
    everywhere_N = torch.ones(4, dtype=torch.bool)
    key = "algorithm.aggregation"
    first = bind_part(aggregations, key, {"name": "tests_first_steps"})
    assert first(everywhere_N, STEP_N, TRAJECTORY_N).tolist() == [1.0, 0.0, 0.0, 0.0]
    two = bind_part(aggregations, key, {"name": "tests_first_steps", "num_steps": 2})
    assert two(everywhere_N, STEP_N, TRAJECTORY_N).tolist() == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(ConfigError, match="takes no argument 'steps'"):
        bind_part(aggregations, key, {"name": "tests_first_steps", "steps": 2})
