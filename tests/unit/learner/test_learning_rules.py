"""The rules of learning, seen from outside: which gradients and weights come out of hand-made experience."""

from __future__ import annotations

import copy
import io
import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import agent_r1
from agent_r1.algorithms import Credit, LossInputs, StepTable, TokenLosses
from agent_r1.config import CriticConfig, KLConfig, OptimizerConfig
from agent_r1.data.demonstrations import DemonstrationRow
from agent_r1.errors import ConfigError, DivergenceError
from agent_r1.learner.critic_updates import CRITIC_UPDATES
from agent_r1.learner.critics import Critic, SharedCritic
from agent_r1.learner.imitation import fit_demonstrations
from agent_r1.learner.learner import TorchLearner
from agent_r1.learner.optimizer import guarded_step
from agent_r1.learner.packing.samples import Sample, pack
from agent_r1.learner.packing.trie_attention import TRIE_ATTENTION
from agent_r1.learner.scoring import score_micro_batch, score_samples, value_of_states
from agent_r1.models.load import load_policy
from agent_r1.types import Episode, StopReason, Task, TokenIds
from tests.helpers.fuzzing import cases
from tests.helpers.hand_made import (
    CPU,
    TOKEN_GAE,
    Fixed,
    assert_same_gradients,
    credited,
    experience_of,
    gradients_of,
    make_critic,
    make_learner,
    make_step,
    make_trajectory,
    num_steps_of,
    random_batch,
    random_group,
    random_ids,
    random_trajectory,
    row_logprobs,
    rows_on_cpu,
    same_weights,
    sharpened,
    shifted_copy,
    value_after,
    weights_of,
    with_parts,
)


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


# --- rule 1: only sampled tokens carry loss ------------------------------------------------------------------------


@contextmanager
def kept_hidden_states(policy: LlamaForCausalLM) -> Iterator[list[tuple[Tensor, Tensor, Tensor]]]:
    """Ids, mask and last hidden states of every pass with a gradient. The head works on single positions: a position
    whose hidden state has no gradient carried no loss."""
    kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(module: nn.Module, arguments: Any, inputs: dict[str, Any], output: Any) -> None:
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.retain_grad()
            kept.append((inputs["input_ids"], inputs["attention_mask"], output.last_hidden_state))

    handle = policy.get_decoder().register_forward_hook(keep, with_kwargs=True)
    yield kept
    handle.remove()


def test_only_the_positions_before_sampled_tokens_have_a_gradient(policy: LlamaForCausalLM) -> None:
    batch = random_group(policy, 5, [1.0, 0.0])
    with kept_hidden_states(policy) as kept:
        make_learner(policy, entropy_coefficient=0.1).learn_sync(experience_of(*batch), step=0)
    expected = {
        (step.prompt_ids + step.action_ids, len(step.prompt_ids) + index - 1)
        for trajectory in batch
        for step in trajectory.steps
        for index in range(len(step.action_ids))
    }
    found = set()
    for input_ids, attention_mask, hidden in kept:
        assert hidden.grad is not None
        for row, column in (hidden.grad.abs().sum(-1) > 0).nonzero().tolist():
            length = int(attention_mask[row].sum())
            found.add((tuple(input_ids[row, :length].tolist()), column))
    assert found == expected


samples = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=8).map(tuple),
        st.lists(st.integers(0, 5), max_size=5).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=cases(40))
@given(samples, st.integers(13, 60))
def test_targets_are_exactly_the_action_ids_each_once(rows: list[tuple[TokenIds, TokenIds]], budget: int) -> None:
    packed = pack([Sample.of_step(*row) for row in rows], range(len(rows)), max_tokens=budget)
    actions = [token for _, action in rows for token in action]
    seen: dict[int, int] = {}
    for micro in packed:
        assert micro.input_ids.numel() <= budget
        following = micro.input_ids[micro.rows_N, micro.columns_N + 1]
        assert following.tolist() == micro.targets_N.tolist()
        assert micro.attention_mask[micro.rows_N, micro.columns_N + 1].all()
        for place, target in zip(micro.tokens_N.tolist(), micro.targets_N.tolist(), strict=True):
            assert place not in seen
            seen[place] = target
    assert [seen[place] for place in sorted(seen)] == actions
    assert sorted(seen) == list(range(len(actions)))


def test_other_words_in_the_prompt_add_no_targets() -> None:
    plain = pack([Sample.of_step((5, 6, 7, 8), (9, 3))], [0], max_tokens=100)[0]
    # The same action ids, also inside the prompt: what a tool or the framework inserted.
    echoed = pack([Sample.of_step((5, 9, 3, 8), (9, 3))], [0], max_tokens=100)[0]
    assert plain.columns_N.tolist() == echoed.columns_N.tolist() == [3, 4]
    assert plain.targets_N.tolist() == echoed.targets_N.tolist() == [9, 3]


