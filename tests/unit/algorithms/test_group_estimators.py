"""Advantage estimators that compare the members of a group: numbers by hand, slow references, and no hidden bias.

Shape letters as in `agent_r1.algorithms.table`: `_N` action tokens, `_S` steps, `_R` trajectories.
"""

from __future__ import annotations

import itertools
import math
import pathlib
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.algorithms.estimators import (
    Estimator,
    anchor_clusters,
    gigpo,
    group,
    group_statistics,
    group_whitened,
    leave_one_out,
    step_group,
)
from agent_r1.types import Observation
from tests.helpers.fuzzing import cases
from tests.helpers.ragged import (
    PerStep,
    Ragged,
    assert_close,
    assert_credit,
    batches,
    charged,
    discounts,
    over_tokens,
    reference_spread,
    reference_togo,
    reference_whiten,
    table_of,
)

COMPARING: dict[str, Estimator] = {
    "group": group,
    "leave_one_out": leave_one_out,
    "group_whitened": group_whitened,
    "step_group": step_group,
    "gigpo": partial(gigpo, gamma=1.0),
}
comparing = pytest.mark.parametrize("estimate", COMPARING.values(), ids=COMPARING)
PER_TRAJECTORY = ("group", "leave_one_out", "group_whitened")
ROOT_HALF = math.sqrt(0.5)

# --- slow references -----------------------------------------------------------------------------------------------


def peers_of(batch: list[Ragged], i: int) -> list[int]:
    """The members of i's group, i among them."""
    return [k for k, t in enumerate(batch) if t.group == batch[i].group]


def reference_has_spread(batch: list[Ragged], i: int) -> bool:
    """The members of i's group earned different sums, whatever their tokens were charged."""
    return reference_spread([sum(batch[k].task_rewards) for k in peers_of(batch, i)])


def per_trajectory(batch: list[Ragged], advantage: Callable[[float, list[int]], float]) -> PerStep:
    """`advantage(return, peers)` on all steps of a trajectory whose group has spread."""
    result: PerStep = []
    for i, t in enumerate(batch):
        alive = reference_has_spread(batch, i)
        result.append([advantage(sum(t.rewards), peers_of(batch, i)) if alive else None] * len(t.rewards))
    return result


def reference_group(batch: list[Ragged], normalise_std: bool, epsilon: float = 1e-6) -> PerStep:
    def advantage(earned: float, peers: list[int]) -> float:
        returns = [sum(batch[k].rewards) for k in peers]
        return (earned - statistics.fmean(returns)) / (statistics.stdev(returns) + epsilon if normalise_std else 1.0)

    return per_trajectory(batch, advantage)


def reference_leave_one_out(batch: list[Ragged]) -> PerStep:
    def advantage(earned: float, peers: list[int]) -> float:
        others = (sum(sum(batch[k].rewards) for k in peers) - earned) / (len(peers) - 1)
        return earned - others

    return per_trajectory(batch, advantage)


def reference_group_whitened(batch: list[Ragged]) -> list[float | None]:
    """By token."""
    plain_N = over_tokens(batch, reference_group(batch, normalise_std=False))
    white = iter(reference_whiten([number for number in plain_N if number is not None]))
    return [None if number is None else next(white) for number in plain_N]


def reference_step_group(batch: list[Ragged], gamma: float) -> PerStep:
    togo = [reference_togo(t.rewards, gamma) for t in batch]
    task_togo = [reference_togo(t.task_rewards, gamma) for t in batch]
    result: PerStep = []
    for i, own in enumerate(togo):
        peers = peers_of(batch, i)
        advantages: list[float | None] = []
        for t, earned in enumerate(own):
            others = [togo[k][t] for k in peers if k != i and len(togo[k]) > t]
            advantages.append(earned - (statistics.fmean(others) if others else 0.0))
        # Members are compared in all they earned and, step by step, in what was left to earn.
        longest = max(len(togo[k]) for k in peers)
        left = [[task_togo[k][t] for k in peers if len(togo[k]) > t] for t in range(longest)]
        alive = len(peers) == 1 or reference_has_spread(batch, i) or any(map(reference_spread, left))
        result.append(advantages if alive else [None] * len(own))
    return result


def reference_gigpo(batch: list[Ragged], gamma: float, step_weight: float, mean_norm: bool) -> PerStep:
    episodes = reference_group(batch, normalise_std=not mean_norm)
    togo = [reference_togo(t.rewards, gamma) for t in batch]
    task_togo = [reference_togo(t.task_rewards, gamma) for t in batch]
    result: PerStep = []
    for i, own in enumerate(batch):
        row: list[float | None] = []
        for t, state in enumerate(own.states):
            cluster = [(k, s) for k in peers_of(batch, i) for s, seen in enumerate(batch[k].states) if seen == state]
            numbers = [togo[k][s] for k, s in cluster]
            several = len({k for k, _ in cluster}) > 1
            compared = several and reference_spread([task_togo[k][s] for k, s in cluster])
            step = togo[i][t] - statistics.fmean(numbers) if compared else 0.0
            if compared and not mean_norm:
                step /= statistics.stdev(numbers) + 1e-6
            episode = episodes[i][t]
            row.append((episode or 0.0) + step_weight * step if compared or episode is not None else None)
        result.append(row)
    return result


