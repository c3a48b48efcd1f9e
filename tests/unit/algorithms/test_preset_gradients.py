"""Which way every preset pushes, against the true gradient, by exact enumeration.

The stopping problem with turns of several tokens: at each turn the policy goes on (a turn of some tokens, which earns
something) or stops (a turn of other length, which earns something else); after the last turn the episode is over. The
first token of a turn is the decision, whose logit is the parameter; the other tokens follow from it. All ways a group
may go are enumerated, and each goes through the preset's own estimator, loss and aggregation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agent_r1.algorithms import LossInputs, StepTable
from agent_r1.algorithms.algorithm import Algorithm, bind_algorithm
from agent_r1.config import load_config, presets
from agent_r1.types import Observation

PRESETS = sorted(presets("algorithm"))
UNBIASED = ("reinforce", "remax", "rloo", "step_grpo")
"""Their documentation promises the true gradient, up to the constant divisor."""
BIASED = {
    "cispo": (0.36, 2.90, 0.73),
    "dapo": (0.36, 2.90, 0.73),
    "gigpo": (0.32, 9.25, 1.42),
    "grpo": (0.31, 7.42, 0.71),
    "gspo": (0.31, 7.42, 0.71),
    "ppo": (-2.62, 6.16, 2.27),
    "pspo": (-0.40, 15.85, 2.27),
    "reinforce_pp": (-2.62, 6.16, 2.27),
    "reinforce_pp_baseline": (-0.37, 6.36, 0.97),
    "steppo": (-0.40, 15.85, 2.27),
}
"""By problem: the push over the true gradient, times the divisor, with groups of two. The same number three times would
be no bias; a negative one is the wrong way."""
DIVISOR = 7
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Stopping:
    """At most `turns` decisions, each to go on with probability `q`."""

    go_tokens: int
    go_reward: float
    stop_tokens: int
    stop_reward: float
    q: float = 0.5
    turns: int = 2

    def paths(self) -> Iterator[tuple[float, tuple[bool, ...]]]:
        """How an episode may go: its probability, and whether it goes on, by turn."""
        for num_on in range(self.turns):
            yield self.q**num_on * (1 - self.q), (True,) * num_on + (False,)
        yield self.q**self.turns, (True,) * self.turns

    def gradient(self) -> float:
        """How the expected return changes with the logit of going on, the same one at every turn."""
        worth, gradient = 0.0, 0.0
        for _ in range(self.turns):  # from the last turn to the first
            go, stop = self.go_reward + worth, self.stop_reward
            gradient = self.q * gradient + self.q * (1 - self.q) * (go - stop)
            worth = self.q * go + (1 - self.q) * stop
        return gradient


LONG_TURNS = Stopping(go_tokens=20, go_reward=0.10, stop_tokens=1, stop_reward=0.5)
"""Long turns that earn little: it pays to stop."""
SHORT_TURNS = Stopping(go_tokens=1, go_reward=0.3, stop_tokens=20, stop_reward=0.5)
"""Short turns that earn much: it pays to go on."""
PROBLEMS = {"long turns": LONG_TURNS, "short turns": SHORT_TURNS, "uneven": Stopping(3, 0.45, 8, 0.3, q=0.3, turns=3)}


def as_table(problem: Stopping, groups: list[tuple[tuple[bool, ...], ...]]) -> StepTable:
    """Groups of episodes, with a critic that says 0 and a greedy rollout that earned 0.4."""
    episodes = [(number, path) for number, group in enumerate(groups) for path in group]
    turns = [(index, on) for index, (_, path) in enumerate(episodes) for on in path]
    places = [place for _, path in episodes for place in range(len(path))]
    lengths = torch.tensor([problem.go_tokens if on else problem.stop_tokens for _, on in turns])
    rewards = [problem.go_reward if on else problem.stop_reward for _, on in turns]
    return StepTable(
        rewards_S=torch.tensor(rewards, dtype=torch.float64),
        lengths_S=lengths,
        trajectory_S=torch.tensor([index for index, _ in turns]),
        group_R=torch.tensor([number for number, _ in episodes]),
        values_N=torch.zeros(int(lengths.sum()), dtype=torch.float64),
        bootstrap_R=torch.zeros(len(episodes), dtype=torch.float64),
        greedy_returns_R=torch.full((len(episodes),), 0.4, dtype=torch.float64),
        observations_S=tuple(Observation(text=str(place)) for place in places),
    )


def pushed(problem: Stopping, algorithm: Algorithm, groups: list[tuple[tuple[bool, ...], ...]]) -> float:
    """How a batch of these groups moves the logit: minus the gradient of the loss."""
    table = as_table(problem, groups)
    on_S = torch.tensor([on for group in groups for path in group for on in path])
    logit = torch.tensor(math.log(problem.q / (1 - problem.q)), dtype=torch.float64, requires_grad=True)
    decided_S = torch.nn.functional.logsigmoid(torch.where(on_S, logit, -logit))
    logprobs_N = torch.zeros(table.num_tokens, dtype=torch.float64)
    logprobs_N = logprobs_N.index_put((table.first_token_S,), decided_S)
    credit = algorithm.estimate(table)
    losses = algorithm.loss(
        LossInputs(
            policy_logprobs_N=logprobs_N,
            old_logprobs_N=logprobs_N.detach(),
            advantages_N=credit.advantages_N,
            step_N=table.step_of_token_N,
        )
    )
    weights_N: Tensor = algorithm.aggregate(credit.credited_N, table.step_of_token_N, table.trajectory_of_token_N)
    loss = (weights_N * losses.loss_N.masked_fill(weights_N == 0, 0.0)).sum()
    (gradient,) = torch.autograd.grad(loss, logit, allow_unused=True)
    return 0.0 if gradient is None else -float(gradient)


@cache
def bound(preset: str) -> Algorithm:
    overrides = [f"algorithm={preset}", "model.path=none", f"rollout.max_tokens={DIVISOR}"]
    return bind_algorithm(load_config(None, overrides).algorithm)


def expected_push(problem: Stopping, preset: str, *, size: int = 2, num_groups: int = 1) -> float:
    """The mean over everything a batch may turn out to be."""
    total = 0.0
    for ways in itertools.product(list(problem.paths()), repeat=size * num_groups):
        probability = math.prod(way[0] for way in ways)
        paths = [way[1] for way in ways]
        groups = [tuple(paths[first : first + size]) for first in range(0, len(paths), size)]
        total += probability * pushed(problem, bound(preset), groups)
    return total


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_stopping_problem_has_the_gradient_it_says(problem: Stopping) -> None:
    """Against the difference quotient of the expected return."""

    def expected(shift: float) -> float:
        logit = math.log(problem.q / (1 - problem.q)) + shift
        moved = Stopping(**{**problem.__dict__, "q": 1 / (1 + math.exp(-logit))})
        earned = {True: problem.go_reward, False: problem.stop_reward}
        return sum(probability * sum(earned[on] for on in path) for probability, path in moved.paths())

    assert problem.gradient() == pytest.approx((expected(1e-5) - expected(-1e-5)) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("preset", UNBIASED)
def test_presets_that_promise_it_have_the_true_gradient(preset: str, problem: Stopping, size: int) -> None:
    assert DIVISOR * expected_push(problem, preset, size=size) == pytest.approx(problem.gradient(), rel=1e-9)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_dr_grpo_has_the_true_gradient_times_what_its_group_size_costs(problem: Stopping, size: int) -> None:
    found = DIVISOR * expected_push(problem, "dr_grpo", size=size)
    assert found == pytest.approx((size - 1) / size * problem.gradient(), rel=1e-9)


@pytest.mark.whole
@pytest.mark.parametrize("preset", UNBIASED)
def test_groups_without_spread_change_the_size_of_the_push_and_not_its_direction(preset: str) -> None:
    """Two groups of one task in a batch: a group in which all earn the same leaves the mean, so the rest weighs more.
    Each group's share does not depend on its own actions, and the mean is the true gradient times a constant."""
    factors = [
        DIVISOR * expected_push(problem, preset, num_groups=2) / problem.gradient()
        for problem in (LONG_TURNS, SHORT_TURNS)
    ]
    assert factors[0] == pytest.approx(factors[1], rel=1e-9)
    assert 1.0 - 1e-9 <= factors[0] < 1.5


@pytest.mark.parametrize("preset", BIASED)
def test_presets_that_keep_their_papers_weights_are_biased_as_documented(preset: str) -> None:
    found = [DIVISOR * expected_push(problem, preset) / problem.gradient() for problem in PROBLEMS.values()]
    assert found == pytest.approx(BIASED[preset], abs=0.005)


def test_every_preset_is_unbiased_or_its_bias_is_documented() -> None:
    assert set(PRESETS) == {*UNBIASED, *BIASED, "dr_grpo"}
    table = (ROOT / "docs" / "algorithms.md").read_text()
    for preset, ratios in BIASED.items():
        assert f"| `{preset}` | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |" in table


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_pushes_in_the_true_direction_when_all_turns_are_as_long_and_earn_at_the_end(preset: str) -> None:
    """One decision of one token: the bandit on which all of them must agree."""
    problem = Stopping(go_tokens=1, go_reward=1.0, stop_tokens=1, stop_reward=0.0, q=0.3, turns=1)
    assert expected_push(problem, preset, size=3) > 0
