"""Critics: on a trunk of their own or the policy's, warmed up alone, and reading what the policy never sees."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import agent_r1
from agent_r1.algorithms import Credit
from agent_r1.algorithms.algorithm import bind_algorithm
from agent_r1.chat import ChatRenderer
from agent_r1.config import AlgorithmConfig, CriticConfig, OptimizerConfig
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv
from agent_r1.errors import ConfigError
from agent_r1.learner import learner as learner_module
from agent_r1.learner import policy_updates
from agent_r1.learner.credit import CreditedBatch, explained_variance
from agent_r1.learner.critics import VALUE_REACH, ClosedFormCritic, Critic, SharedCritic, TrainedCritic
from agent_r1.learner.critics import make_critic as make_critic_of_kind
from agent_r1.learner.experience import CriticView, Experience
from agent_r1.learner.learner import TorchLearner
from agent_r1.learner.packing.samples import MicroBatch, Sample, pack
from agent_r1.learner.scoring import score_micro_batch, value_micro_batch
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.runs import read_trajectories
from agent_r1.types import Action, Group, Observation, SamplingParams, StepResult, StopReason, Task, TokenIds
from tests.helpers.hand_made import (
    CPU,
    TOKEN_GAE,
    Fixed,
    assert_same_gradients,
    credited,
    experience_of,
    gather,
    gradients_of,
    kind_of,
    make_critic,
    make_learner,
    make_shared_critic,
    make_step,
    make_trajectory,
    plain_values,
    random_batch,
    random_group,
    row_logprobs,
    rows_on_cpu,
    same_weights,
    sharpened,
    token_variety,
    value_after,
    weights_of,
    with_parts,
)

STEP_GAE = {"name": "step_gae"}


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


def critic_of(learner: TorchLearner) -> TrainedCritic:
    assert learner.critic is not None
    return learner.critic


def critic_gradients(learner: TorchLearner) -> list[Tensor]:
    assert learner.critic_optimizer is not None
    return gradients_of(learner.critic_optimizer)


# --- one trunk for both --------------------------------------------------------------------------------------------


def test_one_pass_of_a_shared_trunk_gives_the_log_probs_and_values_of_two(policy: LlamaForCausalLM) -> None:
    critic, passes = make_shared_critic(policy), []
    policy.get_decoder().register_forward_hook(lambda *arguments: passes.append(1))
    experience = experience_of(*random_group(policy, 3, [1.0, 0.0]))
    passes.clear()
    (micro,) = pack(experience.samples, range(len(experience.samples)), max_tokens=4096)
    with torch.no_grad():
        scores = score_micro_batch(policy, micro, rows_on_cpu(), value_of=critic.value_of)
    assert len(passes) == 1
    assert scores.values_N is not None
    logprobs_N, values_N = torch.zeros(len(micro.tokens_N)), torch.zeros(len(micro.tokens_N))
    logprobs_N[micro.tokens_N], values_N[micro.tokens_N] = scores.logprobs_N, scores.values_N
    with torch.no_grad():
        expected = [
            row_logprobs(policy, sample.token_ids[:first], sample.token_ids[first:])
            for sample in experience.samples
            for first in sample.action_positions[:1]
        ]
    assert logprobs_N.tolist() == pytest.approx(torch.cat(expected).tolist(), abs=1e-4)
    before = [sample.token_ids[:place] for sample in experience.samples for place in sample.action_positions]
    assert values_N.tolist() == pytest.approx([value_after(critic, state) for state in before], abs=1e-4)
    assert float(values_N.std()) > 0.1


def separate_gradients(
    policy: nn.Module, head: nn.Linear, batch: CreditedBatch
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """One unpadded row after the other: gradients of the policy's loss and of the value loss on the trunk, and of the
    value loss on the head. Every token weighs the same; both losses stand where the update starts (ratio 1, V = V_old).
    """
    credit, first = batch.credit, 0
    assert credit.returns_N is not None
    assert credit.valued_N is not None
    policy_loss, value_loss = torch.zeros(()), torch.zeros(())
    for sample in batch.experience.samples:
        tokens = slice(first, first + len(sample.action_positions))
        first = tokens.stop
        ids, before = torch.tensor([sample.token_ids]), torch.tensor(sample.action_positions) - 1
        output = policy(input_ids=ids, use_cache=False, output_hidden_states=True)
        logprobs = output.logits[0, before].log_softmax(-1)[torch.arange(len(before)), ids[0, before + 1]]
        policy_loss = policy_loss - (credit.advantages_N[tokens].float() * logprobs).sum() / len(credit.credited_N)
        values = plain_values(head, output.hidden_states[-1][0, before])
        squared = 0.5 * (values - credit.returns_N[tokens].float()) ** 2
        value_loss = value_loss + squared[credit.valued_N[tokens]].sum() / int(credit.valued_N.sum())
    weights = list(policy.parameters())
    return (
        list(torch.autograd.grad(policy_loss, weights, retain_graph=True)),
        list(torch.autograd.grad(value_loss, weights, retain_graph=True)),
        list(torch.autograd.grad(value_loss, list(head.parameters()))),
    )


@pytest.mark.parametrize("estimator", [TOKEN_GAE, STEP_GAE])
@pytest.mark.parametrize("shared_weight", [0.1, 2.0])
def test_a_shared_trunks_gradient_is_the_policys_plus_the_weighted_value_loss(
    policy: LlamaForCausalLM, estimator: dict[str, Any], shared_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_updates, "SHARED_WEIGHT", shared_weight)
    critic = make_shared_critic(policy)
    experience = experience_of(*random_group(policy, 3, [1.0, 0.0, 2.0]))
    learner = make_learner(
        policy,
        estimator=estimator,
        critic=critic,
        critic_settings=CriticConfig(kind="shared"),
        aggregation="token-mean",
    )
    of_policy, of_values, of_head = separate_gradients(
        copy.deepcopy(policy), copy.deepcopy(critic.head), credited(learner, experience)
    )
    learner.learn_sync(experience, step=0)
    expected = [own + shared_weight * other for own, other in zip(of_policy, of_values, strict=True)]
    assert_same_gradients(gradients_of(learner.policy_optimizer), expected, tolerance=1e-4)
    for found, by_hand in zip(critic_gradients(learner), of_head, strict=True):
        assert torch.allclose(found / found.norm(), by_hand / by_hand.norm(), atol=1e-4)


@pytest.mark.parametrize("estimator", [TOKEN_GAE, STEP_GAE])
def test_micro_batches_do_not_change_the_gradient_of_a_shared_trunk(
    policy: LlamaForCausalLM, estimator: dict[str, Any]
) -> None:
    experience = experience_of(*random_batch(policy))
    found, metrics = [], []
    for budget in (4096, max(map(len, experience.samples))):
        own = copy.deepcopy(policy)
        learner = make_learner(
            own,
            estimator=estimator,
            critic=make_shared_critic(own),
            critic_settings=CriticConfig(kind="shared"),
            micro_batch_tokens=budget,
        )
        metrics.append(learner.learn_sync(experience, step=0))
        found.append(gradients_of(learner.policy_optimizer) + critic_gradients(learner))
    assert_same_gradients(found[1], found[0])
    for name in ("loss/critic", "loss/policy", "critic/value", "critic/explained_variance"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-4, abs=1e-6)


def test_only_the_head_of_a_shared_critic_is_its_own(policy: LlamaForCausalLM) -> None:
    critic = SharedCritic(policy)
    assert set(critic.state_dict()) == {"head.weight", "head.bias"}
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=critic, critic_settings=CriticConfig(kind="shared"))
    assert learner.critic_optimizer is not None
    (of_critic,) = learner.critic_optimizer.param_groups
    (of_policy,) = learner.policy_optimizer.param_groups
    assert [id(parameter) for parameter in of_critic["params"]] == [id(critic.head.weight), id(critic.head.bias)]
    assert {id(parameter) for parameter in of_policy["params"]} == {id(parameter) for parameter in policy.parameters()}
    assert critic.trunk is policy.get_decoder()


def test_a_value_asked_of_a_shared_critic_sends_no_gradient_into_the_policy(policy: LlamaForCausalLM) -> None:
    critic = make_shared_critic(policy)
    (micro,) = pack([Sample.of_step((5, 6), (7,))], [0], max_tokens=9)
    value_micro_batch(critic, micro, rows_on_cpu()).sum().backward()
    assert critic.head.weight.grad is not None
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_a_shared_critic_and_one_of_its_own_start_from_the_same_values(policy: LlamaForCausalLM) -> None:
    experience = experience_of(*random_group(policy, 3, [1.0, 0.0]))
    found = []
    for critic in (make_critic(policy), make_shared_critic(policy)):
        batch = credited(make_learner(policy, estimator=TOKEN_GAE, critic=critic), experience)
        assert batch.arrays.old_values_N is not None
        found.append(batch.arrays.old_values_N.tolist())
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_a_shared_weight_of_0_keeps_the_value_loss_out_of_the_trunk_but_the_head_learns(
    policy: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_updates, "SHARED_WEIGHT", 0.0)
    critic = make_shared_critic(policy)
    before = weights_of(critic)
    experience = experience_of(*random_group(policy, 3, [1.0, 0.0]))
    settings = CriticConfig(kind="shared")
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=critic, critic_settings=settings)
    learner.learn_sync(experience, step=0)
    assert not same_weights(critic, before)


# --- the critic learns first ---------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("make", [make_critic, make_shared_critic])
def test_in_the_warm_up_only_the_critic_learns(
    policy: LlamaForCausalLM, make: Callable[[nn.Module], TrainedCritic]
) -> None:
    critic = make(policy)
    experience = experience_of(*random_batch(policy))
    settings = CriticConfig(warmup_steps=2, kind=kind_of(critic))
    learner = make_learner(
        policy,
        estimator=TOKEN_GAE,
        critic=critic,
        critic_settings=settings,
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.1),
        epochs=2,
    )
    start = weights_of(policy)
    for step in (0, 1):
        before = weights_of(critic)
        metrics = learner.learn_sync(experience, step=step)
        assert same_weights(policy, start)
        assert all(not torch.equal(parameter, before[name]) for name, parameter in critic.named_parameters())
        assert metrics["loss/updates"] == 0.0
        assert metrics["loss/critic"] > 0.0
    assert not learner.policy_optimizer.state
    before = weights_of(critic)
    assert learner.learn_sync(experience, step=2)["loss/updates"] == 1.0
    assert all(not torch.equal(parameter, start[name]) for name, parameter in policy.named_parameters())
    assert not same_weights(critic, before)


@pytest.mark.whole
@pytest.mark.parametrize("kind", [Critic, SharedCritic])
def test_a_warm_up_makes_the_values_better(policy: LlamaForCausalLM, kind: type[TrainedCritic]) -> None:
    settings = CriticConfig(warmup_steps=9, learning_rate=1e-3, kind="shared" if kind is SharedCritic else "own")
    learner = make_learner(
        policy, estimator={**TOKEN_GAE, "lam": 1.0}, critic=kind(policy), critic_settings=settings, epochs=3
    )
    experience = experience_of(*random_batch(policy))
    explained = [learner.learn_sync(experience, step=step)["critic/explained_variance"] for step in range(5)]
    assert explained[0] == pytest.approx(0.0)
    assert explained[-1] > 0.2


# --- a critic in closed form ---------------------------------------------------------------------------------------


def closed_form_learner(policy: nn.Module, estimator: dict[str, Any], **settings: Any) -> TorchLearner:
    critic = ClosedFormCritic(policy, within_steps=estimator["name"] == "token_gae")
    return make_learner(
        policy, estimator=estimator, critic=critic, critic_settings=CriticConfig(kind="closed_form", **settings)
    )


def told_by_the_prompt(policy: nn.Module, seed: int, num_groups: int = 8) -> Experience:
    """Groups of four one-step episodes whose return is in their prompt, but for some noise."""
    rng, batch = random.Random(seed), []
    for group_id in range(num_groups):
        good = rng.random() < 0.5
        step = make_step(policy, (20 if good else 30, rng.randint(40, 90)), (7, 8))
        batch += [make_trajectory([step], float(good) + rng.gauss(0.0, 0.1), group_id=group_id) for _ in range(4)]
    return experience_of(*batch)


@pytest.mark.parametrize("estimator", [TOKEN_GAE, STEP_GAE])
def test_a_critic_in_closed_form_explains_new_returns_after_one_batch(
    policy: LlamaForCausalLM, estimator: dict[str, Any]
) -> None:
    learner = closed_form_learner(policy, estimator)
    learner.policy_optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    first, second = (learner.learn_sync(told_by_the_prompt(policy, seed), step=seed) for seed in (0, 1))
    assert first["critic/explained_variance"] > 0.3  # from the other episodes of the same batch
    assert first["critic/explained_variance_new_tasks"] == pytest.approx(0.0)
    assert second["critic/explained_variance"] > 0.7
    assert second["critic/explained_variance_new_tasks"] > 0.5


@pytest.mark.parametrize("estimator", [TOKEN_GAE, STEP_GAE])
def test_the_values_of_a_closed_form_are_not_moved_by_the_episodes_own_return(
    policy: LlamaForCausalLM, estimator: dict[str, Any]
) -> None:
    rng = random.Random(0)
    prompts = [(5 + number, 40) for number in range(6)]
    outcomes = [rng.random() for _ in prompts]
    found = []
    for shift in (0.0, 3.0):
        batch = [
            make_trajectory([make_step(policy, prompt, (7, 8))], outcome + shift * (number == 2), group_id=number // 2)
            for number, (prompt, outcome) in enumerate(zip(prompts, outcomes, strict=True))
        ]
        values_N = credited(closed_form_learner(policy, estimator), experience_of(*batch)).arrays.old_values_N
        assert values_N is not None
        found.append(values_N.reshape(6, 2))
    assert torch.allclose(found[0][2], found[1][2])
    assert not torch.allclose(found[0][3], found[1][3])


def test_a_closed_form_values_only_what_the_estimator_asks_for(policy: LlamaForCausalLM) -> None:
    learner = closed_form_learner(policy, STEP_GAE)
    values_N = credited(learner, told_by_the_prompt(policy, 0)).arrays.old_values_N
    assert values_N is not None
    assert (values_N.reshape(-1, 2)[:, 0] != 0).all()
    assert (values_N.reshape(-1, 2)[:, 1] == 0).all()


def test_a_closed_form_has_no_optimizer_and_leaves_the_policys_update_alone(policy: LlamaForCausalLM) -> None:
    """One update on its advantages is that of a learner without a critic on the same advantages."""
    experience = told_by_the_prompt(policy, 0)
    own = copy.deepcopy(policy)
    learner = closed_form_learner(policy, TOKEN_GAE)
    advantages_N = credited(closed_form_learner(own, TOKEN_GAE), experience).credit.advantages_N

    def same(table: Any) -> Credit:
        return Credit(advantages_N=advantages_N, credited_N=torch.ones(table.num_tokens, dtype=torch.bool))

    plain = with_parts(make_learner(own), estimate=same)
    metrics = learner.learn_sync(experience, step=0)
    plain.learn_sync(experience, step=0)
    assert learner.critic_optimizer is None
    assert "loss/critic" not in metrics
    assert_same_gradients(gradients_of(learner.policy_optimizer), gradients_of(plain.policy_optimizer))


def test_in_the_warm_up_a_closed_form_takes_batches_in_and_the_policy_stands_still(policy: LlamaForCausalLM) -> None:
    before = weights_of(policy)
    learner = closed_form_learner(policy, STEP_GAE, warmup_steps=1)
    assert learner.learn_sync(told_by_the_prompt(policy, 0), step=0)["loss/updates"] == 0.0
    assert same_weights(policy, before)
    assert learner.learn_sync(told_by_the_prompt(policy, 1), step=1)["critic/explained_variance"] > 0.5
    assert not same_weights(policy, before)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["closed_form", "own", "shared"])
def test_a_restored_critic_goes_on_as_if_nothing_had_happened(policy: LlamaForCausalLM, kind: str) -> None:
    def learner_of(model: nn.Module) -> TorchLearner:
        settings = CriticConfig(kind=kind)
        critic = make_critic_of_kind(model, settings, within_steps=True)
        return make_learner(model, estimator=TOKEN_GAE, critic=critic, critic_settings=settings)

    first = learner_of(copy.deepcopy(policy))
    first.learn_sync(told_by_the_prompt(policy, 0), step=0)
    second = learner_of(copy.deepcopy(policy))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    found = [learner.learn_sync(told_by_the_prompt(policy, 1), step=1) for learner in (first, second)]
    assert found[0] == found[1]
    assert same_weights(second.policy, weights_of(first.policy))


def test_nothing_is_explained_where_returns_differ_by_rounding_errors_only() -> None:
    """Every episode earned 1: values were added to and subtracted from the returns on the way."""
    earned, valued = torch.tensor([1.0, 1.0 - 2e-16, 1.0 + 3e-16], dtype=torch.float64), torch.tensor([0.9, 0.7, 0.8])
    assert float(earned.var(correction=0)) > 0
    assert explained_variance(earned, valued, "critic/explained_variance") == {}
    assert explained_variance(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]), "share") == {"share": 0.75}


@pytest.mark.parametrize("source", ["ground_truth", None])
def test_a_closed_form_can_read_what_the_policy_never_sees(policy: LlamaForCausalLM, source: str | None) -> None:
    """The same prompt and action in every episode; what it earns is known to the hidden text alone."""
    groups = [
        one_group(
            [make_step(policy, (5, 6), (7,))], ground_truth=truth, outcome=float(truth == "left"), group_id=number
        )
        for number, truth in enumerate(("left", "right") * 6)
    ]
    learner = closed_form_learner(policy, STEP_GAE, privileged=source)
    experience = gather(groups, view=view(source))
    explained = [learner.learn_sync(experience, step=step)["critic/explained_variance"] for step in range(2)]
    assert (explained[-1] > 0.9) == (source is not None)


@pytest.mark.parametrize("kind", [Critic, SharedCritic])
def test_after_the_first_batch_a_trained_head_is_the_closed_form_of_it(
    policy: LlamaForCausalLM, kind: type[TrainedCritic]
) -> None:
    """Without a step of its own, a head that said 0 explains most of the next batch."""
    settings = CriticConfig(learning_rate=0.0, kind="shared" if kind is SharedCritic else "own")
    learner = make_learner(policy, estimator=STEP_GAE, critic=kind(policy), critic_settings=settings)
    learner.policy_optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    first, second = (learner.learn_sync(told_by_the_prompt(policy, seed), step=seed) for seed in (0, 1))
    assert first["critic/explained_variance"] == pytest.approx(0.0)
    assert second["critic/explained_variance"] > 0.5


# --- what the critic is trained on ---------------------------------------------------------------------------------


def test_explained_variance_is_the_share_of_the_targets_variance_that_the_values_explain(
    policy: LlamaForCausalLM,
) -> None:
    """Two single-token episodes with returns 3 and 1: their variance is 1."""
    critic = make_critic(policy)
    batch = [
        make_trajectory([make_step(policy, (5, 6), (7,))], 3.0),
        make_trajectory([make_step(policy, (8, 9), (7,))], 1.0),
    ]
    first, second = value_after(critic, (5, 6)), value_after(critic, (8, 9))
    metrics = make_learner(policy, estimator=TOKEN_GAE, critic=critic).learn_sync(experience_of(*batch), step=0)
    left = ((3.0 - first) - (1.0 - second)) / 2  # half the distance of two numbers is their standard deviation
    assert abs(first - second) > 0.05
    assert metrics["critic/explained_variance"] == pytest.approx(1.0 - left**2, abs=1e-4)
    assert metrics["critic/value"] == pytest.approx((first + second) / 2, abs=1e-5)


def test_equal_targets_have_no_variance_to_explain(policy: LlamaForCausalLM) -> None:
    batch = [make_trajectory([make_step(policy, prompt, (7,))], 1.0) for prompt in ((5, 6), (8, 9))]
    metrics = make_learner(policy, estimator=TOKEN_GAE, critic=make_critic(policy)).learn_sync(
        experience_of(*batch), step=0
    )
    assert "critic/explained_variance" not in metrics


@pytest.mark.parametrize("kind", [Critic, SharedCritic])
def test_after_later_batches_all_values_have_gone_half_of_the_way_to_the_mean_return(
    policy: LlamaForCausalLM, kind: type[TrainedCritic]
) -> None:
    """One state with returns 3 and 1: the first batch solves the head, which says 2. Then the returns rise by 2, and
    without a step of its own the critic says 3 next, and 3.5 after that."""

    def batch(more: float) -> Experience:
        returns = (3.0 + more, 1.0 + more)
        return experience_of(*(make_trajectory([make_step(policy, (5, 6), (7,))], earned) for earned in returns))

    settings = CriticConfig(learning_rate=0.0, kind="shared" if kind is SharedCritic else "own")
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=kind(policy), critic_settings=settings)
    learner.policy_optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    said = [learner.learn_sync(batch(0.0 if step == 0 else 2.0), step=step)["critic/value"] for step in range(4)]
    assert said == pytest.approx([0.0, 2.0, 3.0, 3.5], abs=1e-4)


def test_returns_that_are_no_numbers_leave_the_values_where_they_were(policy: LlamaForCausalLM) -> None:
    batch = experience_of(make_trajectory([make_step(policy, (5, 6), (7,))], math.nan))
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=Critic(policy))
    learner.learn_sync(batch, step=0)
    assert critic_of(learner).head.bias.item() == 0.0


class KeepsValues(Critic):
    """Keeps what it said, to see where a gradient arrives."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__(policy)
        self.kept: list[tuple[Tensor, Tensor]] = []

    def hidden(self, batch: MicroBatch) -> Tensor:
        hidden = super().hidden(batch)
        if hidden.requires_grad:
            hidden.retain_grad()
            self.kept.append((batch.input_ids, hidden))
        return hidden