@settings(deadline=None, max_examples=cases(30))
@given(batches(), st.booleans())
def test_group_agrees_with_the_reference(batch: list[Ragged], normalise_std: bool) -> None:
    credit = group(table_of(batch), normalise_std=normalise_std)
    assert_credit(credit, batch, reference_group(batch, normalise_std))


@settings(deadline=None, max_examples=cases(30))
@given(batches())
def test_leave_one_out_agrees_with_the_reference(batch: list[Ragged]) -> None:
    assert_credit(leave_one_out(table_of(batch)), batch, reference_leave_one_out(batch))


@settings(deadline=None, max_examples=cases(30))
@given(batches())
def test_group_whitened_agrees_with_the_reference(batch: list[Ragged]) -> None:
    credit = group_whitened(table_of(batch))
    expected = reference_group_whitened(batch)
    assert credit.credited_N.tolist() == [number is not None for number in expected]
    assert_close(credit.advantages_N, [number or 0.0 for number in expected], 1e-6)


@settings(deadline=None, max_examples=cases(30))
@given(batches(), discounts)
def test_step_group_agrees_with_the_reference(batch: list[Ragged], gamma: float) -> None:
    assert_credit(step_group(table_of(batch), gamma=gamma), batch, reference_step_group(batch, gamma))


@settings(deadline=None, max_examples=cases(30))
@given(batches(), discounts, st.sampled_from([0.0, 0.5, 2.0]), st.booleans())
def test_gigpo_agrees_with_the_reference(
    batch: list[Ragged], gamma: float, step_weight: float, mean_norm: bool
) -> None:
    credit = gigpo(table_of(batch), gamma=gamma, step_weight=step_weight, mean_norm=mean_norm)
    # Divided by a std near 0, rounding shows.
    assert_credit(credit, batch, reference_gigpo(batch, gamma, step_weight, mean_norm), 1e-6)


@settings(deadline=None, max_examples=cases(20))
@given(batches(), st.randoms(use_true_random=False))
@pytest.mark.parametrize("name", [name for name in COMPARING if name != "group_whitened"])
def test_a_group_has_the_same_credit_whatever_stands_around_it(
    name: str, batch: list[Ragged], rng: random.Random
) -> None:
    order = list(range(len(batch)))
    rng.shuffle(order)
    shuffled = [batch[i] for i in order]
    together = COMPARING[name](table_of(shuffled))
    starts = [0, *itertools.accumulate(t.num_tokens for t in shuffled)]
    for group_id in {t.group for t in batch}:
        alone = COMPARING[name](table_of([t for t in shuffled if t.group == group_id]))
        places = [n for i, t in enumerate(shuffled) if t.group == group_id for n in range(starts[i], starts[i + 1])]
        assert_close(together.advantages_N[places], alone.advantages_N.tolist(), 1e-6)
        assert together.credited_N[places].tolist() == alone.credited_N.tolist()


# --- by hand -------------------------------------------------------------------------------------------------------

RAGGED = [
    Ragged([0.5, 0.0, 0.5], [1, 0, 2], group=9),  # 1 in all
    Ragged([4.0], [1], group=2),
    Ragged([0.0], [3], group=9),  # 0
    Ragged([0.25, -0.25], [1, 1], group=9),  # 0
    Ragged([1.0, 1.0], [1, 1], group=2),  # 2
]
"""Two groups, neither together nor in order: returns (1, 0, 0) and (4, 2)."""


def test_group_by_hand() -> None:
    # Returns 1, 0, 0: mean 1/3, variance (4/9 + 1/9 + 1/9) / 2 = 1/3, std .57735: 2/3 / .57735 and -1/3 / .57735.
    # Returns 4, 2: mean 3, variance (1 + 1) / 1 = 2: 1 / 1.41421.
    credit = group(table_of(RAGGED), epsilon=0.0)
    high, low = 1.1547005, -0.5773503
    expected: PerStep = [[high] * 3, [ROOT_HALF], [low], [low] * 2, [-ROOT_HALF] * 2]
    assert_credit(credit, RAGGED, expected, 1e-6)
    assert credit.returns_N is None
    assert credit.valued_N is None


def test_group_adds_epsilon_to_the_std() -> None:
    # Mean .5, std .70711: .5 / (.70711 + .29289) = .5.
    batch = [Ragged([1.0], [1]), Ragged([0.0], [1])]
    assert_close(group(table_of(batch), epsilon=1 - ROOT_HALF).advantages_N, [0.5, -0.5])