def test_the_attention_mask_comes_from_lengths_not_from_ids(policy: LlamaForCausalLM) -> None:
    pad = int(policy.config.pad_token_id)
    short: tuple[TokenIds, TokenIds] = ((0, pad, 7), (pad, 0, pad))
    long: tuple[TokenIds, TokenIds] = ((11, 12, 13, 14, 15, 16), (17, 18, 19))
    (micro,) = pack([Sample.of_step(*short), Sample.of_step(*long)], [0, 1], max_tokens=100)
    assert sorted(micro.attention_mask.sum(1).tolist()) == [6, 9]
    found_N = torch.zeros(6)
    with torch.no_grad():
        found_N[micro.tokens_N] = score_micro_batch(policy, micro, rows_on_cpu()).logprobs_N
        expected = torch.cat([row_logprobs(policy, *short), row_logprobs(policy, *long)])
    assert found_N.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_scores_are_at_the_temperature_of_the_rollout(policy: LlamaForCausalLM) -> None:
    prompt, action = (5, 6, 7), (8, 9)
    found = score_samples(policy, [Sample.of_step(prompt, action)], rows_on_cpu(temperature=0.5))
    with torch.no_grad():
        logits = policy(input_ids=torch.tensor([prompt + action])).logits[0, 2:4] / 0.5
    expected = logits.log_softmax(-1)[torch.arange(2), torch.tensor(action)]
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_entropy_is_that_of_the_distribution_the_token_was_drawn_from(policy: LlamaForCausalLM) -> None:
    (micro,) = pack([Sample.of_step((5, 6), (8,))], [0], max_tokens=99)
    with torch.no_grad():
        found = score_micro_batch(policy, micro, rows_on_cpu()).entropy_N
        probabilities = policy(input_ids=torch.tensor([[5, 6]])).logits[0, -1].softmax(-1)
    expected = -sum(p * math.log(p) for p in probabilities.tolist())
    assert found.tolist() == pytest.approx([expected], abs=1e-4)


def test_a_step_longer_than_the_micro_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a step of 5 tokens does not fit trainer\.micro_batch_tokens=4"):
        pack([Sample.of_step((1, 2, 3), (4, 5))], [0], max_tokens=4)


# --- rule 4: cutting a batch up does not change its gradient -------------------------------------------------------

AGGREGATIONS = ["token-mean", "step-mean-token-mean", "trajectory-mean-token-mean", "trajectory-mean-token-sum"]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_do_not_change_the_policys_gradient(policy: LlamaForCausalLM, aggregation: str) -> None:
    reference = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.05)
    experience = experience_of(*random_batch(policy))
    found = []
    for budget in (4096, max(map(len, experience.samples))):
        learner = make_learner(
            copy.deepcopy(policy),
            reference=reference,
            kl=KLConfig(coefficient=0.1),
            entropy_coefficient=0.01,
            aggregation=aggregation,
            micro_batch_tokens=budget,
        )
        learner.learn_sync(experience, step=0)
        found.append(gradients_of(learner.policy_optimizer))
    assert_same_gradients(found[1], found[0])


@pytest.mark.whole
@pytest.mark.parametrize("estimator", ["token_gae", "step_gae"])
def test_micro_batches_do_not_change_the_critics_gradient(policy: LlamaForCausalLM, estimator: str) -> None:
    critic = make_critic(policy)
    experience = experience_of(*random_batch(policy))
    found, metrics = [], []
    for budget in (4096, max(map(len, experience.samples))):
        learner = make_learner(
            copy.deepcopy(policy),
            critic=copy.deepcopy(critic),
            estimator={"name": estimator},
            micro_batch_tokens=budget,
        )
        metrics.append(learner.learn_sync(experience, step=0))
        assert learner.critic_optimizer is not None
        found.append(gradients_of(learner.critic_optimizer))
    assert_same_gradients(found[1], found[0])
    for name in ("loss/critic", "loss/policy", "policy/entropy", "critic/value"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-4, abs=1e-6)


def test_the_gradient_is_that_of_a_loop_over_unpadded_rows(policy: LlamaForCausalLM) -> None:
    batch = random_group(policy, 3, [1.0, 0.0, 0.0])
    slow = copy.deepcopy(policy)
    returns = [trajectory.outcome_reward + trajectory.process_reward for trajectory in batch]
    mean = sum(returns) / 3
    std = math.sqrt(sum((number - mean) ** 2 for number in returns) / 2)
    for trajectory, number in zip(batch, returns, strict=True):
        weight = 1 / (3 * trajectory.num_action_tokens)
        for step in trajectory.steps:
            logprobs = row_logprobs(slow, step.prompt_ids, step.action_ids)
            (-(number - mean) / (std + 1e-6) * weight * logprobs.sum()).backward()
    learner = make_learner(policy)
    learner.learn_sync(experience_of(*batch), step=0)
    expected = [parameter.grad for parameter in slow.parameters() if parameter.grad is not None]
    assert_same_gradients(gradients_of(learner.policy_optimizer), expected, tolerance=1e-4)