@pytest.mark.parametrize(
    ("estimator", "places"), [(STEP_GAE, {(5, 6), (10, 11)}), (TOKEN_GAE, {(5, 6), (5, 6, 7), (10, 11)})]
)
def test_the_value_loss_is_taken_before_each_step_or_before_each_token(
    policy: LlamaForCausalLM, estimator: dict[str, Any], places: set[TokenIds]
) -> None:
    """Two steps: the tokens 7 and 8 after (5, 6), the token 12 after (10, 11)."""
    batch = [make_trajectory([make_step(policy, (5, 6), (7, 8)), make_step(policy, (10, 11), (12,))], 3.0)]
    critic = KeepsValues(policy)
    critic.head.load_state_dict(make_critic(policy).head.state_dict())
    make_learner(policy, estimator=estimator, critic=critic).learn_sync(experience_of(*batch), step=0)
    found = set()
    for input_ids, hidden in critic.kept:
        assert hidden.grad is not None
        for row, column in (hidden.grad.abs().sum(-1) > 0).nonzero().tolist():
            found.add(tuple(input_ids[row, : column + 1].tolist()))
    assert found == places


def test_a_value_that_moved_further_than_its_clip_pays_for_the_distance(
    policy: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two updates: 1/2 max((V - G)^2, (clip(V, V_old +- c) - G)^2), whatever helps less."""
    critic, clip = make_critic(policy), 0.01
    experience = experience_of(*random_group(policy, 3, [1.0, -1.0]))

    def learn(epochs: int) -> tuple[TorchLearner, dict[str, float]]:
        settings = CriticConfig(kind="own", value_clip=clip, learning_rate=0.02)
        learner = make_learner(
            copy.deepcopy(policy),
            estimator=TOKEN_GAE,
            critic=copy.deepcopy(critic),
            critic_settings=settings,
            epochs=epochs,
        )
        monkeypatch.setattr(learner_module, "correct_critic", lambda *args, **kwargs: False)  # gradient steps alone
        return learner, learner.learn_sync(experience, step=0)

    once, metrics = learn(1)
    batch = credited(make_learner(policy, estimator=TOKEN_GAE, critic=critic), experience)
    assert batch.credit.returns_N is not None
    assert batch.arrays.old_values_N is not None
    states = [sample.token_ids[:place] for sample in experience.samples for place in sample.action_positions]
    losses, plain = [], []
    for state, old, target in zip(
        states, batch.arrays.old_values_N.tolist(), batch.credit.returns_N.tolist(), strict=True
    ):
        moved = value_after(critic_of(once), state)
        held = min(max(moved, old - clip), old + clip)
        plain.append(0.5 * (moved - target) ** 2)
        losses.append(max(plain[-1], 0.5 * (held - target) ** 2))
    second = 2 * learn(2)[1]["loss/critic"] - metrics["loss/critic"]
    assert second == pytest.approx(sum(losses) / len(losses), rel=1e-3)
    assert second > 1.02 * sum(plain) / len(plain)


# --- a critic that reads more than the policy ----------------------------------------------------------------------

SECRETS = {"left\n": (70, 71), "right\n": (72,), "up\n": (73, 74, 75)}
"""What the texts of the tests are as ids; no prompt and no action of them has any of these."""


def secret_ids(text: str) -> TokenIds:
    return SECRETS[text]


def view(source: str | None) -> CriticView:
    return CriticView(source, secret_ids)


def one_group(
    steps: Sequence[Any], *, ground_truth: Any = "left", outcome: float = 1.0, group_id: int = 0, **cut: Any
) -> Group:
    task = Task(task_id=f"task-{group_id}", prompt=(), reward_model={"ground_truth": ground_truth})
    trajectory = make_trajectory(steps, outcome, group_id=group_id, **cut)
    return Group(task=task, group_id=group_id, trajectories=(trajectory,))


def cut_group(policy: nn.Module) -> Group:
    """An episode of two steps, in two hidden states, that is cut in a third."""
    steps = [
        make_step(policy, (5, 6), (7, 8), privileged="right"),
        make_step(policy, (5, 6, 7, 8, 9), (10,), privileged="up"),
    ]
    return one_group(
        steps, stop_reason=StopReason.MAX_STEPS, next_prompt_ids=(5, 6, 7, 8, 9, 10, 11), next_privileged="right"
    )


PREFIXES: dict[str | None, list[TokenIds]] = {
    "ground_truth": [(70, 71)] * 3,
    "observation": [(72,), (73, 74, 75), (72,)],
    None: [()] * 3,
}
"""Before the two steps of `cut_group` and the state it was cut in."""


@pytest.mark.parametrize("source", PREFIXES)
def test_the_critics_rows_stand_behind_what_is_hidden_and_the_policys_do_not(
    policy: LlamaForCausalLM, source: str | None
) -> None:
    experience = gather([cut_group(policy)], view=view(source), bootstrap=True)
    first, second, end = PREFIXES[source]
    assert [sample.token_ids for sample in experience.samples] == [(5, 6, 7, 8), (5, 6, 7, 8, 9, 10)]
    assert [sample.action_positions for sample in experience.samples] == [(2, 3), (5,)]
    assert [sample.token_ids for sample in experience.critic_samples] == [
        (*first, 5, 6, 7, 8),
        (*second, 5, 6, 7, 8, 9, 10),
    ]
    said = [[sample.token_ids[place] for place in sample.action_positions] for sample in experience.critic_samples]
    assert said == [[7, 8], [10]]
    assert experience.cut_states == {0: (*end, 5, 6, 7, 8, 9, 10, 11)}


@pytest.mark.parametrize("source", PREFIXES)
def test_values_and_bootstraps_are_those_of_the_states_with_what_is_hidden(
    policy: LlamaForCausalLM, source: str | None
) -> None:
    critic = make_critic(policy)
    learner = with_parts(make_learner(policy, estimator=TOKEN_GAE, critic=critic), estimate=Fixed())
    batch = credited(learner, gather([cut_group(policy)], view=view(source), bootstrap=True))
    first, second, end = PREFIXES[source]
    states = [(*first, 5, 6), (*first, 5, 6, 7), (*second, 5, 6, 7, 8, 9)]
    assert batch.arrays.old_values_N is not None
    assert batch.arrays.old_values_N.tolist() == pytest.approx(
        [value_after(critic, state) for state in states], abs=1e-4
    )
    bootstrap_R = learner.algorithm.estimate.table.bootstrap_R  # type: ignore[attr-defined]
    assert bootstrap_R.tolist() == pytest.approx([value_after(critic, (*end, 5, 6, 7, 8, 9, 10, 11))], abs=1e-4)


def test_the_critic_is_trained_on_the_rows_with_what_is_hidden(policy: LlamaForCausalLM) -> None:
    critic = make_critic(policy)
    slow = copy.deepcopy(critic)
    experience = gather([cut_group(policy)], view=view("observation"))
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=critic)
    returns_N = credited(learner, experience).credit.returns_N
    assert returns_N is not None
    states = [(72, 5, 6), (72, 5, 6, 7), (73, 74, 75, 5, 6, 7, 8, 9)]
    for state, target in zip(states, returns_N.tolist(), strict=True):
        hidden = slow.trunk(input_ids=torch.tensor([state]), use_cache=False).last_hidden_state
        predicted = plain_values(slow.head, hidden[0, -1])
        (0.5 * (predicted - target) ** 2 / 3).backward()
    learner.learn_sync(experience, step=0)
    expected = [parameter.grad for parameter in slow.parameters() if parameter.grad is not None]
    assert_same_gradients(critic_gradients(learner), expected, tolerance=1e-4)


def test_the_policy_is_trained_on_rows_without_what_is_hidden(policy: LlamaForCausalLM) -> None:
    """With a critic that knows nothing yet, what it reads makes no difference to the policy."""
    groups = [cut_group(policy), one_group([make_step(policy, (5, 6), (12, 13))], outcome=0.0, group_id=1)]
    learners = []
    for source in (None, "ground_truth", "observation"):
        learners.append(make_learner(copy.deepcopy(policy), estimator=TOKEN_GAE, critic=Critic(policy)))
        learners[-1].learn_sync(gather(groups, view=view(source)), step=0)
    assert not same_weights(policy, weights_of(learners[0].policy))
    assert all(same_weights(learner.policy, weights_of(learners[0].policy)) for learner in learners)
    assert not same_weights(critic_of(learners[1]), weights_of(critic_of(learners[0])))


def test_a_state_with_nothing_hidden_has_no_prefix(policy: LlamaForCausalLM) -> None:
    experience = gather([one_group([make_step(policy, (5,), (6,))])], view=view("observation"))
    assert experience.critic_samples == experience.samples


def test_a_row_without_a_ground_truth_has_no_prefix(policy: LlamaForCausalLM) -> None:
    group = one_group([make_step(policy, (5,), (6,))], ground_truth=None)
    experience = gather([group], view=CriticView("ground_truth", lambda text: (70,)))
    assert experience.critic_samples == experience.samples


def test_a_ground_truth_that_is_a_number_is_read_as_text(policy: LlamaForCausalLM) -> None:
    heard: list[str] = []

    def encode(text: str) -> TokenIds:
        heard.append(text)
        return (70,)

    gather([one_group([make_step(policy, (5,), (6,))], ground_truth=0)], view=CriticView("ground_truth", encode))
    assert heard == ["0\n"]


def test_a_trunk_that_is_shared_cannot_read_what_the_policy_must_not() -> None:
    settings = CriticConfig(kind="shared", privileged="ground_truth")
    with pytest.raises(ConfigError, match=r"critic\.kind=shared and algorithm\.critic\.privileged exclude"):
        bind_algorithm(AlgorithmConfig(estimator=dict(TOKEN_GAE), critic=settings))


def explained_after_learning(policy: nn.Module, source: str | None) -> list[float]:
    """The same prompt and action in every episode; what it earns is known to the hidden text alone."""
    groups = [
        one_group(
            [make_step(policy, (5, 6), (7,))], ground_truth=truth, outcome=float(truth == "left"), group_id=number
        )
        for number, truth in enumerate(("left", "right") * 3)
    ]
    settings = CriticConfig(kind="own", learning_rate=5e-3, value_clip=None, privileged=source, warmup_steps=99)
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=Critic(policy), critic_settings=settings)
    experience = gather(groups, view=view(source))
    return [learner.learn_sync(experience, step=step)["critic/explained_variance"] for step in range(25)]


@pytest.mark.whole
def test_a_return_that_only_the_hidden_text_tells_is_explained_by_a_critic_that_reads_it(
    policy: LlamaForCausalLM,
) -> None:
    reads, does_not = explained_after_learning(policy, "ground_truth"), explained_after_learning(policy, None)
    assert reads[0] == pytest.approx(0.0)
    assert reads[-1] > 0.9
    assert max(map(abs, does_not)) < 0.01


# --- whole runs with a critic that reads more ----------------------------------------------------------------------


class Guess(AgentEnv):
    """Never ends; knows a word that it never shows, another one in each state."""

    async def reset(self, task: Task) -> Observation:
        self.messages: tuple[Any, ...] = task.prompt
        self.words = iter(("one", "two", "three", "four"))
        return Observation(messages=self.messages, privileged="zebra zero")

    async def step(self, action: Action) -> StepResult:
        self.messages = (*self.messages, action.as_message(), {"role": "user", "content": "again"})
        return StepResult(observation=Observation(messages=self.messages, privileged=f"zebra {next(self.words)}"))


def write_rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    rows = [
        {"prompt": f"guess {number}", "reward_model": {"style": "rule", "ground_truth": f"zebra {number}"}}
        for number in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(folder: Path, model: Path, name: str, *overrides: str) -> dict[str, Any]:
    """A run of one step with `Guess`; gives its learner's state."""
    agent_r1.train(
        overrides=[
            "algorithm=ppo",
            "algorithm.critic.kind=own",
            f"run.folder={folder}",
            f"run.name={name}",
            "trainer.steps=1",
            "rollout.groups_per_step=2",
            "rollout.group_size=2",
            "rollout.max_steps=2",
            "rollout.max_tokens=4",
            *overrides,
        ],
        model=model,
        data=write_rows(folder),
        env=Guess,
        reward=token_variety,
        quiet=True,
    )
    state = torch.load(folder / name / "checkpoints" / "step_1" / "state.pt", weights_only=True)
    learner: dict[str, Any] = state["learner"]
    return learner


@pytest.mark.whole
def test_runs_whose_critics_read_more_show_the_policy_nothing_of_it(
    tmp_path: Path, model_folder: Path, renderer: ChatRenderer
) -> None:
    states = {
        name: train(tmp_path, model_folder, name, f"algorithm.critic.privileged={source}")
        for name, source in (("nothing", "null"), ("truth", "ground_truth"), ("observation", "observation"))
    }
    # A critic that starts from 0 gives the same first advantages whatever it reads; then it has learned other things.
    for name, tensor in states["nothing"]["policy"].items():
        assert all(torch.equal(state["policy"][name], tensor) for state in states.values())
    heads = [state["critic"]["head.weight"] for state in states.values()]
    assert all(not torch.equal(heads[one], heads[other]) for one, other in ((0, 1), (0, 2), (1, 2)))
    episodes = list(read_trajectories(tmp_path / "observation" / "trajectories" / "1.jsonl"))
    assert len(episodes) == 4
    for episode in episodes:
        assert [step.observation.privileged for step in episode.steps] == ["zebra zero", "zebra one"]
        assert episode.next_privileged == "zebra two"
        assert episode.next_prompt_ids is not None
        seen = [step.prompt_ids for step in episode.steps] + [episode.next_prompt_ids]
        assert all("guess" in renderer.tokenizer.decode(ids, skip_special_tokens=False) for ids in seen)
        assert all("zebra" not in renderer.tokenizer.decode(ids, skip_special_tokens=False) for ids in seen)


@pytest.mark.whole
def test_an_episode_that_fills_the_context_can_be_valued_with_what_is_hidden(
    tmp_path: Path, model_folder: Path
) -> None:
    limits = ("trainer.micro_batch_tokens=64", "rollout.max_tokens=30", "rollout.max_steps=9")
    state = train(tmp_path, model_folder, "long", "algorithm.critic.privileged=ground_truth", *limits)
    assert state["critic"]["head.weight"].any()


@pytest.mark.parametrize("source", ["ground_truth", "observation"])
def test_no_hidden_word_is_in_a_prompt_the_engine_sees_or_in_a_row_of_the_policy(
    renderer: ChatRenderer, source: str
) -> None:
    engine = ScriptedEngine(lambda prompt, sampling: (5, 6, renderer.stop_ids[0]))
    rollout = Rollout(
        engine=engine,
        renderer=renderer,
        reward=token_variety,
        make_env=lambda task: Guess(),
        limits=RolloutLimits(max_steps=2),
    )
    task = Task(
        task_id="a", prompt=({"role": "user", "content": "guess"},), reward_model={"ground_truth": "zebra true"}
    )
    groups = asyncio.run(rollout.run([task], group_size=2, sampling=SamplingParams(max_tokens=4), seed=0))
    experience: Experience = gather(groups, view=CriticView(source, renderer.encode), bootstrap=True)

    def shown(rows: Sequence[TokenIds]) -> list[str]:
        return [renderer.tokenizer.decode(ids, skip_special_tokens=False) for ids in rows]

    for text in shown([prompt for prompt, _ in engine.requests] + [s.token_ids for s in experience.samples]):
        assert "guess" in text
        assert "zebra" not in text
    words = {"ground_truth": ["true"] * 3, "observation": ["zero", "one", "two"]}[source]
    read = shown([s.token_ids for s in experience.critic_samples[:2]] + [experience.cut_states[0]])
    assert all(text.startswith(f"zebra {word}\n") for text, word in zip(read, words, strict=True))


@pytest.mark.parametrize("seed", [0, 1])
def test_values_of_random_batches_line_up_with_their_tokens(policy: LlamaForCausalLM, seed: int) -> None:
    """Rows of many lengths, in many micro-batches, each behind a prefix of its own length."""
    rng, critic = random.Random(seed), make_critic(policy)
    words = {"left": (70, 71), "right": (72,), "up": (73, 74, 75)}
    groups = []
    for number in range(4):
        truth = rng.choice(sorted(words))
        (trajectory,) = random_group(policy, seed + number, [1.0], group_id=number)
        groups.append(one_group(trajectory.steps, ground_truth=truth, group_id=number))
    experience = gather(groups, view=view("ground_truth"))
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=critic, micro_batch_tokens=60)
    found_N = credited(learner, experience).arrays.old_values_N
    expected = [
        value_after(critic, words[group.task.ground_truth] + step.prompt_ids + step.action_ids[:index])
        for group in groups
        for trajectory in group
        for step in trajectory.steps
        for index in range(len(step.action_ids))
    ]
    assert found_N is not None
    assert found_N.tolist() == pytest.approx(expected, abs=1e-4)
    assert found_N.device == CPU


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("width", [32, 512])
def test_one_step_moves_a_value_as_far_in_a_wide_model_with_large_hidden_states(width: int, size: float) -> None:
    """Adam's first step changes every weight by the rate; random entries of size 1 sum up to 0.8 an entry."""
    config = LlamaConfig(
        vocab_size=8, hidden_size=width, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    critic = SharedCritic(LlamaForCausalLM(config))
    hidden = size * torch.randn(4, width, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-4, weight_decay=0.0)
    (critic.value_of(hidden)[0] - 1.0).square().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert critic.value_of(hidden)[0].item() == pytest.approx(1e-4 * 0.8 * VALUE_REACH, rel=0.15)