def test_group_without_std_is_the_return_minus_the_mean() -> None:
    credit = group(table_of(RAGGED), normalise_std=False)
    assert_credit(credit, RAGGED, [[2 / 3] * 3, [1.0], [-1 / 3], [-1 / 3] * 2, [-1.0] * 2])


def test_leave_one_out_by_hand() -> None:
    # 1 - (0 + 0) / 2 = 1; 0 - (1 + 0) / 2 = -.5, twice; 4 - 2 = 2; 2 - 4 = -2.
    credit = leave_one_out(table_of(RAGGED))
    assert_credit(credit, RAGGED, [[1.0] * 3, [2.0], [-0.5], [-0.5] * 2, [-2.0] * 2])


def test_leave_one_out_is_the_deviation_times_n_over_n_minus_one() -> None:
    batch = [Ragged([number], [1]) for number in (3.0, -1.0, 0.5, 0.5)]
    deviations = group(table_of(batch), normalise_std=False).advantages_N
    assert_close(leave_one_out(table_of(batch)).advantages_N, (deviations * 4 / 3).tolist())


def test_group_whitened_by_hand() -> None:
    # Deviations by token: 2/3 three times, 1, -1/3 five times, -1 twice: sum 2 + 1 - 5/3 - 2 = -2/3 over 11 tokens,
    # mean -2/33. Squares: 4/9 * 3 + 1 + 1/9 * 5 + 2 = 44/9; less 11 (2/33)^2 = 4/99: 480/99; over 10: 16/33.
    credit = group_whitened(table_of(RAGGED))
    std = math.sqrt(16 / 33)
    high, low, up, down = ((number + 2 / 33) / std for number in (2 / 3, -1 / 3, 1.0, -1.0))
    assert_credit(credit, RAGGED, [[high] * 3, [up], [low], [low] * 2, [down] * 2], 1e-7)


def test_group_whitened_leaves_groups_without_spread_out_of_mean_and_std() -> None:
    live = [Ragged([1.0], [1]), Ragged([0.0], [1])]
    dead = [Ragged([5.0], [9], group=1), Ragged([5.0], [9], group=1), Ragged([7.0], [9], group=2)]
    expected: PerStep = [[ROOT_HALF], [-ROOT_HALF], [None], [None], [None]]
    assert_credit(group_whitened(table_of([*live, *dead])), [*live, *dead], expected, 1e-7)


def test_step_group_by_hand() -> None:
    # Returns-to-go, gamma .5: (.5 + .5 * 1 = 1, 1), (-.25 + .5 * .5 = 0, .5 + .5 * 0 = .5, 0) and (2,).
    # Step 0: 1 - (0 + 2) / 2 = 0; 0 - (1 + 2) / 2 = -1.5; 2 - (1 + 0) / 2 = 1.5.
    # Step 1, which two reached: 1 - .5 = .5 and .5 - 1 = -.5. Step 2, which one reached: 0 - 0.
    batch = [Ragged([0.5, 1.0], [2, 1]), Ragged([-0.25, 0.5, 0.0], [1, 2, 1]), Ragged([2.0], [1])]
    credit = step_group(table_of(batch), gamma=0.5)
    assert_credit(credit, batch, [[0.0, 0.5], [-1.5, -0.5, 0.0], [1.5]])
    assert credit.returns_N is None


def test_step_group_compares_a_step_that_nobody_else_reached_with_zero() -> None:
    # Returns-to-go (1.1, 1) and (0,): step 0 1.1 - 0 and 0 - 1.1; step 1 1 - 0.
    batch = [Ragged([0.1, 1.0], [1, 2]), Ragged([0.0], [1])]
    assert_credit(step_group(table_of(batch)), batch, [[1.1, 1.0], [-1.1]])


def test_step_group_compares_a_lone_trajectory_with_zero() -> None:
    batch = [Ragged([0.5, 1.0], [1, 2], group=3), Ragged([1.0], [1], group=8)]
    assert_credit(step_group(table_of(batch)), batch, [[1.5, 1.0], [1.0]])


def test_step_group_counts_a_step_without_tokens_in_the_baseline() -> None:
    # The second trajectory's first step has no token; it was reached all the same: 1 - 4 and 1 - 3.
    batch = [Ragged([0.0, 1.0], [1, 1]), Ragged([1.0, 3.0], [0, 1])]
    assert_credit(step_group(table_of(batch)), batch, [[-3.0, -2.0], [3.0, 2.0]])


VISITS = [
    Ragged([0.0, 1.0], [2, 1], anchors="sx"),
    Ragged([0.5], [1], anchors="s"),
    Ragged([0.0, 0.0], [1, 3], anchors="sx"),
]
"""Returns 1, .5, 0: mean .5, std .5. Returns-to-go with gamma .5: in s .5, .5, 0 and in x 1, 0."""