# --- rule 5: rows are not updates, and do not weigh ----------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [1, 5])
@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (2, 2)])
def test_the_number_of_updates_does_not_depend_on_the_number_of_steps(
    policy: LlamaForCausalLM, epochs: int, minibatches: int, num_steps: int
) -> None:
    rng = random.Random(0)
    batch = [
        random_trajectory(policy, rng, outcome, group_id=group_id, num_steps=num_steps)
        for group_id in range(2)
        for outcome in (2.0, 0.0)
    ]
    learner = make_learner(
        policy,
        estimator=TOKEN_GAE,
        critic=make_critic(policy),
        epochs=epochs,
        minibatches=minibatches,
    )
    learner.learn_sync(experience_of(*batch), step=0)
    assert learner.critic_optimizer is not None
    assert num_steps_of(learner.policy_optimizer) == epochs * minibatches
    assert num_steps_of(learner.critic_optimizer) == epochs * 2  # a critic learns from each of the two groups apart


def test_tokens_spread_over_more_steps_weigh_the_same(policy: LlamaForCausalLM) -> None:
    prompt, action = (5, 6, 7), (8, 9, 10, 11)
    other = make_trajectory([make_step(policy, (5, 6, 7), (20, 21))], 0.0)
    whole = make_trajectory([make_step(policy, prompt, action)], 1.0)
    parts = [make_step(policy, prompt + action[:cut], (action[cut],)) for cut in range(4)]
    split = make_trajectory(parts, 1.0)
    found = []
    for trajectory in (whole, split):
        learner = make_learner(copy.deepcopy(policy), aggregation="trajectory-mean-token-mean")
        learner.learn_sync(experience_of(trajectory, other), step=0)
        found.append(gradients_of(learner.policy_optimizer))
    assert_same_gradients(found[1], found[0])


# --- rule 7: failed rollouts are not there -------------------------------------------------------------------------


def test_a_failed_rollout_changes_neither_baseline_nor_loss(policy: LlamaForCausalLM) -> None:
    batch = random_group(policy, 1, [1.0, 0.0, 0.5])
    broken = make_trajectory(batch[0].steps, 0.0, stop_reason=StopReason.ENV_ERROR)
    learners = [make_learner(copy.deepcopy(policy)) for _ in range(2)]
    learners[0].learn_sync(experience_of(*batch), step=0)
    learners[1].learn_sync(experience_of(batch[0], broken, *batch[1:]), step=0)
    assert same_weights(learners[1].policy, weights_of(learners[0].policy))


def test_a_batch_without_valid_rollouts_changes_nothing(policy: LlamaForCausalLM) -> None:
    before = weights_of(policy)
    broken = make_trajectory([], 0.0, stop_reason=StopReason.TIMEOUT)
    make_learner(policy).learn_sync(experience_of(broken), step=0)
    assert same_weights(policy, before)


# --- rule 8: groups without spread ---------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_dead_group_changes_neither_gradient_nor_denominator(policy: LlamaForCausalLM, aggregation: str) -> None:
    live = random_group(policy, 1, [1.0, 0.0, 0.5], group_id=1)
    rng = random.Random(9)
    dead = [
        make_trajectory([make_step(policy, random_ids(rng, 5), random_ids(rng, 4))], outcome, group_id=group_id)
        for group_id in (0, 2)
        for outcome in (0.1 + 0.2, 0.3)
    ]
    learners = [make_learner(copy.deepcopy(policy), aggregation=aggregation) for _ in range(2)]
    learners[0].learn_sync(experience_of(*live), step=0)
    metrics = learners[1].learn_sync(experience_of(*live, *dead), step=0)
    assert same_weights(learners[1].policy, weights_of(learners[0].policy))
    assert not same_weights(policy, weights_of(learners[0].policy))
    assert metrics["policy/credited_trajectories"] == pytest.approx(3 / 7)


def test_a_batch_of_dead_groups_leaves_the_weights_bit_identical(policy: LlamaForCausalLM) -> None:
    rng = random.Random(0)
    batch = [
        make_trajectory([make_step(policy, random_ids(rng, 5), random_ids(rng, 3))], 1.0, group_id=g)
        for g in (0, 0, 1, 1, 1, 2)
    ]
    before = weights_of(policy)
    optimizer = OptimizerConfig(learning_rate=1e-3, weight_decay=0.1)
    learner = make_learner(policy, optimizer=optimizer, epochs=2, minibatches=2)
    metrics = learner.learn_sync(experience_of(*batch), step=0)
    assert same_weights(policy, before)
    assert num_steps_of(learner.policy_optimizer) == 0
    assert metrics["loss/updates"] == 0.0
    assert all(math.isfinite(number) for number in metrics.values())


