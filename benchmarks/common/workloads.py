"""What the speed benchmarks run: requests made at once, multi-turn experience, and the learner of a GRPO update."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from agent_r1.algorithms import bind_algorithm
from agent_r1.config import AlgorithmConfig, OptimizerConfig
from agent_r1.engines import Engine
from agent_r1.learner import Compute, CriticView, Experience, Models, TorchLearner, gather_experience
from agent_r1.registry import Part
from agent_r1.rewards import ProcessBalance, RewardShaping
from agent_r1.types import (
    Action,
    Completion,
    Group,
    Observation,
    SamplingParams,
    Step,
    StopReason,
    Task,
    TokenIds,
    Trajectory,
)


@dataclass(frozen=True)
class Request:
    """One prompt and how much is to be said."""

    prompt: TokenIds
    new_tokens: int


async def complete_all(engine: Engine, requests: Sequence[Request], *, first_seed: int = 0) -> list[Completion]:
    """All requests at once, at temperature 1, each with a seed of its own; no stop ids, so all tokens are made.

    A thousand tasks take some milliseconds to make; those that are there can ask meanwhile.
    """
    tasks: list[asyncio.Task[Completion]] = []
    for number, request in enumerate(requests):
        sampling = SamplingParams(max_tokens=request.new_tokens, seed=first_seed + number)
        tasks.append(asyncio.ensure_future(engine.generate(request.prompt, sampling)))
        if number % 128 == 127:
            await asyncio.sleep(0)
    return await asyncio.gather(*tasks)


@dataclass(frozen=True, kw_only=True)
class Conversations:
    """Episodes as an agent has them: a preamble all share, a question each group shares, then actions and tool answers
    in turn. All tokens are random."""

    groups: int
    """Questions."""
    members: int
    """Episodes of each."""
    turns: int
    """Actions an episode."""
    preamble: int
    """Tokens of tool descriptions, the same for everybody."""
    question: int
    """Tokens of a group's question."""
    action: int
    """Tokens of an action: these are scored."""
    answer: int
    """Tokens of a tool's answer."""

    @property
    def name(self) -> str:
        """In words."""
        return (
            f"{self.groups} groups x {self.members}, {self.turns} turns of {self.action} + {self.answer} tokens, "
            f"preamble {self.preamble}, question {self.question}"
        )


def multi_turn_experience(
    shape: Conversations, *, vocabulary: int, seed: int = 0, shown: Callable[[int], TokenIds] = lambda group: ()
) -> Experience:
    """Random conversations as a learner reads them; every group has members that earned 1 and members that earned 0.
    `shown` are tokens before a group's question, such as those of an image."""
    rng = random.Random(seed)

    def some(length: int) -> TokenIds:
        return tuple(rng.choices(range(100, vocabulary), k=length))

    shared = some(shape.preamble)

    def episode(group: int, member: int, question: TokenIds) -> Trajectory:
        prompt, steps = shared + question, []
        for _ in range(shape.turns):
            action = some(shape.action)
            steps.append(
                Step(
                    observation=Observation(token_ids=prompt),
                    prompt_ids=prompt,
                    action=Action(text="", token_ids=action),
                    action_ids=action,
                    rollout_logprobs=(-10.0,) * len(action),
                    reward=0.0,
                    done=False,
                    policy_versions=(0,) * len(action),
                )
            )
            prompt = prompt + action + some(shape.answer)
        return Trajectory(
            task_id=str(group),
            group_id=group,
            member=member,
            steps=tuple(steps),
            outcome_reward=float(member % 2),
            stop_reason=StopReason.DONE,
        )

    def whole_group(group: int) -> Group:
        question = (*shown(group), *some(shape.question))
        return Group(
            task=Task(task_id=str(group), prompt=()),
            group_id=group,
            trajectories=tuple(episode(group, member, question) for member in range(shape.members)),
        )

    batch = [whole_group(group) for group in range(shape.groups)]
    shaping = RewardShaping(process=ProcessBalance(), max_tokens=shape.action)
    return gather_experience(batch, shaping, CriticView(None, lambda text: ()))


def grpo_learner(policy: nn.Module, compute: Compute, *, gradient_clip: float = 1.0) -> TorchLearner:
    """Makes one GRPO update per batch. The ratio starts from the update's own pass, so invented rollout log-probs clip
    nothing away."""
    algorithm = AlgorithmConfig(estimator=Part("group"), old_logprobs="trainer")
    return TorchLearner(
        models=Models(policy=policy, reference=None, critic=None, compute=compute),
        algorithm=bind_algorithm(algorithm),
        optimizer=OptimizerConfig(learning_rate=1e-6, gradient_clip=gradient_clip),
        max_skipped_updates=1,
        total_steps=1,
        seed=0,
    )
