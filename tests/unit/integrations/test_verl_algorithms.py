"""Estimators and losses with verl's signatures: on the same batch they give our numbers, token by token."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agent_r1.algorithms import LossInputs, StepTable, estimators, policy_losses
from agent_r1.errors import ConfigError
from agent_r1.integrations.verl.estimators import REFUSED, read_rows, refused_estimator, verl_estimator
from agent_r1.integrations.verl.losses import verl_policy_loss

CARRIED = sorted(set(estimators.names()) - set(REFUSED))


def rows_of(episodes: list[list[tuple[int, int, float]]]) -> tuple[Tensor, Tensor]:
    """verl's rewards and mask of episodes, whose steps are (tokens written before it, sampled tokens, reward)."""
    lengths = [sum(between + sampled for between, sampled, _ in steps) for steps in episodes]
    mask = torch.zeros(len(episodes), max(lengths), dtype=torch.long)
    rewards = torch.zeros(mask.shape)
    for row, steps in enumerate(episodes):
        place = 0
        for between, sampled, reward in steps:
            place += between
            mask[row, place : place + sampled] = 1
            place += sampled
            rewards[row, place - 1] = reward
    return rewards, mask


def table_of(episodes: list[list[tuple[int, int, float]]], groups: list[int]) -> StepTable:
    """The same as the table that our trainer would make."""
    steps = [(row, step) for row, episode in enumerate(episodes) for step in episode]
    return StepTable(
        rewards_S=torch.tensor([step[2] for _, step in steps], dtype=torch.float64),
        lengths_S=torch.tensor([step[1] for _, step in steps]),
        trajectory_S=torch.tensor([row for row, _ in steps]),
        group_R=torch.tensor(groups),
    )


step_lists = st.tuples(
    st.tuples(st.just(0), st.integers(1, 4), st.sampled_from([0.0, 0.25, 1.0])),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([0.0, -0.5, 1.0])), max_size=3),
).map(lambda pair: [pair[0], *pair[1]])


@pytest.mark.whole
@pytest.mark.parametrize("name", CARRIED)
@given(episodes=st.lists(step_lists, min_size=1, max_size=6), data=st.data())
def test_an_estimator_gives_the_numbers_of_our_step_table(name: str, episodes: Any, data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(episodes), max_size=len(episodes)))
    rewards, mask = rows_of(episodes)
    index = [f"task {group}" for group in groups]
    advantages, returns = verl_estimator(estimators.get(name))(rewards, mask, config={}, index=index)
    credit = estimators.get(name)(table_of(episodes, groups))
    expected_N = credit.advantages_N.masked_fill(~credit.credited_N, 0.0)
    assert torch.equal(advantages[mask.bool()], expected_N.float())
    assert not advantages[~mask.bool()].any()
    assert torch.equal(advantages, returns)


def test_group_advantages_by_hand() -> None:
    """Returns 1.5 and 0.5: (R - mean) / std is 0.7071 and -0.7071 on every sampled token."""
    rewards, mask = rows_of([[(0, 1, 0.5), (1, 2, 1.0)], [(0, 2, 0.5)]])
    advantages, _ = verl_estimator(estimators.get("group"))(rewards, mask, config=None, index=["a", "a"])
    assert advantages.tolist() == [
        pytest.approx([0.7071, 0.0, 0.7071, 0.7071], abs=1e-4),
        pytest.approx([-0.7071, -0.7071, 0.0, 0.0], abs=1e-4),
    ]


def test_a_reward_on_a_token_that_was_not_sampled_counts_for_the_step_before_it() -> None:
    mask = torch.tensor([[0, 1, 0, 1, 0]])
    table = read_rows(torch.tensor([[0.5, 0.0, 0.25, 0.0, 1.0]]), mask, ["a"]).table
    assert table.rewards_S.tolist() == [0.75, 1.0]