def test_gigpo_by_hand() -> None:
    # Episodes: 1, 0, -1. In s: mean 1/3, variance (1/36 + 1/36 + 4/36) / 2 = 1/12, std .28868: .57735, .57735,
    # -1.15470. In x: mean .5, std .70711: +-.70711.
    credit = gigpo(table_of(VISITS), gamma=0.5, epsilon=0.0)
    assert_credit(credit, VISITS, [[1.5773503, 1 + ROOT_HALF], [0.5773503], [-2.1547005, -1 - ROOT_HALF]], 1e-6)


def test_gigpo_mean_norm_drops_both_stds() -> None:
    # Episodes .5, 0, -.5; in s 1/6, 1/6, -1/3; in x .5, -.5.
    credit = gigpo(table_of(VISITS), gamma=0.5, mean_norm=True)
    assert_credit(credit, VISITS, [[2 / 3, 1.0], [1 / 6], [-5 / 6, -1.0]])


@pytest.mark.parametrize("weight", [0.0, 0.5, 3.0])
def test_gigpo_weighs_the_steps_part(weight: float) -> None:
    credit = gigpo(table_of(VISITS), gamma=0.5, mean_norm=True, step_weight=weight)
    in_s, in_x = weight / 6, weight / 2
    assert_credit(credit, VISITS, [[0.5 + in_s, 0.5 + in_x], [in_s], [-0.5 - 2 * in_s, -0.5 - in_x]])


def test_gigpo_of_states_nobody_shares_is_the_episodes_advantage() -> None:
    batch = [replace(t, anchors=anchors) for t, anchors in zip(VISITS, ("ab", "c", "de"), strict=True)]
    expected = group(table_of(batch)).advantages_N.tolist()
    assert_close(gigpo(table_of(batch), step_weight=7.0).advantages_N, expected)


def test_gigpo_compares_steps_at_different_places_of_their_trajectories() -> None:
    # x is the first step's state of one and the second's of the other: returns-to-go 0 and 1.
    batch = [Ragged([0.0], [1], anchors="x"), Ragged([0.0, 1.0], [1, 1], anchors="sx")]
    credit = gigpo(table_of(batch), gamma=1.0, mean_norm=True)
    assert_credit(credit, batch, [[-0.5 - 0.5], [0.5, 0.5 + 0.5]])


def test_gigpo_compares_only_within_the_group() -> None:
    # Two groups in the same state; across groups the returns differ, within they do not.
    batch = [Ragged([number], [1], group=g, anchors="s") for g, number in ((0, 1.0), (1, 0.0), (0, 1.0), (1, 0.0))]
    assert not gigpo(table_of(batch)).credited_N.any()


def test_gigpo_gives_a_faster_member_more_in_the_state_both_started_from() -> None:
    # Both earned 1, so the episodes have no advantage. In s the discounted returns-to-go are 1 and .5: mean .75. The
    # later step, alone in its state, was compared with nothing.
    batch = [Ragged([1.0], [1], anchors="s"), Ragged([0.0, 1.0], [1, 1], anchors="sx")]
    credit = gigpo(table_of(batch), gamma=0.5, mean_norm=True)
    assert_credit(credit, batch, [[0.25], [-0.25, None]])


def test_gigpo_does_not_compare_a_trajectory_with_itself() -> None:
    """It comes back to the same state twice; nobody else does."""
    alone = [Ragged([0.0, 0.0, 1.0], [1, 1, 1], anchors="aaa")]
    assert gigpo(table_of(alone)).credited_N.tolist() == [False] * 3
    beside_another = [*alone, Ragged([0.0], [1], anchors="b")]
    episode = 1 / math.sqrt(2)
    assert_close(gigpo(table_of(beside_another)).advantages_N, [episode] * 3 + [-episode], 1e-5)


@pytest.mark.parametrize("estimate", [group, gigpo])
def test_an_epsilon_of_0_gives_no_nan_where_there_is_no_spread(estimate: Estimator) -> None:
    batch = [Ragged([1.0], [1], anchors="a"), Ragged([0.0], [1], anchors="b"), Ragged([1.0], [1], group=1, anchors="a")]
    assert torch.isfinite(estimate(table_of(batch), epsilon=0.0).advantages_N).all()


def test_gigpo_without_observations_says_so() -> None:
    with pytest.raises(ValueError, match="needs the observations"):
        gigpo(replace(table_of(VISITS), observations_S=None))


# --- anchors -------------------------------------------------------------------------------------------------------


def clusters_of(
    *observations: Observation, groups: list[int] | None = None, similarity: float | None = None
) -> list[int]:
    return anchor_clusters(observations, torch.tensor(groups or [0] * len(observations)), similarity).tolist()