def test_tokens_without_credit_may_have_any_advantage(policy: LlamaForCausalLM) -> None:
    """No credit is not an advantage of 0: whatever stands there must not touch the gradient."""

    def estimate(hole: float) -> Any:
        def of_table(table: StepTable) -> Credit:
            credited_N = torch.ones(table.num_tokens, dtype=torch.bool)
            credited_N[1] = False
            advantages_N = torch.ones(table.num_tokens, dtype=torch.float64)
            advantages_N[1] = hole
            return Credit(advantages_N=advantages_N, credited_N=credited_N)

        return of_table

    experience = experience_of(make_trajectory([make_step(policy, (5, 6), (7, 8, 9))], 1.0))
    learners = [
        with_parts(make_learner(copy.deepcopy(policy)), estimate=estimate(hole)) for hole in (0.0, 5.0, math.nan)
    ]
    for learner in learners:
        learner.learn_sync(experience, step=0)
        assert num_steps_of(learner.policy_optimizer) == 1
    assert same_weights(learners[1].policy, weights_of(learners[0].policy))
    assert same_weights(learners[2].policy, weights_of(learners[0].policy))


# --- rule 9: nothing that is not finite reaches the weights --------------------------------------------------------


def not_a_number(inputs: LossInputs) -> TokenLosses:
    return TokenLosses(loss_N=inputs.policy_logprobs_N * math.nan)


def infinite_gradient(inputs: LossInputs) -> TokenLosses:
    """A loss of 0 whose slope at 0 is infinite."""
    return TokenLosses(loss_N=(inputs.policy_logprobs_N - inputs.policy_logprobs_N.detach()).abs().sqrt())


@pytest.mark.parametrize("advantage", [math.inf, -math.inf, math.nan])
def test_an_advantage_that_is_not_finite_leaves_the_weights_bit_identical(
    policy: LlamaForCausalLM, advantage: float
) -> None:
    before = weights_of(policy)
    learner = with_parts(make_learner(policy), estimate=Fixed(advantage))
    metrics = learner.learn_sync(experience_of(*random_batch(policy)), step=0)
    assert same_weights(policy, before)
    assert metrics["loss/skipped_updates"] == 1.0


@pytest.mark.parametrize("loss", [not_a_number, infinite_gradient])
def test_a_loss_or_gradient_that_is_not_finite_leaves_the_weights_bit_identical(
    policy: LlamaForCausalLM, loss: Any
) -> None:
    before = weights_of(policy)
    learner = with_parts(make_learner(policy), loss=loss)
    metrics = learner.learn_sync(experience_of(*random_batch(policy)), step=0)
    assert same_weights(policy, before)
    assert metrics["loss/skipped_updates"] == 1.0
    assert not learner.policy_optimizer.state


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_is_not_finite_changes_nothing_and_the_next_one_goes_on_as_the_first(fused: bool) -> None:
    """As on a GPU, where the optimizer's own kernel looks: nobody has read the loss when it is started."""
    weight, expected = (nn.Parameter(torch.ones(3)) for _ in range(2))
    ours, plain = (torch.optim.AdamW([w], lr=0.1, fused=fused) for w in (weight, expected))

    def step(gradient: float, loss: float) -> float:
        weight.grad = torch.full((3,), gradient)
        return float(guarded_step(ours, [weight], loss=torch.tensor(loss), gradient_clip=9.0, learning_rate=0.1))

    for gradient, loss in ((math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, -math.inf)):
        step(gradient, loss)
        assert weight.tolist() == [1.0] * 3
        assert weight.grad is None
    for _ in range(2):
        assert step(2.0, 1.0) == pytest.approx(math.sqrt(12))
        expected.grad = torch.full((3,), 2.0)
        plain.step()
    torch.testing.assert_close(weight, expected)


def test_one_bad_micro_batch_spoils_the_whole_update(policy: LlamaForCausalLM) -> None:
    calls = []

    def bad_once(inputs: LossInputs) -> TokenLosses:
        calls.append(len(inputs.policy_logprobs_N))
        return TokenLosses(loss_N=inputs.policy_logprobs_N * (math.nan if len(calls) == 1 else 1.0))

    before = weights_of(policy)
    experience = experience_of(*random_batch(policy))
    learner = with_parts(make_learner(policy, micro_batch_tokens=64), loss=bad_once)
    learner.learn_sync(experience, step=0)
    assert len(calls) > 1
    assert same_weights(policy, before)


def test_too_many_bad_updates_in_a_row_stop_the_run_with_the_weights_of_before(policy: LlamaForCausalLM) -> None:
    before = weights_of(policy)
    experience = experience_of(*random_batch(policy))
    learner = with_parts(make_learner(policy, max_skipped_updates=3), loss=not_a_number)
    learner.learn_sync(experience, step=0)
    learner.learn_sync(experience, step=1)
    with pytest.raises(DivergenceError, match="3 updates of the policy in a row"):
        learner.learn_sync(experience, step=2)
    assert same_weights(policy, before)


def test_a_good_update_starts_the_count_of_bad_ones_again(policy: LlamaForCausalLM) -> None:
    experience = experience_of(*random_batch(policy))
    learner = make_learner(policy, max_skipped_updates=2)
    good = learner.algorithm.loss
    for step in range(5):
        metrics = with_parts(learner, loss=good if step % 2 else not_a_number).learn_sync(experience, step=step)
    assert metrics["loss/skipped_updates"] == 3.0
    assert num_steps_of(learner.policy_optimizer) == 2


