"""Forward passes over micro-batches: log-probabilities, entropies, values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.learner.compute import Compute
from agent_r1.learner.critics import AnyCritic, TrainedCritic
from agent_r1.learner.packing.samples import MicroBatch, Sample, send
from agent_r1.learner.packing.trie_attention import last_hidden
from agent_r1.learner.sharded.roots import in_root
from agent_r1.models import ImagePass, action_scores
from agent_r1.types import TokenIds


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """The policy's scores of the action tokens of a micro-batch."""

    logprobs_N: Tensor
    """Log-probability of each action token, at the rollout's temperature."""
    entropy_N: Tensor
    """Entropy of the distribution each was sampled from."""
    values_N: Tensor | None = None
    """The value of the state before each, when a value head shares the trunk."""


def score_micro_batch(
    policy: nn.Module,
    batch: MicroBatch,
    compute: Compute,
    *,
    with_entropy_gradient: bool = False,
    value_of: Callable[[Tensor], Tensor] | None = None,
    images: ImagePass | None = None,
) -> Scores:
    """Score the action tokens of a micro-batch, at the temperature they were sampled at.

    `value_of` computes values from the last hidden states of the same pass. `images` are those of a pass over several
    micro-batches; without them the micro-batch has its images to itself.
    """
    images = ImagePass(policy) if images is None else images

    def run() -> tuple[Tensor, Tensor, Tensor]:
        seen = batch.with_images(images)
        hidden_N = last_hidden(cast(Any, policy).get_decoder(), seen)[batch.rows_N, batch.columns_N]
        return hidden_N, *action_scores(policy, hidden_N, batch.targets_N, temperature=compute.temperature)

    with compute.autocast():
        hidden_N, logprobs_N, entropy_N = in_root(policy, run)
    return Scores(
        logprobs_N=logprobs_N,
        entropy_N=entropy_N if with_entropy_gradient else entropy_N.detach(),
        values_N=None if value_of is None else value_of(hidden_N),
    )


def score_samples(policy: nn.Module, samples: Sequence[Sample], compute: Compute) -> Tensor:
    """Log-probabilities of all action tokens [N], without gradient, on the CPU. The host waits for the device once."""
    result_N = torch.zeros(sum(len(sample.action_positions) for sample in samples))
    tokens, logprobs = [], []
    images = ImagePass(policy)
    with torch.no_grad():
        for batch in compute.micro_batches(samples, range(len(samples))):
            tokens.append(batch.tokens_N)
            logprobs.append(score_micro_batch(policy, batch.to(compute.device), compute, images=images).logprobs_N)
    if logprobs:
        result_N[torch.cat(tokens)] = torch.cat(logprobs).cpu()
    return compute.peers.total(result_N)


def value_micro_batch(
    critic: TrainedCritic, batch: MicroBatch, compute: Compute, images: ImagePass | None = None
) -> Tensor:
    """The critic's value of the state before each action token of a micro-batch; `images` as in `score_micro_batch`."""
    images = images or critic.images()
    with compute.autocast():
        hidden = in_root(critic.trunk, lambda: critic.hidden(batch.with_images(images)))
    return critic.value_of(hidden[batch.rows_N, batch.columns_N])


def hidden_before(critic: AnyCritic, samples: Sequence[Sample], compute: Compute, valued_N: Tensor) -> Tensor:
    """The hidden state before each valued action token [M, hidden], without gradient, on the models' device."""
    return _hidden_rows(critic, samples, compute, valued_N, lambda batch: batch.columns_N)


def value_of_states(critic: AnyCritic, states: Sequence[TokenIds], compute: Compute) -> Tensor:
    """The critic's value at the end of each token sequence, for bootstrapping truncated trajectories; on the CPU."""
    samples = [Sample(token_ids=state, action_positions=(len(state) - 1,)) for state in states]
    # The action token is the state's last: its own column, not the one before it.
    everywhere_N = torch.ones(len(states), dtype=torch.bool)
    hidden = _hidden_rows(critic, samples, compute, everywhere_N, lambda batch: batch.action_columns_N)
    with torch.no_grad():
        return critic.value_of(hidden).cpu()


def _hidden_rows(
    critic: AnyCritic,
    samples: Sequence[Sample],
    compute: Compute,
    valued_N: Tensor,
    columns_of: Callable[[MicroBatch], Tensor],
) -> Tensor:
    """The hidden states [M, hidden] in the columns that `columns_of` returns, in the order of their tokens."""
    tokens, rows, images = [], [], critic.images()
    with torch.no_grad():
        for batch in compute.micro_batches(samples, range(len(samples))):
            chosen = valued_N[batch.tokens_N].nonzero().squeeze(1)
            batch_on_device, chosen_on_device = batch.to(compute.device), send(chosen, compute.device)
            with compute.autocast():
                hidden = in_root(critic.trunk, partial(critic.hidden, batch_on_device.with_images(images)))
            rows.append(hidden[batch_on_device.rows_N[chosen_on_device], columns_of(batch_on_device)[chosen_on_device]])
            tokens.append(batch.tokens_N[chosen])
    tokens_M = torch.cat(tokens)
    order = tokens_M.argsort()
    index_N = valued_N.cumsum(0) - 1
    rows_M = torch.cat(rows)[send(order, compute.device)]
    return compute.peers.placed(rows_M, send(index_N[tokens_M[order]], compute.device), int(valued_N.sum()))