def user(content: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": content},)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        pytest.param(
            Observation(messages=user("go")),
            Observation(messages=({"content": "go", "role": "user"},)),
            Observation(messages=user("stop")),
            id="messages, in any order of keys",
        ),
        pytest.param(Observation(text="go"), Observation(text="go"), Observation(text="go "), id="text"),
        pytest.param(
            Observation(token_ids=(1, 23)), Observation(token_ids=(1, 23)), Observation(token_ids=(12, 3)), id="ids"
        ),
        pytest.param(
            Observation(text="turn 1: room 2", anchor="room 2"),
            Observation(text="turn 9: room 2", anchor="room 2"),
            Observation(text="turn 1: room 2", anchor="room 3"),
            id="the environment's own anchor",
        ),
    ],
)
def test_equal_observations_share_a_cluster(one: Observation, same: Observation, other: Observation) -> None:
    assert clusters_of(one, other, same) == [0, 1, 0]


def test_observations_of_different_kinds_are_not_equal() -> None:
    kinds = (Observation(text="[1]"), Observation(token_ids=(1,)), Observation(messages=user("[1]")))
    assert clusters_of(*kinds) == [0, 1, 2]


def test_clusters_end_at_the_group() -> None:
    a, b = Observation(text="a"), Observation(text="b")
    assert clusters_of(a, b, a, a, b, groups=[4, 4, 1, 4, 1]) == [0, 1, 2, 0, 3]
    # Everything is similar enough: one cluster a group.
    assert clusters_of(a, a, b, b, groups=[4, 1, 4, 1], similarity=0.0) == [0, 1, 0, 1]


def anchored(*anchors: str) -> tuple[Observation, ...]:
    return tuple(Observation(text="", anchor=anchor) for anchor in anchors)


def test_a_step_joins_a_cluster_by_its_likeness_to_the_first_member() -> None:
    # Shared characters of ten: first and second 8, second and third 8, first and third 6.
    chain = anchored("aaaaaaaaaa", "aaaaaaaabb", "aaaaaabbbb")
    assert clusters_of(*chain, similarity=0.8) == [0, 0, 1]
    assert clusters_of(*chain, similarity=0.81) == [0, 1, 2]
    assert clusters_of(*chain, similarity=0.6) == [0, 0, 0]
    assert clusters_of(*chain) == [0, 1, 2]


def test_a_step_joins_the_first_of_several_clusters_it_is_like() -> None:
    # The third is as like the first (8 of 10) as the second; the fourth equals the third.
    several = anchored("aaaaaaaaaa", "aaaaaabbbb", "aaaaaaaabb", "aaaaaaaabb")
    assert clusters_of(*several, similarity=0.8) == [0, 1, 0, 0]


def test_likeness_is_that_of_the_words_not_of_their_frame() -> None:
    """Escaped or wrapped in braces, any two short messages would look alike."""
    assert clusters_of(Observation(text="你好世界"), Observation(text="天地玄黄"), similarity=0.7) == [0, 1]
    assert clusters_of(Observation(messages=user("yes")), Observation(messages=user("now")), similarity=0.95) == [0, 1]


def test_pictures_and_tools_are_part_of_what_the_model_saw() -> None:
    def shown(image: bytes, tool: str = "look") -> Observation:
        return Observation(text="<image>", images=(image,), tools=({"function": {"name": tool}},))

    assert clusters_of(shown(b"cat"), shown(b"dog"), shown(b"cat"), shown(b"cat", "touch")) == [0, 1, 0, 2]


def test_similarity_reaches_the_estimator() -> None:
    # Apart, nobody is compared and a group without spread has no credit; as one cluster, .5 and 1 are.
    batch = [Ragged([1.0], [1]), Ragged([0.0, 1.0], [1, 1])]
    table = replace(table_of(batch), observations_S=anchored("room a", "room b", "elsewhere"))
    assert not gigpo(table, gamma=0.5).credited_N.any()
    assert gigpo(table, gamma=0.5, similarity=0.8).credited_N.tolist() == [True, True, False]


# --- groups without spread -----------------------------------------------------------------------------------------

DEAD: dict[str, list[list[float]]] = {
    "equal": [[1.0], [1.0], [1.0]],
    "equal up to rounding": [[0.1 + 0.2], [0.3]],
    "equal relative to their size": [[1e9 + 1e-3], [1e9]],
    "equal and negative": [[-2.0], [-2.0]],
    "all zero": [[0.0, 0.0], [0.0]],
    "equal after different numbers of steps": [[1.0], [0.0, 1.0], [0.0, 0.0, 1.0]],
    "equal rounded sums of different numbers of steps": [[0.3], [0.0, 0.1 + 0.2], [0.0, 0.0, 0.3]],
}


@comparing
@pytest.mark.parametrize("rewards", DEAD.values(), ids=DEAD)
def test_a_group_whose_members_earned_the_same_has_no_credit(estimate: Estimator, rewards: list[list[float]]) -> None:
    batch = [Ragged(numbers, [2] * len(numbers)) for numbers in rewards]
    credit = estimate(table_of(batch))
    assert not credit.credited_N.any()
    assert torch.isfinite(credit.advantages_N).all()