def test_good_updates_of_the_critic_do_not_hide_bad_ones_of_the_policy(policy: LlamaForCausalLM) -> None:
    experience = experience_of(*random_batch(policy))
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=make_critic(policy), max_skipped_updates=3)
    with_parts(learner, loss=not_a_number)
    learner.learn_sync(experience, step=0)
    learner.learn_sync(experience, step=1)
    with pytest.raises(DivergenceError, match="policy"):
        learner.learn_sync(experience, step=2)


def test_a_critic_that_is_not_finite_stops_the_run_too(policy: LlamaForCausalLM) -> None:
    def infinite_targets(table: StepTable) -> Credit:
        everywhere_N = torch.ones(table.num_tokens, dtype=torch.bool)
        ones_N = torch.ones(table.num_tokens, dtype=torch.float64)
        return Credit(advantages_N=ones_N, credited_N=everywhere_N, returns_N=ones_N * math.inf, valued_N=everywhere_N)

    critic = make_critic(policy)
    before = weights_of(critic)
    learner = with_parts(
        make_learner(policy, estimator=TOKEN_GAE, critic=critic, max_skipped_updates=2), estimate=infinite_targets
    )
    experience = experience_of(*random_batch(policy))
    learner.learn_sync(experience, step=0)
    with pytest.raises(DivergenceError, match="critic"):
        learner.learn_sync(experience, step=1)
    assert same_weights(critic, before)


def test_gradients_are_clipped_to_the_configured_norm(policy: LlamaForCausalLM) -> None:
    learner = make_learner(policy, optimizer=OptimizerConfig(learning_rate=1e-3, gradient_clip=0.01))
    metrics = learner.learn_sync(experience_of(*random_batch(policy)), step=0)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients_of(learner.policy_optimizer)))
    assert metrics["policy/gradient_norm"] > 0.01
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_a_batch_of_empty_actions_gives_finite_metrics_and_no_update(policy: LlamaForCausalLM) -> None:
    before = weights_of(policy)
    batch = [make_trajectory([make_step(policy, (5, 6), ())], outcome) for outcome in (1.0, 0.0)]
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=make_critic(policy), epochs=2)
    metrics = learner.learn_sync(experience_of(*batch), step=0)
    assert same_weights(policy, before)
    assert all(math.isfinite(number) for number in metrics.values())


# --- rule 11: truncation is not termination ------------------------------------------------------------------------


def test_the_bootstrap_is_the_critics_value_of_the_state_after_the_cut(policy: LlamaForCausalLM) -> None:
    critic = make_critic(policy)
    short, long = (5, 6, 7, 8), (5, 6, 7, 20, 21, 22, 23)
    step = make_step(policy, (5, 6), (7,))
    experience = experience_of(
        make_trajectory([step], 1.0, stop_reason=StopReason.MAX_STEPS, next_prompt_ids=short),
        make_trajectory([step], 1.0),
        make_trajectory([step], 1.0, stop_reason=StopReason.CONTEXT_FULL, next_prompt_ids=long),
        bootstrap=True,
    )
    learner = with_parts(make_learner(policy, estimator=TOKEN_GAE, critic=critic), estimate=Fixed())
    credited(learner, experience)
    found = learner.algorithm.estimate.table.bootstrap_R  # type: ignore[attr-defined]
    expected = [value_after(critic, short), 0.0, value_after(critic, long)]
    assert abs(expected[0]) > 0.01
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("reason", [StopReason.DONE, StopReason.MAX_STEPS])
def test_a_trajectory_is_scored_or_bootstrapped_never_both(
    policy: LlamaForCausalLM, reason: StopReason, bootstrap: bool
) -> None:
    critic, following = make_critic(policy), (5, 6, 7, 8)
    step = make_step(policy, (5, 6), (7,), reward=0.25)
    trajectory = make_trajectory([step], 1.0, stop_reason=reason, next_prompt_ids=following)
    learner = make_learner(policy, estimator={**TOKEN_GAE, "whitened": False}, critic=critic)
    batch = credited(learner, experience_of(trajectory, bootstrap=bootstrap))
    rest = value_after(critic, following) if bootstrap and reason.is_truncation else 1.0
    assert batch.credit.returns_N is not None
    assert batch.credit.returns_N.tolist() == pytest.approx([0.25 + rest], abs=1e-4)


def test_the_state_after_a_step_that_fills_a_micro_batch_can_be_valued(policy: LlamaForCausalLM) -> None:
    """An episode that is cut because its context is full ends in a state of that length."""
    critic, state = make_critic(policy), (5, 6, 7, 8)
    values = value_of_states(critic, [state], rows_on_cpu(max_tokens=len(state)))
    assert values.tolist() == pytest.approx([value_after(critic, state)], abs=1e-4)


# --- staying close to the reference --------------------------------------------------------------------------------


