"""Episodes that a limit cuts: scored or bootstrapped, never both."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1.algorithms.algorithm import bind_algorithm
from agent_r1.config import AlgorithmConfig, CriticConfig, load_config, presets
from agent_r1.errors import ConfigError
from agent_r1.learner.critics import make_critic
from agent_r1.learner.experience import CriticView, gather_experience
from agent_r1.rewards import ProcessBalance, RewardShaping
from agent_r1.types import Group, StopReason, Task, Trajectory
from tests.helpers.hand_made import (
    TOKEN_GAE,
    credited,
    experience_of,
    make_learner,
    make_step,
    make_trajectory,
    sharpened,
)

PRESETS = sorted(presets("algorithm"))
CUT = StopReason.MAX_TOKENS


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


def mixed_group(policy: LlamaForCausalLM, group_id: int) -> list[Trajectory]:
    """Ten rollouts of one task, all alike in length: four right, three wrong, three cut."""
    step = make_step(policy, (5, 6, 10 + group_id), (7, 8))
    ends = [(1.0, StopReason.DONE)] * 4 + [(0.0, StopReason.DONE)] * 3 + [(0.0, CUT)] * 3
    return [
        make_trajectory([step], outcome, group_id=group_id, stop_reason=reason, next_prompt_ids=(5, 6, 10, 7, 8))
        for outcome, reason in ends
    ]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_cut_episode_ranks_with_wrong_ones(policy: LlamaForCausalLM, preset: str) -> None:
    config = load_config(None, [f"algorithm={preset}", "model.path=none"]).algorithm
    algorithm = bind_algorithm(config)
    critic = make_critic(policy, config.critic, within_steps=True) if config.critic.enabled else None
    batch = [trajectory for group_id in range(3) for trajectory in mixed_group(policy, group_id)]
    greedy = make_trajectory([make_step(policy, (5, 6), (7,))], 0.5)
    groups = [
        Group(
            task=Task(task_id=str(g), prompt=()),
            group_id=g,
            trajectories=tuple(t for t in batch if t.group_id == g),
            greedy=greedy if config.group_plan == "with_greedy" else None,
        )
        for g in range(3)
    ]
    shaping = RewardShaping(process=ProcessBalance(), max_tokens=100)
    experience = gather_experience(groups, shaping, CriticView(None, lambda text: ()))
    learner = make_learner(policy, algorithm=algorithm, critic=critic, critic_settings=CriticConfig(kind="closed_form"))
    for _ in range(3):  # with a critic that has learned something too
        advantages_N = credited(learner, experience).credit.advantages_N
    by_episode = advantages_N.reshape(3, 10, 2).mean((0, 2))
    right, wrong, cut = by_episode[:4].mean(), by_episode[4:7].mean(), by_episode[7:].mean()
    assert right > cut + 0.2
    assert float(cut) == pytest.approx(float(wrong), abs=0.05)


@pytest.mark.whole
@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("estimator", ["token_gae", "step_gae"])
@pytest.mark.parametrize("kind", ["closed_form", "own", "shared"])
def test_the_value_converges_when_every_episode_is_cut(
    policy: LlamaForCausalLM, kind: str, estimator: str, bootstrap: bool
) -> None:
    """Half of the episodes earn an outcome of 1. Scored, a state is worth 0.5; bootstrapped, what it leads to, and
    nothing is ever earned: 0."""
    settings = CriticConfig(kind=kind, bootstrap=bootstrap, learning_rate=1e-4)
    step = make_step(policy, (5, 6), (7,))
    batch = [
        make_trajectory([step], float(number % 2), group_id=number, stop_reason=CUT, next_prompt_ids=(5, 6, 7))
        for number in range(12)
    ]
    learner = make_learner(
        policy,
        estimator={"name": estimator},
        critic=make_critic(policy, settings, within_steps=estimator == "token_gae"),
        critic_settings=settings,
    )
    learner.policy_optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    experience = experience_of(*batch, bootstrap=bootstrap)
    values = [learner.learn_sync(experience, step=number)["critic/value"] for number in range(12)]
    assert values[-1] == pytest.approx(0.0 if bootstrap else 0.5, abs=0.1)
    assert max(map(abs, values)) < 0.7


def test_a_cut_episode_without_a_next_state_is_scored_even_under_bootstrap(policy: LlamaForCausalLM) -> None:
    step = make_step(policy, (5, 6), (7,))
    experience = experience_of(make_trajectory([step], 1.0, stop_reason=CUT), bootstrap=True)
    assert experience.table.rewards_S.tolist() == [1.0]
    assert experience.cut_states == {}


def test_no_state_is_valued_for_an_episode_that_is_scored(policy: LlamaForCausalLM) -> None:
    experience = experience_of(*mixed_group(policy, 0))
    assert experience.cut_states == {}
    assert experience.table.rewards_S.tolist() == [1.0] * 4 + [0.0] * 6


def test_process_rewards_of_a_bootstrapped_episode_stay(policy: LlamaForCausalLM) -> None:
    steps = [make_step(policy, (5, 6), (7,), reward=0.25), make_step(policy, (5, 6, 7, 8), (9,), reward=0.5)]
    cut = make_trajectory(steps, 1.0, stop_reason=CUT, next_prompt_ids=(5, 6, 7, 8, 9))
    assert experience_of(cut, bootstrap=True).table.rewards_S.tolist() == [0.25, 0.5]
    assert experience_of(cut).table.rewards_S.tolist() == [0.25, 1.5]


def test_bootstrapping_needs_a_critic() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.critic\.bootstrap is set, but this algorithm has no critic"):
        bind_algorithm(AlgorithmConfig(critic=CriticConfig(bootstrap=True)))
    bind_algorithm(AlgorithmConfig(estimator=dict(TOKEN_GAE), critic=CriticConfig(kind="closed_form", bootstrap=True)))