@pytest.mark.parametrize("name", PER_TRAJECTORY)
def test_equal_sums_of_different_steps_have_no_credit(name: str) -> None:
    batch = [Ragged([0.1, 0.2, 0.3], [1, 1, 1]), Ragged([0.3, 0.2, 0.1], [1, 1, 1]), Ragged([0.6], [1])]
    assert not COMPARING[name](table_of(batch)).credited_N.any()


def test_step_group_compares_what_was_left_to_earn_also_when_the_sums_are_equal() -> None:
    # Sums 1 and 1; before the second step .5 and 1 were left.
    batch = [Ragged([0.5, 0.5], [1, 1]), Ragged([0.0, 1.0], [1, 1])]
    assert_credit(step_group(table_of(batch)), batch, [[0.0, -0.5], [0.0, 0.5]])


@pytest.mark.parametrize("name", [*PER_TRAJECTORY, "gigpo"])
def test_a_group_of_one_has_no_credit(name: str) -> None:
    batch = [Ragged([5.0, 1.0], [2, 1], group=3), Ragged([0.0], [1], group=-1)]
    assert not COMPARING[name](table_of(batch)).credited_N.any()


@comparing
def test_a_penalty_per_token_does_not_make_a_dead_group_alive(estimate: Estimator) -> None:
    batch = [
        charged([0.0, 1.0], [1, 2], [-0.5, -0.25, 0.0]),
        charged([1.0], [2], [-2.0, -0.125]),
        charged([1.0], [1], [0.75]),
    ]
    credit = estimate(table_of(batch))
    assert not credit.credited_N.any()
    assert torch.isfinite(credit.advantages_N).all()


def test_a_penalty_per_token_counts_in_a_group_that_is_alive() -> None:
    # Earned 1 and 0, charged .5 and .25: .5 and -.25, a difference of .75.
    batch = [charged([1.0], [1], [-0.5]), charged([0.0], [2], [-0.25, 0.0])]
    assert_credit(group(table_of(batch), normalise_std=False), batch, [[0.375], [-0.375]])
    assert_credit(leave_one_out(table_of(batch)), batch, [[0.75], [-0.75]])
    assert_credit(step_group(table_of(batch)), batch, [[0.75], [-0.75]])
    assert_credit(gigpo(table_of(batch), mean_norm=True), batch, [[0.75], [-0.75]])


def test_a_penalty_per_token_may_hide_a_real_difference_without_a_nan() -> None:
    # Earned 1 and 0, charged 1 and 0: alive, with nothing between them.
    batch = [charged([1.0], [1], [-1.0]), charged([0.0], [1], [0.0])]
    for estimate in COMPARING.values():
        assert_credit(estimate(table_of(batch)), batch, [[0.0], [0.0]])


@comparing
def test_a_small_but_real_difference_is_spread(estimate: Estimator) -> None:
    credit = estimate(table_of([Ragged([0.501], [1]), Ragged([0.5], [1])]))
    assert credit.credited_N.all()
    assert credit.advantages_N[0] > 0 > credit.advantages_N[1]


@comparing
def test_a_dead_group_takes_no_credit_from_a_live_one(estimate: Estimator) -> None:
    batch = [Ragged([number], [1], group=g) for g, number in ((7, 1.0), (3, 1.0), (7, 0.0), (3, 1.0))]
    credit = estimate(table_of(batch))
    assert credit.credited_N.tolist() == [True, False, True, False]
    assert_close(credit.advantages_N[[0, 2]], estimate(table_of([batch[0], batch[2]])).advantages_N.tolist())


# --- each trajectory counts once -----------------------------------------------------------------------------------


def test_statistics_count_each_trajectory_once() -> None:
    # Returns 1 (one step) and 0 (five steps of four tokens): mean .5, std .7071, whatever the steps and tokens.
    batch = [Ragged([1.0], [1], anchors="a"), Ragged([0.0] * 5, [4] * 5, anchors="bcdef")]
    table = table_of(batch)
    assert_credit(group(table, epsilon=0.0), batch, [[ROOT_HALF], [-ROOT_HALF] * 5])
    assert_credit(leave_one_out(table), batch, [[1.0], [-1.0] * 5])
    assert_credit(gigpo(table), batch, [[ROOT_HALF], [-ROOT_HALF] * 5], 1e-5)
    # The mean of step 0 is that of two trajectories; of steps 1 to 4, of one.
    assert_credit(step_group(table), batch, [[1.0], [-1.0, 0.0, 0.0, 0.0, 0.0]])
    # Deviations .5, once, and -.5, twenty times: mean -.45238, std .21822.
    assert_credit(group_whitened(table), batch, [[4.3643578], [-0.2182179] * 5], 1e-6)