def test_kl_in_the_loss_pulls_the_policy_towards_the_reference(policy: LlamaForCausalLM) -> None:
    reference = shifted_copy(policy)
    experience = experience_of(*random_batch(policy))
    learner = make_learner(policy, reference=reference, kl=KLConfig(coefficient=1.0, estimator="k3", place="loss"))
    with_parts(learner, estimate=Fixed(0.0))
    first = learner.learn_sync(experience, step=0)["policy/reference_kl"]
    for step in range(1, 10):
        last = learner.learn_sync(experience, step=step)["policy/reference_kl"]
    assert first > 1e-3
    assert last < 0.5 * first


def test_kl_in_the_reward_is_taken_off_token_by_token(policy: LlamaForCausalLM) -> None:
    reference = shifted_copy(policy)
    batch = random_batch(policy, num_groups=1)
    rewards, penalties = [], []
    for trajectory in batch:
        for step in trajectory.steps:
            with torch.no_grad():
                own = row_logprobs(policy, step.prompt_ids, step.action_ids)
                penalty = 0.5 * (own - row_logprobs(reference, step.prompt_ids, step.action_ids))
            outcome = trajectory.outcome_reward if step is trajectory.steps[-1] else 0.0
            rewards.append(step.reward + outcome - float(penalty.sum()))
            penalties += penalty.tolist()
    kl = KLConfig(coefficient=0.5, estimator="k1", place="reward")
    estimator = Fixed(0.0)
    with_parts(make_learner(policy, reference=reference, kl=kl), estimate=estimator).learn_sync(
        experience_of(*batch), step=0
    )
    assert estimator.table.rewards_S.tolist() == pytest.approx(rewards, abs=1e-4)
    assert estimator.table.token_rewards_N is not None
    assert estimator.table.token_rewards_N.tolist() == pytest.approx([-penalty for penalty in penalties], abs=1e-4)


@pytest.mark.parametrize(("place", "learns"), [("loss", True), ("reward", False)])
def test_kl_is_taken_in_one_place_only(policy: LlamaForCausalLM, place: str, learns: bool) -> None:
    """With an estimator that gives every token an advantage of 0, only a KL in the loss can move the weights."""
    before = weights_of(policy)
    learner = make_learner(policy, reference=shifted_copy(policy), kl=KLConfig(coefficient=0.5, place=place))
    with_parts(learner, estimate=Fixed(0.0)).learn_sync(experience_of(*random_batch(policy)), step=0)
    assert same_weights(policy, before) == (not learns)


def test_kl_in_the_reward_lowers_every_steps_reward(policy: LlamaForCausalLM) -> None:
    """k3 is never negative, and the reference differs everywhere."""
    experience = experience_of(*random_group(policy, 2, [1.0, 1.0]))
    kl = KLConfig(coefficient=0.5, estimator="k3", place="reward")
    estimator = Fixed(0.0)
    with_parts(make_learner(policy, reference=shifted_copy(policy), kl=kl), estimate=estimator).learn_sync(
        experience, step=0
    )
    assert (estimator.table.rewards_S < experience.table.rewards_S).all()


