"""Supervised fine-tuning on demonstrations, with the micro-batches and guarded steps of reinforcement learning."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from agent_r1.algorithms import LossInputs, aggregations, policy_losses
from agent_r1.config import OptimizerConfig
from agent_r1.data import DemonstrationRow
from agent_r1.learner.compute import Compute
from agent_r1.learner.optimizer import SkipCounter, guarded_step, make_optimizer
from agent_r1.learner.packing.samples import Sample
from agent_r1.learner.scoring import score_micro_batch
from agent_r1.models import ImagePass
from agent_r1.seeds import mix_seed


def fit_demonstrations(
    policy: nn.Module,
    conversations: Sequence[Sequence[DemonstrationRow]],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    optimizer: OptimizerConfig,
    compute: Compute,
    seed: int,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train `policy` in place on demonstrations. `on_step` is called with each step and its mean token loss."""
    adam = make_optimizer(policy, optimizer, learning_rate)
    skips = SkipCounter(what="policy", limit=5)
    batches = demonstration_batches(len(conversations), steps=steps, batch_size=batch_size, seed=seed)
    for step, chosen in enumerate(batches):
        rows = [row for index in chosen for row in conversations[index]]
        loss = _accumulate(policy, rows, compute)
        norm = guarded_step(
            adam,
            policy.parameters(),
            loss=torch.tensor(loss),
            gradient_clip=optimizer.gradient_clip,
            learning_rate=_rate(learning_rate, step, steps),
        )
        skips.note(loss=loss, norm=float(norm))
        on_step(step, loss)


def demonstration_batches(number: int, *, steps: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    """For each step, the indices of the conversations that it trains on: all of them once, before any comes again."""
    order: list[int] = []
    for step in range(steps if number else 0):
        while len(order) < batch_size:
            epoch_order = list(range(number))
            random.Random(mix_seed(seed, step)).shuffle(epoch_order)
            order += epoch_order
        yield order[:batch_size]
        order = order[batch_size:]


def _accumulate(policy: nn.Module, rows: Sequence[DemonstrationRow], compute: Compute) -> float:
    """Accumulate gradients of the mean token loss of a batch of rows; returns that loss."""
    samples = [Sample(token_ids=row.token_ids, action_positions=row.actions) for row in rows]
    num_tokens = sum(len(sample.action_positions) for sample in samples)
    everywhere_N = torch.ones(num_tokens, dtype=torch.bool)
    zeros_N = torch.zeros(num_tokens, dtype=torch.long)
    weights_N = aggregations.get("token-mean")(everywhere_N, zeros_N, zeros_N).float()
    imitate = policy_losses.get("nll")
    total, images = 0.0, ImagePass(policy, apart=True)
    for micro in compute.pack(samples, range(len(samples))):
        logprobs_N = score_micro_batch(policy, micro.to(compute.device), compute, images=images).logprobs_N
        inputs = LossInputs(
            policy_logprobs_N=logprobs_N,
            old_logprobs_N=logprobs_N.detach(),
            advantages_N=torch.ones_like(logprobs_N),
            step_N=torch.zeros_like(micro.targets_N, device=compute.device),
        )
        loss = (weights_N[micro.tokens_N].to(compute.device) * imitate(inputs).loss_N).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    images.backward()
    return total


def _rate(peak: float, step: int, steps: int) -> float:
    """Rises linearly over the first tenth, then falls along a cosine to a tenth of the peak."""
    warmup = max(1, steps // 10)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))
