"""Episodes that branch: each branch is a chain of its own that leads to the outcome. Numbers by hand.

The episode of most tests: step 1 and step 2 both continue step 0, and step 3 is a conversation of its own.

    0 --- 1
      \\-- 2
    3
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.algorithms import StepTable, estimators
from agent_r1.algorithms.branches import mean_of_continuations, token_parents, tree_scan
from agent_r1.algorithms.estimators import group, leave_one_out, return_to_go, step_gae, step_group, token_gae
from agent_r1.types import Action, Observation, Step, StopReason, Trajectory
from tests.helpers.fuzzing import cases
from tests.helpers.hand_made import experience_of, make_trajectory
from tests.helpers.ragged import Ragged, assert_close, batches, discounts, eighths, table_of

PARENTS = (-1, 0, 0, -1)


def step(reward: float = 0.0, *, parent: int | None = None, tokens: int = 1) -> Step:
    action = tuple(range(tokens))
    return Step(
        observation=Observation(token_ids=(7,)),
        prompt_ids=(7,),
        action=Action(text="", token_ids=action),
        action_ids=action,
        rollout_logprobs=(-0.5,) * tokens,
        reward=reward,
        done=False,
        policy_versions=(0,) * tokens,
        parent=parent,
    )


def branched(outcome: float, rewards: tuple[float, ...] = (0, 0.2, 0, 0), tokens: int = 1) -> Trajectory:
    steps = [step(reward, parent=parent, tokens=tokens) for reward, parent in zip(rewards, PARENTS, strict=True)]
    return make_trajectory(steps, outcome)


def table(*trajectories: Trajectory, values: list[float] | None = None, bootstrap: bool = False) -> StepTable:
    made = experience_of(*trajectories, bootstrap=bootstrap).table
    return made if values is None else replace(made, values_N=torch.tensor(values, dtype=torch.float64))


def test_the_outcome_ends_every_branch_and_counts_once_in_the_return() -> None:
    made = table(branched(1.0))
    assert made.parent_S is not None
    assert made.branch_rewards_S is not None
    assert made.parent_S.tolist() == [-1, 0, 0, -1]
    assert_close(made.rewards_S, [0, 0.2, 0, 1])
    assert_close(made.branch_rewards_S, [0, 1, 1, 0])
    assert_close(made.returns_R, [1.2])


def test_parents_of_the_second_trajectory_are_counted_in_the_table() -> None:
    made = table(make_trajectory([step(), step()], 0.0), branched(1.0))
    assert made.parent_S is not None
    assert made.parent_S.tolist() == [-1, 0, -1, 2, 2, -1]
    assert made.step_index_S.tolist() == [0, 1, 0, 1, 1, 0]


def test_a_batch_without_branches_has_none() -> None:
    made = table(make_trajectory([step(), step()], 1.0))
    assert made.parent_S is None
    assert made.branch_rewards_S is None


def test_a_return_to_go_is_the_mean_of_the_branches_that_continue_a_step() -> None:
    """Behind step 0: .5 * mean(1.2, 1) = .55."""
    credit = return_to_go(table(branched(1.0)), gamma=0.5)
    assert_close(credit.advantages_N, [0.55, 1.2, 1.0, 1.0])


def test_grpo_gives_every_branch_the_advantage_of_its_trajectory() -> None:
    batch = table(branched(1.0, (0, 0, 0, 0), tokens=2), make_trajectory([step(), step()], 0.0))
    credit = group(batch)
    assert_close(credit.advantages_N, [0.5**0.5] * 8 + [-(0.5**0.5)] * 2, 1e-5)
    assert credit.credited_N.all()


def test_the_weight_of_a_return_does_not_depend_on_the_number_of_branches() -> None:
    """Returns (1, 0): the outcome of the first counts once, although three branches end with it."""
    batch = table(branched(1.0, (0, 0, 0, 0)), make_trajectory([step()], 0.0))
    assert_close(leave_one_out(batch).advantages_N, [1, 1, 1, 1, -1])


def test_step_gae_runs_along_each_branch() -> None:
    """Errors: (0 + .5 * mean(.6, .2) - .4, 1.2 - .6, 1 - .2, 1 - .8) = (-.2, .6, .8, .2); step 0 accumulates
    -.2 + .25 * mean(.6, .8)."""
    batch = table(branched(1.0), values=[0.4, 0.6, 0.2, 0.8])
    credit = step_gae(batch, gamma=0.5, lam=0.5, whitened=False)
    assert_close(credit.advantages_N, [-0.025, 0.6, 0.8, 0.2])
    assert credit.returns_N is not None
    assert credit.observed_N is not None
    assert_close(credit.returns_N, [0.375, 1.2, 1.0, 1.0])
    assert_close(credit.observed_N, [0.55, 1.2, 1.0, 1.0])


def test_token_gae_enters_a_branch_from_the_last_token_of_the_step_it_continues() -> None:
    """Two tokens each, gamma .5, lambda 1, no values: 1 at the end of a branch is .5 a token earlier."""
    batch = table(branched(1.0, (0, 0, 0, 0), tokens=2), values=[0.0] * 8)
    credit = token_gae(batch, gamma=0.5, lam=1.0, whitened=False)
    assert_close(credit.advantages_N, [0.125, 0.25, 0.5, 1, 0.5, 1, 0.5, 1])


def test_a_bootstrapped_trajectory_has_the_value_after_every_branch() -> None:
    """It was cut, so no branch has the outcome; the value of the next state stands for it in each."""
    cut = replace(branched(1.0), stop_reason=StopReason.CONTEXT_FULL, next_prompt_ids=(7, 8))
    batch = replace(table(cut, values=[0.0] * 4, bootstrap=True), bootstrap_R=torch.tensor([0.8]))
    credit = step_gae(batch, gamma=0.5, lam=1.0, whitened=False)
    assert_close(credit.advantages_N, [0.25, 0.6, 0.4, 0.4], 1e-6)


def test_step_group_compares_with_other_members_at_the_same_depth_only() -> None:
    """Depth 0: steps 0 and 3 (1 each) against 0; depth 1: steps 1 and 2 against the other's second step, 0."""
    batch = table(branched(1.0, (0, 0, 0, 0)), make_trajectory([step(), step()], 0.0))
    credit = step_group(batch)
    assert_close(credit.advantages_N, [1, 1, 1, 1, -1, -1])