def test_a_row_without_a_sampled_token_is_no_member_of_its_group() -> None:
    rewards, mask = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]), torch.tensor([[1, 1], [0, 0], [1, 0]])
    rows = read_rows(rewards, mask, ["a", "a", "a"])
    assert (rows.table.group_R.tolist(), rows.table.rewards_S.tolist()) == ([0, 0], [1.0, 0.0])
    advantages, _ = verl_estimator(estimators.get("leave_one_out"))(rewards, mask, index=["a", "a", "a"])
    assert advantages.tolist() == [[1.0, 1.0], [0.0, 0.0], [-1.0, 0.0]]


def test_a_reward_within_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"row 0 has a reward on token 0, within a step.*use_kl_loss=True"):
        verl_estimator(estimators.get("group"))(torch.tensor([[0.1, 1.0]]), torch.tensor([[1, 1]]), index=["a"])


def test_kl_in_the_reward_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"use_kl_in_reward.*use_kl_loss=True"):
        verl_estimator(estimators.get("group"))(
            torch.tensor([[1.0]]), torch.tensor([[1]]), config={"use_kl_in_reward": True}, index=["a"]
        )


def test_groups_must_be_known() -> None:
    compute = verl_estimator(estimators.get("group"))
    with pytest.raises(ConfigError, match="no group ids"):
        compute(torch.tensor([[1.0]]), torch.tensor([[1]]))
    with pytest.raises(ConfigError, match="2 group ids for 1 rows"):
        compute(torch.tensor([[1.0]]), torch.tensor([[1]]), index=["a", "b"])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_verl_cannot_carry_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the estimator '{name}' of Agent-R1 cannot be used inside verl: .* use "):
        refused_estimator(name)(torch.zeros(1, 1), torch.ones(1, 1), config=None, index=["a"])


def token_sum(*, loss_mat: Tensor, loss_mask: Tensor, loss_agg_mode: str, **_: Any) -> Tensor:
    assert loss_agg_mode == "token-sum"
    return (loss_mat * loss_mask).sum()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("clip", {}), ("clip", {"ratio": "step", "dual_clip": None}), ("cispo", {}), ("reinforce", {}), ("nll", {})],
)
@given(seed=st.integers(0, 10_000))
def test_a_loss_gives_our_number_and_our_gradient(name: str, arguments: dict[str, Any], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand((3, 9), generator=generator) < 0.6
    now, old, advantages, weights = (torch.randn((3, 9), generator=generator) for _ in range(4))
    now.requires_grad_()
    loss = partial(policy_losses.get(name), **arguments)
    found, metrics = verl_policy_loss(loss, token_sum)(
        old, now, advantages, mask.long(), "token-sum", SimpleNamespace(global_batch_info={}), weights
    )
    step_N: list[int] = []
    for row in mask.tolist():
        before = False
        for marked in row:
            if marked:
                step_N.append((step_N[-1] if step_N else -1) + (not before))
            before = marked
    expected = loss(
        LossInputs(
            policy_logprobs_N=now[mask],
            old_logprobs_N=old[mask],
            advantages_N=advantages[mask],
            step_N=torch.tensor(step_N, dtype=torch.long),
        )
    )
    total = (expected.loss_N * weights[mask]).sum()
    assert torch.allclose(found, total, rtol=1e-4, atol=1e-7)
    if mask.any():
        assert torch.allclose(*(torch.autograd.grad(each, now, retain_graph=True)[0] for each in (found, total)))
    assert set(metrics) == {f"actor/{metric}" for metric in expected.metrics_N}


def test_the_ratio_of_a_step_is_not_the_ratio_of_a_row() -> None:
    """Two model calls of one token each, log-ratios 0 and log 2: step ratios 1 and 2, clipped to 1.2."""
    now = torch.tensor([[0.0, 0.0, float(torch.tensor(2.0).log())]])
    found, _ = verl_policy_loss(partial(policy_losses.get("clip"), ratio="step"), token_sum)(
        torch.zeros(1, 3), now, torch.ones(1, 3), torch.tensor([[1, 0, 1]]), "token-sum"
    )
    assert float(found) == pytest.approx(-2.2)
