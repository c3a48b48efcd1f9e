"""Two epochs of two minibatches of every preset, on tries, against losses written out token by token on plain rows."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from agent_r1.algorithms import Algorithm, StepTable, bind_algorithm
from agent_r1.config import AlgorithmConfig, CriticConfig, KLConfig, OptimizerConfig, preset_values, presets
from agent_r1.config.algorithm_schema import ProcessConfig
from agent_r1.learner.credit import CreditedBatch
from agent_r1.learner.critics import ClosedFormCritic
from agent_r1.learner.experience import Experience
from agent_r1.learner.packing.trie import pack_tries
from agent_r1.seeds import mix_seed
from agent_r1.types import Trajectory
from tests.helpers.hand_made import credited, experience_of, make_learner, random_trajectory, sharpened, shifted_copy

RATE = 2e-3
EXTRAS: tuple[dict[str, Any], ...] = (
    {"entropy_coefficient": 0.05},
    {"kl": {"coefficient": 0.1, "estimator": "k2"}},
    {"off_policy": {"name": "token", "cap": 1.1}},
    {"off_policy": {"name": "mask", "low": 0.8, "high": 1.3}},
    {"old_logprobs": "rollout"},
)
"""Every preset is tried with one of these."""


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


@pytest.mark.parametrize(("number", "preset"), list(enumerate(presets("algorithm"))))
def test_the_updates_of_a_preset_are_those_of_its_loss(policy: LlamaForCausalLM, number: int, preset: str) -> None:
    algorithm = algorithm_of(preset, EXTRAS[number % len(EXTRAS)])
    settings = algorithm.settings
    experience = noisy_experience(policy)
    critic = ClosedFormCritic(policy, within_steps=algorithm.values_within_steps) if settings.critic.enabled else None
    learner = make_learner(
        policy,
        critic=critic,
        reference=shifted_copy(policy) if settings.kl.coefficient else None,
        algorithm=algorithm,
        optimizer=OptimizerConfig(learning_rate=RATE, gradient_clip=1e9),
        packer=partial(pack_tries, max_tokens=60, row_tokens=40),
    )
    start, slow = copy.deepcopy(policy), copy.deepcopy(policy)
    unfitted = None if critic is None else critic.state_dict()
    update_slowly(slow, credited(learner, experience), algorithm, learner.models.reference)
    if critic is not None and unfitted is not None:
        critic.load_state_dict(unfitted)
    learner.policy_optimizer = torch.optim.SGD(policy.parameters())
    learner.learn_sync(experience, step=0)
    moved = [(p - s).detach() for p, s in zip(policy.parameters(), start.parameters(), strict=True)]
    expected = [(p - s).detach() for p, s in zip(slow.parameters(), start.parameters(), strict=True)]
    largest = max(float(change.abs().max()) for change in expected)
    assert largest > 0
    assert max(float((m - e).abs().max()) for m, e in zip(moved, expected, strict=True)) < 2e-3 * largest


def algorithm_of(preset: str, extra: dict[str, Any]) -> Algorithm:
    """A preset with two epochs of two minibatches."""
    values = {**(preset_values("algorithm", preset) or {}), **extra, "epochs": 2, "minibatches": 2}
    if "divisor" in values["aggregation"]:  # rollout.max_tokens
        values["aggregation"] = {**values["aggregation"], "divisor": 6}
    for name, kind in (("kl", KLConfig), ("critic", CriticConfig), ("process", ProcessConfig)):
        values[name] = kind(**values.get(name, {}))
    return bind_algorithm(AlgorithmConfig(**values))


def noisy_experience(policy: LlamaForCausalLM) -> Experience:
    """Two groups with spread and one without, from an engine whose log-probs are off."""
    rng = random.Random(0)

    def noisy(episode: Trajectory) -> Trajectory:
        steps = [
            replace(step, rollout_logprobs=tuple(logprob + rng.gauss(0, 0.2) for logprob in step.rollout_logprobs))
            for step in episode.steps
        ]
        return replace(episode, steps=tuple(steps))

    shape = [(3, 1.0, 2), (3, 0.0, 1), (3, 0.2, 1), (0, 1.0, 1), (0, 0.0, 2), (7, 0.5, 1), (7, 0.5, 1)]
    batch = [random_trajectory(policy, rng, outcome, group_id=group, num_steps=num) for group, outcome, num in shape]
    for number in (5, 6):
        batch[number] = replace(batch[number], steps=(replace(batch[number].steps[0], reward=0.0),))
    experience = experience_of(*map(noisy, batch))
    greedy_R = torch.where(experience.table.group_R == 3, math.nan, 0.25).double()
    return replace(experience, table=replace(experience.table, greedy_returns_R=greedy_R))


def scores_of(policy: nn.Module, experience: Experience) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of every action token, from one row per step."""
    logprobs, entropies = [], []
    for sample in experience.samples:
        actions = torch.tensor(sample.action_positions)
        ids = torch.tensor([sample.token_ids])
        distribution = policy(input_ids=ids, use_cache=False).logits[0, actions - 1].log_softmax(-1)
        logprobs.append(distribution.gather(1, ids[0, actions, None]).squeeze(1))
        entropies.append(-(distribution.exp() * distribution).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def update_slowly(policy: nn.Module, batch: CreditedBatch, algorithm: Algorithm, reference: nn.Module | None) -> None:
    """The four updates, by plain gradient descent."""
    settings, table, credit = algorithm.settings, batch.table, batch.credit
    with torch.no_grad():
        first_N = scores_of(policy, batch.experience)[0]
        reference_N = None if reference is None else scores_of(reference, batch.experience)[0]
    rollout_N = batch.experience.rollout_logprobs_N
    old_N = rollout_N if settings.old_logprobs == "rollout" else first_N
    correction = correction_of(settings, old_N, rollout_N)
    group_N = table.group_R[table.trajectory_of_token_N].tolist()
    for epoch in range(2):
        groups = sorted(set(group_N))
        random.Random(mix_seed(0, 0, epoch)).shuffle(groups)
        for part in (groups[::2], groups[1::2]):
            tokens = [j for j, group in enumerate(group_N) if group in part and credit.credited_N[j]]
            if not tokens:
                continue
            logprobs_N, entropies_N = scores_of(policy, batch.experience)
            losses = losses_of(settings, logprobs_N, old_N, credit.advantages_N.float(), table, tokens)
            loss = torch.zeros(())
            for token, weight in zip(tokens, weights_of(settings, table, tokens), strict=True):
                term = losses[token] * correction[token] - settings.entropy_coefficient * entropies_N[token]
                if reference_N is not None and settings.kl.place == "loss":  # k2
                    term = term + settings.kl.coefficient * (logprobs_N[token] - reference_N[token]) ** 2 / 2
                loss = loss + weight * term
            gradients = torch.autograd.grad(loss, list(policy.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(policy.parameters(), gradients, strict=True):
                    parameter -= RATE * gradient


def losses_of(
    settings: AlgorithmConfig,
    logprobs_N: Tensor,
    old_N: Tensor,
    advantages_N: Tensor,
    table: StepTable,
    tokens: list[int],
) -> dict[int, Tensor]:
    """The loss of each of some tokens."""
    name, arguments, losses = settings.loss.name, settings.loss.arguments, dict[int, Tensor]()
    difference_N, step_N = logprobs_N - old_N, table.step_of_token_N
    for token in tokens:
        advantage, own = float(advantages_N[token]), logprobs_N[token]
        ratio = difference_N[token].exp()
        if name == "reinforce":
            losses[token] = -advantage * own
            continue
        if name == "cispo":
            losses[token] = -min(float(ratio.detach()), 1 + arguments["clip_high"]) * advantage * own
            continue
        if arguments["ratio"] == "step":
            mean = float(difference_N[step_N == step_N[token]].detach().mean())
            ratio = math.exp(mean) * (own - own.detach()).exp()
        bounded = ratio.clamp(1 - arguments["clip_low"], 1 + arguments["clip_high"])
        loss = torch.maximum(-advantage * ratio, -advantage * bounded)
        if advantage < 0 and arguments["dual_clip"] is not None:
            loss = loss.clamp(max=-advantage * arguments["dual_clip"])
        losses[token] = loss
    return losses


def weights_of(settings: AlgorithmConfig, table: StepTable, tokens: list[int]) -> list[float]:
    """The weight of each credited token of an update."""
    steps = [int(table.step_of_token_N[token]) for token in tokens]
    episodes = [int(table.trajectory_of_token_N[token]) for token in tokens]
    divisor = settings.aggregation.arguments.get("divisor", 1)
    return {
        "token-mean": [1 / len(tokens) for _ in tokens],
        "step-mean-token-mean": [1 / len(set(steps)) / steps.count(step) for step in steps],
        "trajectory-mean-token-mean": [1 / len(set(episodes)) / episodes.count(episode) for episode in episodes],
        "token-sum-norm": [1 / len(set(episodes)) / divisor for _ in tokens],
    }[settings.aggregation.name]


def correction_of(settings: AlgorithmConfig, old_N: Tensor, rollout_N: Tensor) -> list[float]:
    """The weight of each token for what the engine's log-probs are off."""
    ratios, name, arguments = (
        (old_N - rollout_N).exp().tolist(),
        settings.off_policy.name,
        settings.off_policy.arguments,
    )
    if name == "token":
        return [min(ratio, arguments["cap"]) for ratio in ratios]
    if name == "mask":
        return [float(arguments["low"] <= ratio <= arguments["high"]) for ratio in ratios]
    return [1.0] * len(ratios)