@pytest.mark.parametrize(("coefficient", "has_reference"), [(0.0, False), (0.1, True)])
def test_a_run_loads_a_reference_only_when_it_has_a_use_for_it(
    model_folder: Path, tmp_path: Path, coefficient: float, has_reference: bool
) -> None:
    rows = [{"prompt": f"say {number}", "agent_name": "single_step"} for number in range(2)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    agent_r1.train(
        overrides=[
            f"run.folder={tmp_path}",
            "trainer.steps=1",
            "rollout.groups_per_step=2",
            "rollout.group_size=2",
            "rollout.max_tokens=4",
            f"algorithm.kl.coefficient={coefficient}",
        ],
        model=model_folder,
        data=data,
        reward=first_token,
        quiet=True,
    )
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert ("policy/reference_kl" in line) == has_reference


def first_token(task: Task, episode: Episode) -> float:
    return float(episode.steps[0].action_ids[0])


# --- the critic, the rate, the state -------------------------------------------------------------------------------


@pytest.mark.whole
def test_the_critic_learns_a_constant_return(policy: LlamaForCausalLM) -> None:
    rng = random.Random(0)
    batch = [
        make_trajectory([make_step(policy, random_ids(rng, 4), random_ids(rng, 3))], 1.0, group_id=0) for _ in range(6)
    ]
    learner = make_learner(
        policy,
        estimator={**TOKEN_GAE, "lam": 1.0},
        critic=Critic(policy),
        critic_settings=CriticConfig(kind="own", learning_rate=1e-2, value_clip=None),
    )
    losses = [learner.learn_sync(experience_of(*batch), step=step)["loss/critic"] for step in range(20)]
    assert losses[0] == pytest.approx(0.5)  # 1/2 (0 - 1)^2: the head starts from zero
    assert losses[-1] < 0.02


def test_a_critic_of_its_own_takes_some_steps_on_parts_of_the_same_samples(policy: LlamaForCausalLM) -> None:
    batch = [
        make_trajectory([make_step(policy, (5, 6, group), (7, 8))], float(group), group_id=group)
        for group in range(7)
        for _ in range(2)
    ]
    own, shared = Critic(policy), SharedCritic(policy)
    for critic, expected in ((own, CRITIC_UPDATES), (shared, 1)):
        settings = CriticConfig(learning_rate=0.0, kind="shared" if critic is shared else "own")
        learner = make_learner(policy, estimator={**TOKEN_GAE, "lam": 1.0}, critic=critic, critic_settings=settings)
        metrics = learner.learn_sync(experience_of(*batch), step=0)
        assert learner.critic_optimizer is not None
        assert num_steps_of(learner.critic_optimizer) == expected
        # It never moves, so each part's loss is 1/2 group^2: parts of groups 0 4, 1 5, 2 6 and 3; or all of them.
        squares = [[0, 16], [1, 25], [4, 36], [9]] if critic is own else [[0, 1, 4, 9, 16, 25, 36]]
        assert metrics["loss/critic"] == pytest.approx(sum(sum(part) / len(part) for part in squares) / expected / 2)


def test_step_gae_trains_the_critic_at_the_first_token_of_each_step_only(policy: LlamaForCausalLM) -> None:
    batch = [make_trajectory([make_step(policy, (5, 6), (7, 8, 9)), make_step(policy, (5, 6, 7), (10, 11))], 3.0)]
    learner = make_learner(policy, estimator={"name": "step_gae", "lam": 1.0}, critic=Critic(policy))
    metrics = learner.learn_sync(experience_of(*batch), step=0)
    # Targets 3 and 3 at two positions, values 0: the mean of 1/2 * 9.
    assert metrics["loss/critic"] == pytest.approx(4.5)


def test_values_are_those_of_the_state_before_each_token(policy: LlamaForCausalLM) -> None:
    critic = make_critic(policy)
    learner = with_parts(make_learner(policy, estimator=TOKEN_GAE, critic=critic), estimate=Fixed(0.0))
    batch = credited(learner, experience_of(make_trajectory([make_step(policy, (5, 6), (7, 8))], 1.0)))
    assert batch.arrays.old_values_N is not None
    expected = [value_after(critic, state) for state in ((5, 6), (5, 6, 7))]
    assert batch.arrays.old_values_N.tolist() == pytest.approx(expected, abs=1e-4)


def test_the_learning_rate_rises_over_the_warm_up_and_stays(policy: LlamaForCausalLM) -> None:
    experience = experience_of(*random_group(policy, 0, [1.0, 0.0]))
    critic_settings = CriticConfig(kind="own", learning_rate=4e-4)
    learner = make_learner(
        policy,
        estimator=TOKEN_GAE,
        critic=make_critic(policy),
        critic_settings=critic_settings,
        optimizer=OptimizerConfig(learning_rate=8e-4, warmup_steps=3),
    )
    rates = []
    for step in range(6):
        learner.learn_sync(experience, step=step)
        assert learner.critic_optimizer is not None
        rates.append((learner.policy_optimizer.param_groups[0]["lr"], learner.critic_optimizer.param_groups[0]["lr"]))
    assert [rate for rate, _ in rates] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 8e-4, 8e-4])
    assert [rate for _, rate in rates] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4, 4e-4, 4e-4])


def test_the_learning_rate_falls_in_a_straight_line_to_its_final_fraction(policy: LlamaForCausalLM) -> None:
    experience = experience_of(*random_group(policy, 0, [1.0, 0.0]))
    learner = make_learner(policy, optimizer=OptimizerConfig(learning_rate=1e-3, final_fraction=0.2))
    rates = []
    for step in range(6):
        learner.learn_sync(experience, step=step)
        rates.append(learner.policy_optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3, 8e-4, 6e-4, 4e-4, 2e-4, 2e-4])


@pytest.mark.whole
def test_a_learner_restored_from_its_state_goes_on_bit_for_bit(policy: LlamaForCausalLM) -> None:
    first, second = (experience_of(*random_batch(policy, seed)) for seed in (0, 10))

    def fresh() -> TorchLearner:
        return make_learner(
            copy.deepcopy(policy),
            estimator=TOKEN_GAE,
            critic=make_critic(policy),
            optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=3, weight_decay=0.01),
            epochs=2,
            minibatches=2,
        )

    uninterrupted = fresh()
    uninterrupted.learn_sync(first, step=0)
    saved = io.BytesIO()
    torch.save(uninterrupted.state_dict(), saved)
    expected = uninterrupted.learn_sync(second, step=1)
    saved.seek(0)
    resumed = fresh()
    resumed.load_state_dict(torch.load(saved, weights_only=True))
    found = resumed.learn_sync(second, step=1)
    assert found == expected
    assert uninterrupted.critic is not None
    assert resumed.critic is not None
    assert same_weights(resumed.policy, weights_of(uninterrupted.policy))
    assert same_weights(resumed.critic, weights_of(uninterrupted.critic))