def test_step_group_counts_a_member_once_however_many_branches_it_has() -> None:
    """Returns-to-go at depth 0: (1.3, 1) with the mean 1.15, 0 and .5; at depth 1: (1.6, 1) with the mean 1.3, 0
    and .5. Each is compared with the mean over the two other members."""
    others = [make_trajectory([step(), step()], outcome) for outcome in (0.0, 0.5)]
    credit = step_group(table(branched(1.0, (0, 0.6, 0, 0)), *others))
    assert_close(credit.advantages_N, [1.05, 1.35, 0.75, 0.75, -0.825, -0.9, -0.075, -0.15])


@pytest.mark.whole
@settings(max_examples=cases(40), deadline=None)
@given(batches(with_values=True))
def test_branches_without_forks_are_the_plain_table(batch: list[Ragged]) -> None:
    """Every step continues the one before it: all estimators agree with the table that says nothing of parents."""
    plain = table_of(batch)
    parents = [index - 1 if t else -1 for index, t in enumerate(plain.step_index_S.tolist())]
    told = replace(
        plain, parent_S=torch.tensor(parents), branch_rewards_S=torch.zeros(len(parents), dtype=torch.float64)
    )
    for name in estimators.names():
        expected, found = estimators.get(name)(plain), estimators.get(name)(told)
        assert_close(found.advantages_N, expected.advantages_N.tolist(), 1e-9)
        assert torch.equal(found.credited_N, expected.credited_N)


def test_the_reward_of_empty_steps_before_any_token_falls_on_the_first_one() -> None:
    """Steps 0 and 1 are empty; 2 and 3 continue step 1."""
    lengths, parents, rewards = (0, 0, 2, 1), (-1, 0, 1, 1), (0.3, 0.2, 0, 0)
    steps = [step(r, parent=p, tokens=n) for r, p, n in zip(rewards, parents, lengths, strict=True)]
    assert_close(table(make_trajectory(steps, 0.0)).per_token().rewards_S, [0.5, 0, 0])


def test_tokens_pass_over_steps_without_any() -> None:
    assert token_parents(torch.tensor([-1, 0, 1]), torch.tensor([1, 0, 2])).tolist() == [-1, 0, 1]
    batch = table(make_trajectory([step(parent=-1), step(0.3, parent=0, tokens=0), step(parent=1)], 1.0))
    assert_close(batch.per_token().rewards_S, [0.3, 1.0])


def test_a_step_without_tokens_has_the_value_of_what_continues_it() -> None:
    """Step 1 ends a branch, so nothing is left to earn; steps 3 and 4, of .2 and .4, continue step 2."""
    lengths, parents = (1, 0, 0, 1, 1), (-1, 0, 0, 2, 2)
    steps = [step(parent=parent, tokens=length) for length, parent in zip(lengths, parents, strict=True)]
    assert_close(table(make_trajectory(steps, 1.0), values=[0.9, 0.2, 0.4]).step_values_S(), [0.9, 0, 0.3, 0.2, 0.4])


def test_an_empty_table_has_no_branches() -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    assert tree_scan(torch.zeros(0), 0.5, nothing).tolist() == []
    assert mean_of_continuations(torch.zeros(0), nothing, torch.zeros(0)).tolist() == []