@settings(deadline=None, max_examples=cases(20))
@given(batches(), st.integers(1, 4))
def test_more_steps_that_earn_nothing_change_no_trajectorys_advantage(batch: list[Ragged], more: int) -> None:
    longer = [replace(batch[0], rewards=batch[0].rewards + [0.0] * more, lengths=batch[0].lengths + [0] * more)]
    longer = [replace(longer[0], anchors=None), *batch[1:]]
    for name in PER_TRAJECTORY:
        before, after = COMPARING[name](table_of(batch)), COMPARING[name](table_of(longer))
        assert_close(after.advantages_N, before.advantages_N.tolist())
        assert torch.equal(after.credited_N, before.credited_N)


def test_group_statistics_by_hand() -> None:
    statistics_R = group_statistics(torch.tensor([1.0, 5.0, 0.0]).double(), torch.tensor([4, 2, 4]))
    assert_close(statistics_R.mean_R, [0.5, 5.0, 0.5])
    assert_close(statistics_R.std_R, [0.70710678, 0.0, 0.70710678], 1e-7)
    assert statistics_R.size_R.tolist() == [2, 1, 2]
    assert statistics_R.has_spread_R.tolist() == [True, False, True]


# --- no hidden bias ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """One way an episode of the stopping problem may go."""

    probability: float
    earned: tuple[float, ...]
    """By turn: the intermediate reward."""
    outcome: float

    @property
    def num_turns(self) -> int:
        return len(self.earned)


@dataclass(frozen=True)
class Stopping:
    """At each turn the policy takes another turn with a probability of its own, whose logit is the parameter; at the
    last turn there is nothing to decide. A turn earns one of two intermediate rewards, whatever is decided in it, and
    stopping earns the outcome of the turn."""

    going_on: tuple[float, ...]
    """The probability of another turn, for all turns but the last."""
    means: tuple[float, ...]
    """The mean intermediate reward, by turn."""
    noise: tuple[float, ...]
    """How far the two intermediate rewards of a turn are from their mean; 0: there is one."""
    outcomes: tuple[float, ...]

    @property
    def reached(self) -> list[float]:
        """The probability of a decision at each turn."""
        return [1.0, *itertools.accumulate(self.going_on[:-1], lambda a, b: a * b)]

    def expected_from(self, outcomes: tuple[float, ...]) -> list[float]:
        """What is still to be earned on reaching a turn, by turn."""
        values = [self.means[-1] + outcomes[-1]]
        for q, mean, outcome in zip(self.going_on[::-1], self.means[-2::-1], outcomes[-2::-1], strict=True):
            values.insert(0, mean + q * values[0] + (1 - q) * outcome)
        return values

    @property
    def gradient(self) -> list[float]:
        """By turn: how the expected return changes with the decision's logit."""
        worth = self.expected_from(self.outcomes)
        return [
            reached * q * (1 - q) * (worth[t + 1] - self.outcomes[t])
            for t, (reached, q) in enumerate(zip(self.reached, self.going_on, strict=True))
        ]

    @property
    def naive_bias(self) -> list[float]:
        """By turn: minus the mean intermediate reward accumulated after deciding to take another turn."""
        accumulated = self.expected_from((0.0,) * len(self.outcomes))
        return [
            -reached * q * (1 - q) * accumulated[t + 1]
            for t, (reached, q) in enumerate(zip(self.reached, self.going_on, strict=True))
        ]

    def paths(self) -> Iterator[Path]:
        """All of them; their probabilities sum to 1."""
        for last in range(len(self.means)):
            stops = 1 - self.going_on[last] if last < len(self.going_on) else 1.0
            probability = math.prod(self.going_on[:last]) * stops
            turns = [sorted({m - d, m + d}) for m, d in zip(self.means[: last + 1], self.noise, strict=False)]
            for earned in itertools.product(*turns):
                share = math.prod(1 / len(turn) for turn in turns)
                yield Path(probability * share, earned, self.outcomes[last])

    def score(self, path: Path, turn: int) -> float:
        """The derivative of the log-probability of what was decided by its logit."""
        return (1.0 if turn < path.num_turns - 1 else 0.0) - self.going_on[turn]


Advantages = Callable[[list[tuple[Path, ...]]], list[list[list[float]]]]
"""From groups of paths to advantages by group, member and turn."""


def mean_gradient(problem: Stopping, size: int, advantages: Advantages) -> list[float]:
    """The exact mean, over all groups of a size, of a member's `sum over turns of advantage * score`."""
    groups = list(itertools.product(problem.paths(), repeat=size))
    gradient = [0.0] * len(problem.going_on)
    for members, per_member in zip(groups, advantages(groups), strict=True):
        weight = math.prod(path.probability for path in members) / size
        for path, numbers in zip(members, per_member, strict=True):
            for turn in range(min(path.num_turns, len(gradient))):
                gradient[turn] += weight * numbers[turn] * problem.score(path, turn)
    return gradient


