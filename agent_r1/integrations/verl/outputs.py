"""What a trajectory becomes in verl: the sequences of its episode with their rewards, or a refusal by name.

Two workers of verl take the outputs of a loop. The worker of v1 (the default) takes several per episode and lets an
output say where its rewards are; the older one takes one, with one reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_r1.errors import ConfigError
from agent_r1.integrations.verl.conversion import VerlSequence, check_lengths, sequences_of
from agent_r1.types import Trajectory

WHOLE_EPISODE = (
    *("grpo", "grpo_passk", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "gpg"),
    *("reinforce_plus_plus_baseline", "remax"),
    *("agent_r1/group", "agent_r1/leave_one_out", "agent_r1/group_whitened"),
)
"""Estimators, verl's and ours, that read the sum of an episode's rewards alone."""
STEPWISE = ("agent_r1/step_group", "agent_r1/return_to_go")
"""Estimators of ours that ask which step a token belongs to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerlSetting:
    """What decides whether verl can carry a trajectory."""

    estimator: str
    """The estimator, by verl's name. A recipe's own is `agent_r1/<its name>` here."""
    is_v1: bool
    """Whether the worker is v1's."""
    prompt_length: int
    """`data.max_prompt_length`."""
    response_length: int
    """`data.max_response_length`."""
    step_ratio: bool = False
    """The loss has one ratio per step."""


def verl_sequences(trajectory: Trajectory, rewards: Sequence[float], setting: VerlSetting) -> list[VerlSequence]:
    """The sequences of an episode whose steps earned `rewards`. Raises `ConfigError` for what verl cannot carry."""
    sequences = sequences_of(trajectory.steps, rewards)
    if len(sequences) > 1:
        _check_several(trajectory, len(sequences), setting)
    else:
        check_lengths(sequences[0], prompt_length=setting.prompt_length, response_length=setting.response_length)
        _check_step_rewards(rewards, setting)
        _check_steps(trajectory, sequences[0], setting)
    return sequences


def _check_several(trajectory: Trajectory, count: int, setting: VerlSetting) -> None:
    what = f"the history of task '{trajectory.task_id}' was rewritten, or it branches: its episode is {count} sequences"
    if not setting.is_v1:
        raise ConfigError(
            f"{what}, and this worker of verl takes one per episode. Use the v1 trainer (trainer.use_v1=True), or a "
            "flow that only appends (env.context without a policy that cuts or summarises)"
        )
    if setting.estimator != "grpo":
        raise ConfigError(
            f"{what}. verl's estimators read each sequence as a rollout of its own, except "
            f"algorithm.adv_estimator=grpo, which compares episodes; found {setting.estimator}. Use grpo, or a flow "
            "that only appends"
        )


def _check_step_rewards(rewards: Sequence[float], setting: VerlSetting) -> None:
    if any(rewards[:-1]) and not setting.is_v1 and setting.estimator not in WHOLE_EPISODE:
        raise ConfigError(
            "a step before the last earned a reward, and this worker of verl has one reward per episode, on its last "
            f"token, where {setting.estimator} credits it to the wrong step. Use the v1 trainer (trainer.use_v1=True), "
            f"reward.process_weight=0, or an estimator of whole episodes: {', '.join(WHOLE_EPISODE)}"
        )


def _check_steps(trajectory: Trajectory, sequence: VerlSequence, setting: VerlSetting) -> None:
    if not sequence.runs_are_steps and (setting.estimator in STEPWISE or setting.step_ratio):
        part = f"the estimator {setting.estimator}" if setting.estimator in STEPWISE else "a loss with ratio=step"
        raise ConfigError(
            f"in task '{trajectory.task_id}' a step sampled nothing, or follows another without anything written "
            f"between them. verl has no step boundaries but the runs of its mask, which {part} would misread; use an "
            "estimator of whole episodes and ratio=token"
        )