def test_a_restored_learner_remembers_its_bad_updates(policy: LlamaForCausalLM) -> None:
    experience = experience_of(*random_group(policy, 0, [1.0, 0.0]))
    before = with_parts(make_learner(copy.deepcopy(policy), max_skipped_updates=2), loss=not_a_number)
    before.learn_sync(experience, step=0)
    after = with_parts(make_learner(policy, max_skipped_updates=2), loss=not_a_number)
    after.load_state_dict(before.state_dict())
    with pytest.raises(DivergenceError):
        after.learn_sync(experience, step=1)


def test_minibatches_are_the_same_for_the_same_step_and_differ_between_steps(policy: LlamaForCausalLM) -> None:
    learner = make_learner(policy, minibatches=2)
    experience = experience_of(*random_batch(policy, num_groups=6))
    assert learner._minibatches(experience, 3) == learner._minibatches(experience, 3)
    assert len({str(learner._minibatches(experience, step)) for step in range(6)}) > 1


def test_a_group_is_never_split_over_minibatches_and_every_sample_is_used_once_an_epoch(
    policy: LlamaForCausalLM,
) -> None:
    experience = experience_of(*random_batch(policy, num_groups=5))
    updates = make_learner(policy, epochs=2, minibatches=2)._minibatches(experience, 0)
    table = experience.table
    groups = [set(table.group_R[table.trajectory_S[torch.tensor(update)]].tolist()) for update in updates]
    for epoch in (0, 1):
        first, second = groups[2 * epoch : 2 * epoch + 2]
        assert first.isdisjoint(second)
        assert sorted(updates[2 * epoch] + updates[2 * epoch + 1]) == list(range(len(experience.samples)))


def test_the_first_update_starts_at_ratio_one(policy: LlamaForCausalLM) -> None:
    metrics = make_learner(policy).learn_sync(experience_of(*random_batch(policy)), step=0)
    assert metrics["policy/ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["policy/clip_fraction"] == 0.0
    assert metrics["offpolicy/logprob_difference"] < 1e-4


def test_learning_makes_good_actions_likelier_than_bad_ones(policy: LlamaForCausalLM) -> None:
    prompt, good, bad = (5, 6, 7), (8, 9), (10, 11)
    batch = [
        make_trajectory([make_step(policy, prompt, good)], 1.0),
        make_trajectory([make_step(policy, prompt, bad)], 0.0),
    ]
    with torch.no_grad():
        before = float(row_logprobs(policy, prompt, good).sum() - row_logprobs(policy, prompt, bad).sum())
    make_learner(policy).learn_sync(experience_of(*batch), step=0)
    with torch.no_grad():
        after = float(row_logprobs(policy, prompt, good).sum() - row_logprobs(policy, prompt, bad).sum())
    assert after > before + 0.01


# --- models and warm start -----------------------------------------------------------------------------------------


def test_a_loaded_model_scores_the_same_twice_even_if_its_configuration_has_dropout(tmp_path: Path) -> None:
    """Dropout while scoring would make the ratio of an unchanged policy noise, and a resumed run another run."""
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        attention_dropout=0.5,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    policy = load_policy(str(tmp_path), dtype="float32", device=CPU, attention=TRIE_ATTENTION)
    sample = [Sample.of_step(tuple(range(20)), (20, 21))]
    first, second = (score_samples(policy, sample, rows_on_cpu()) for _ in range(2))
    assert first.tolist() == second.tolist()


def test_a_model_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_policy(str(tmp_path / "nothing"), dtype="float32", device=CPU, attention=TRIE_ATTENTION)


CONVERSATIONS = [
    [DemonstrationRow(token_ids=(5, 6, 7, 8, 9), actions=(2, 3))],
    [DemonstrationRow(token_ids=(5, 20, 21), actions=(2,)), DemonstrationRow(token_ids=(5, 20, 22, 23), actions=(3,))],
]


def fit(policy: nn.Module, steps: int, micro_batch_tokens: int = 4096) -> list[float]:
    losses: list[float] = []
    fit_demonstrations(
        policy,
        CONVERSATIONS,
        steps=steps,
        batch_size=2,
        learning_rate=1e-2,
        optimizer=OptimizerConfig(),
        compute=rows_on_cpu(micro_batch_tokens),
        seed=0,
        on_step=lambda step, loss: losses.append(loss),
    )
    return losses


def test_a_warm_start_minimises_the_mean_loss_of_the_demonstrated_tokens(policy: LlamaForCausalLM) -> None:
    with torch.no_grad():
        logprobs = torch.cat(
            [
                row_logprobs(policy, (5, 6), (7, 8)),
                row_logprobs(policy, (5, 20), (21,)),
                row_logprobs(policy, (5, 20, 22), (23,)),
            ]
        )
    losses = fit(policy, steps=15)
    assert losses[0] == pytest.approx(-float(logprobs.mean()), rel=1e-4)
    assert losses[-1] < 0.2 * losses[0]


def test_micro_batches_do_not_change_a_warm_start(policy: LlamaForCausalLM) -> None:
    other = copy.deepcopy(policy)
    assert fit(policy, steps=3) == pytest.approx(fit(other, steps=3, micro_batch_tokens=5), rel=1e-4)
