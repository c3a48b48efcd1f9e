"""GRPO in one file, on the public parts of Agent-R1: load, roll out, credit, learn, push the weights.

    python -m examples.minimal_grpo [STEPS GROUPS]        # minutes on two CPU cores, no download

A tiny model learns the quickstart's task: look up the prices of a basket with one tool, add them up with another. This
is the loop of `agent_r1.train` without its checkpoints, evaluation, packing, GPUs and guards.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import agent_r1
from agent_r1 import Group, SamplingParams, ToolEnv, Trajectory
from agent_r1.data import TaskSampler, load_tasks
from agent_r1.engines.local import LocalEngine
from agent_r1.models import load_model
from agent_r1.rollout import Rollout, RolloutLimits
from recipes.quickstart.reward_fn import score
from recipes.quickstart.tools import price

GROUP_SIZE, CLIP, ROWS_PER_PASS = 8, 0.2, 16


@dataclass
class Row:
    """Tokens to train on: a whole conversation, unless the prompt of a later step does not continue it."""

    advantage: float
    ids: list[int] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)  # positions of the sampled tokens: only they carry loss
    logprobs: list[float] = field(default_factory=list)  # of the sampled tokens, from the engine


def credit(group: Group) -> Iterator[Row]:
    """GRPO's advantage: how much better a member did than its group, in standard deviations."""
    returns = [trajectory.outcome_reward + trajectory.process_reward for trajectory in group.valid]
    spread = statistics.pstdev(returns) if returns else 0.0
    if spread > 1e-6:  # a group whose members all earned the same teaches nothing
        for trajectory, earned in zip(group.valid, returns, strict=True):
            yield from rows_of(trajectory, (earned - statistics.fmean(returns)) / spread)


def rows_of(trajectory: Trajectory, advantage: float) -> Iterator[Row]:
    """A trajectory's steps as rows of exact tokens. A step whose prompt continues the last row is appended to it."""
    row = Row(advantage)
    for step in trajectory.steps:
        prompt = list(step.prompt_ids)
        if prompt[: len(row.ids)] != row.ids:
            yield row
            row = Row(advantage)
        row.ids = prompt + list(step.action_ids)
        row.actions += range(len(prompt), len(row.ids))
        row.logprobs += step.rollout_logprobs
    yield row


def learn(policy: nn.Module, optimizer: torch.optim.Optimizer, rows: Sequence[Row]) -> None:
    """One update with PPO's clipped loss, averaged over all sampled tokens."""
    num_tokens = sum(len(row.actions) for row in rows)
    rows = sorted(rows, key=lambda row: len(row.ids))  # so that little is padded
    for start in range(0, len(rows), ROWS_PER_PASS):
        batch = rows[start : start + ROWS_PER_PASS]
        loss = torch.zeros(())
        for row, logprobs in zip(batch, score_rows(policy, batch), strict=True):
            ratio = (logprobs - torch.tensor(row.logprobs)).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            loss = loss - torch.minimum(ratio * row.advantage, clipped * row.advantage).sum() / num_tokens
        loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def score_rows(policy: nn.Module, batch: Sequence[Row]) -> list[Tensor]:
    """The policy's log-probs of each row's sampled tokens. Position i predicts token i + 1."""
    ids = pad_sequence([torch.tensor(row.ids) for row in batch], batch_first=True)
    mask = pad_sequence([torch.ones(len(row.ids), dtype=torch.long) for row in batch], batch_first=True)
    logprobs = policy(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    chosen = logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return [chosen[index, torch.tensor(row.actions) - 1] for index, row in enumerate(batch)]


async def train(model: str, data: str, num_steps: int, num_groups: int) -> None:
    """Load; then roll out, credit, learn and push the weights, step after step."""
    loaded = load_model(model, dtype="float32", device="cpu")
    policy, engine = loaded.model, LocalEngine(loaded.model, context_length=384)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=4e-4, weight_decay=0.0)
    tasks = TaskSampler(load_tasks([data]), batch_size=num_groups, seed=0)
    rollout = Rollout(
        engine=engine,
        renderer=loaded.renderer(),
        reward=score,
        make_env=lambda task: ToolEnv(tools=[price, "calculate"]),
        limits=RolloutLimits(max_steps=5),
    )
    sampling = SamplingParams(max_tokens=40)
    for step in range(num_steps):
        groups = await rollout.run(tasks.batch(step), group_size=GROUP_SIZE, sampling=sampling, seed=step)
        rows = [row for group in groups for row in credit(group)]
        learn(policy, optimizer, rows)
        await engine.update_weights(policy.state_dict().items(), version=step + 1)
        reward = statistics.fmean(trajectory.outcome_reward for group in groups for trajectory in group)
        print(f"step {step + 1:>2}/{num_steps}  reward {reward:.3f}  rows {len(rows)}", flush=True)
    await engine.close()


if __name__ == "__main__":
    num_steps, num_groups = map(int, sys.argv[1:] or (15, 16))
    config = agent_r1.load_config("recipes/quickstart")
    agent_r1.evaluate(config, overrides={"eval.max_tasks": 8})  # makes the data and the warm-started model, once
    asyncio.run(train(config.model.path, config.data.train[0], num_steps, num_groups))