@pytest.mark.parametrize("parent", [1, 5, -2])
def test_a_step_continues_an_earlier_one(parent: int) -> None:
    with pytest.raises(ValueError, match="parent"):
        table(make_trajectory([step(), step(parent=parent)], 1.0))


# --- random trees against a recursion written out -------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> Trajectory:
    """An episode in which every step continues any earlier one, or none."""
    parents = [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(1, 7)))]
    steps = [step(draw(eighths), parent=parent, tokens=draw(st.integers(1, 3))) for parent in parents]
    return make_trajectory(steps, draw(eighths))


def parents_of(episode: Trajectory) -> list[int]:
    return [-1 if taken.parent is None else taken.parent for taken in episode.steps]


def ending_rewards(episode: Trajectory) -> list[float]:
    """What each step earned, with the outcome at the end of every branch."""
    continued = set(parents_of(episode))
    return [
        taken.reward + (0.0 if index in continued else episode.outcome_reward)
        for index, taken in enumerate(episode.steps)
    ]


def slow_sums(parents: list[int], inputs: list[float], decay: float) -> list[float]:
    sums = list(inputs)
    for index in reversed(range(len(sums))):
        behind = [sums[other] for other, parent in enumerate(parents) if parent == index]
        sums[index] += decay * fmean(behind) if behind else 0.0
    return sums


def slow_gae(parents: list[int], rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    errors = []
    for index, (reward, value) in enumerate(zip(rewards, values, strict=True)):
        behind = [values[other] for other, parent in enumerate(parents) if parent == index]
        errors.append(reward + (gamma * fmean(behind) if behind else 0.0) - value)
    return slow_sums(parents, errors, gamma * lam)


def as_tokens(episode: Trajectory) -> tuple[list[int], list[float]]:
    """Parents and rewards of an episode's tokens: each step is a chain, whose last token has its reward."""
    ends = list(accumulate(len(taken.action_ids) for taken in episode.steps))
    parents, rewards = [], []
    for taken, parent, reward in zip(episode.steps, parents_of(episode), ending_rewards(episode), strict=True):
        first, length = len(parents), len(taken.action_ids)
        parents += [ends[parent] - 1 if parent >= 0 else -1, *range(first, first + length - 1)]
        rewards += [*[0.0] * (length - 1), reward]
    return parents, rewards


def over_tokens(episode: Trajectory, numbers: list[float]) -> list[float]:
    return [number for taken, number in zip(episode.steps, numbers, strict=True) for _ in taken.action_ids]


@settings(max_examples=cases(40), deadline=None)
@given(st.lists(trees(), min_size=1, max_size=4), discounts, discounts, st.integers(0, 999))
def test_returns_and_gae_of_random_trees_agree_with_a_recursion(
    episodes: list[Trajectory], gamma: float, lam: float, seed: int
) -> None:
    rng = random.Random(seed)
    values = [[rng.gauss(0, 1) for taken in episode.steps for _ in taken.action_ids] for episode in episodes]
    batch = table(*episodes, values=[value for own in values for value in own])
    by_step, by_token, togo = list[float](), list[float](), list[float]()
    for episode, own in zip(episodes, values, strict=True):
        parents, rewards = parents_of(episode), ending_rewards(episode)
        ends = accumulate(len(taken.action_ids) for taken in episode.steps)
        starts = [own[end - len(taken.action_ids)] for taken, end in zip(episode.steps, ends, strict=True)]
        by_step += over_tokens(episode, slow_gae(parents, rewards, starts, gamma, lam))
        by_token += slow_gae(*as_tokens(episode), own, gamma, lam)
        togo += over_tokens(episode, slow_sums(parents, rewards, gamma))
    assert_close(step_gae(batch, gamma=gamma, lam=lam, whitened=False).advantages_N, by_step)
    assert_close(token_gae(batch, gamma=gamma, lam=lam, whitened=False).advantages_N, by_token)
    assert_close(return_to_go(batch, gamma=gamma).advantages_N, togo)


@settings(max_examples=cases(40), deadline=None)
@given(st.lists(trees(), min_size=2, max_size=4), discounts)
def test_step_group_of_random_trees_agrees_with_a_mean_over_members(episodes: list[Trajectory], gamma: float) -> None:
    members = []
    for episode in episodes:
        parents, depths = parents_of(episode), list[int]()
        for parent in parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        members.append((depths, slow_sums(parents, ending_rewards(episode), gamma)))
    expected = []
    for number, (episode, (depths, togo)) in enumerate(zip(episodes, members, strict=True)):
        others, advantages = [*members[:number], *members[number + 1 :]], []
        for depth, earned in zip(depths, togo, strict=True):
            means = [
                fmean(x for d, x in zip(*other, strict=True) if d == depth) for other in others if depth in other[0]
            ]
            advantages.append(earned - (fmean(means) if means else 0.0))
        expected += over_tokens(episode, advantages)
    assert_close(step_group(table(*episodes), gamma=gamma).advantages_N, expected)