def of_step_group(groups: list[tuple[Path, ...]], only_credited: bool = True) -> list[list[list[float]]]:
    """The library's advantages; 0 without credit, as the loss has it."""
    batch = [
        Ragged([*path.earned[:-1], path.earned[-1] + path.outcome], [1] * path.num_turns, group=number)
        for number, members in enumerate(groups)
        for path in members
    ]
    credit = step_group(table_of(batch))
    taken_N = credit.advantages_N * credit.credited_N if only_credited else credit.advantages_N
    numbers = iter(taken_N.tolist())
    return [[[next(numbers) for _ in path.earned] for path in members] for members in groups]


def naive(groups: list[tuple[Path, ...]]) -> list[list[list[float]]]:
    """Intermediate rewards minus their mean over the members that reached the turn, summed from the turn on; plus the
    outcome minus the mean of the others', which is not at fault."""
    result = []
    for members in groups:
        longest = max(path.num_turns for path in members)
        means = [statistics.fmean(p.earned[t] for p in members if p.num_turns > t) for t in range(longest)]
        per_member = []
        for i, path in enumerate(members):
            outcome = path.outcome - statistics.fmean(p.outcome for k, p in enumerate(members) if k != i)
            centred = [earned - mean for earned, mean in zip(path.earned, means, strict=False)]
            per_member.append([sum(centred[t:]) + outcome for t in range(path.num_turns)])
        result.append(per_member)
    return result


PROBLEM = Stopping(
    going_on=(0.7, 0.4, 0.55),
    means=(0.3, 0.41, 0.53, 0.17),
    noise=(0.0, 0.23, 0.0, 0.11),
    outcomes=(0.9, 0.37, 0.71, 0.05),
)
"""No two ways of going earn the same."""


def test_the_stopping_problem_has_the_gradient_it_says() -> None:
    # Against the difference quotient of the expected return over all paths, in the logit of each turn.
    def expected(turn: int, shift: float) -> float:
        logits = [math.log(q / (1 - q)) + (shift if t == turn else 0.0) for t, q in enumerate(PROBLEM.going_on)]
        moved = replace(PROBLEM, going_on=tuple(1 / (1 + math.exp(-logit)) for logit in logits))
        assert sum(path.probability for path in moved.paths()) == pytest.approx(1.0)
        return sum(path.probability * (sum(path.earned) + path.outcome) for path in moved.paths())

    found = [(expected(turn, 1e-5) - expected(turn, -1e-5)) / 2e-5 for turn in range(3)]
    assert found == pytest.approx(PROBLEM.gradient, rel=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_step_group_has_the_true_gradient_of_a_policy_that_decides_when_to_stop(size: int) -> None:
    assert mean_gradient(PROBLEM, size, of_step_group) == pytest.approx(PROBLEM.gradient, rel=1e-9)


@pytest.mark.parametrize("size", [2, 3])
def test_normalising_rewards_per_turn_misses_the_accumulated_mean_reward_of_going_on(size: int) -> None:
    found = mean_gradient(PROBLEM, size, naive)
    expected = [true + bias for true, bias in zip(PROBLEM.gradient, PROBLEM.naive_bias, strict=True)]
    assert found == pytest.approx(expected, rel=1e-9)
    # It is not a matter of size only: at turn 1 it pays to go on, and the naive estimate says stop.
    assert PROBLEM.gradient[1] > 0 > found[1]


TIED = Stopping(going_on=(0.7, 0.4), means=(0.0, 0.0, 0.0), noise=(0.0, 0.0, 0.0), outcomes=(1.0, 1.0, 0.0))
"""Stopping at the first turn and at the second earn the same."""


def test_step_groups_advantages_are_unbiased_also_where_members_earn_the_same() -> None:
    found = mean_gradient(TIED, 2, partial(of_step_group, only_credited=False))
    assert found == pytest.approx(TIED.gradient, rel=1e-9)


def test_a_dead_group_costs_step_group_the_turn_that_only_one_member_reached() -> None:
    # One member stopped at turn 0, the other at turn 1, both earned 1. Turn 0 has advantage 0 for both. At turn 1 the
    # other is alone: its advantage of 1 - 0 for having stopped (score -.4) is lost with the group, which comes up with
    # probability .3 * (.7 * .6). A group without spread gives no gradient, and this is its price: where returns tie
    # exactly and a turn has one member, stopping is credited too little.
    lost = (1 - 0.7) * (0.7 * (1 - 0.4)) * 1.0 * -0.4
    expected = [TIED.gradient[0], TIED.gradient[1] - lost]
    assert mean_gradient(TIED, 2, of_step_group) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("size", "lost"), [(2, 0.30), (3, 0.09), (4, 0.03)])
def test_what_dead_groups_cost_step_group_is_documented(size: int, lost: float) -> None:
    found = mean_gradient(TIED, size, of_step_group)
    assert found[0] == pytest.approx(TIED.gradient[0], rel=1e-9)
    assert 1 - found[1] / TIED.gradient[1] == pytest.approx(lost, abs=0.005)
    assert f"by {lost * 100:.0f} %" in (pathlib.Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
