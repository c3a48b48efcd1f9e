"""Forward passes over micro-batches: log-probabilities, entropies, values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.training.models import Critic, SharedCritic
from agent_r1.training.rows import MicroBatch, Sample, pack
from agent_r1.types import TokenIds

AnyCritic = Critic | SharedCritic


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What the policy says about the action tokens of a micro-batch."""

    logprobs_N: Tensor
    """Log-probability of each action token, at the rollout's temperature."""
    entropy_N: Tensor
    """Entropy of the distribution each was drawn from."""
    values_N: Tensor | None = None
    """The value of the state before each, when a value head shares the trunk."""


def score(
    policy: nn.Module,
    batch: MicroBatch,
    *,
    temperature: float,
    with_entropy_gradient: bool = False,
    value_of: Callable[[Tensor], Tensor] | None = None,
) -> Scores:
    """Score the action tokens of a micro-batch. The temperature is the one they were sampled at.

    `value_of` values the trunk's last hidden states; it sees those of the same pass.
    """
    with _hidden_states(policy, wanted=value_of is not None) as hidden:
        output = cast(Any, policy)(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
    logits_N = output.logits[batch.rows_N, batch.columns_N].float() / temperature
    distribution_N = torch.log_softmax(logits_N, dim=-1)
    with torch.set_grad_enabled(with_entropy_gradient and torch.is_grad_enabled()):
        entropy_N = -(distribution_N.exp() * distribution_N).sum(-1)
    return Scores(
        logprobs_N=distribution_N.gather(1, batch.targets_N[:, None]).squeeze(1),
        entropy_N=entropy_N,
        values_N=None if value_of is None else value_of(hidden[0][batch.rows_N, batch.columns_N]),
    )


@contextmanager
def _hidden_states(policy: nn.Module, *, wanted: bool) -> Iterator[list[Tensor]]:
    """Collects the last hidden states of the policy's trunk while the block runs."""
    kept: list[Tensor] = []
    if not wanted:
        yield kept
        return

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        kept.append(output.last_hidden_state)

    handle = cast(nn.Module, cast(Any, policy).get_decoder()).register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def score_all(
    policy: nn.Module, samples: Sequence[Sample], *, temperature: float, max_tokens: int, device: torch.device
) -> Tensor:
    """Log-probabilities of all action tokens [N], without gradient, on the CPU."""
    result_N = torch.zeros(sum(len(sample.actions) for sample in samples))
    with torch.no_grad():
        for batch in pack(samples, range(len(samples)), max_tokens=max_tokens):
            scores = score(policy, batch.to(device), temperature=temperature)
            result_N[batch.tokens_N] = scores.logprobs_N.cpu()
    return result_N


def value(critic: AnyCritic, batch: MicroBatch) -> Tensor:
    """The critic's value of the state before each action token of a micro-batch."""
    values: Tensor = critic(batch.input_ids, batch.attention_mask)
    return values[batch.rows_N, batch.columns_N]


def value_all(critic: AnyCritic, samples: Sequence[Sample], *, max_tokens: int, device: torch.device) -> Tensor:
    """Values before all action tokens [N], without gradient, on the CPU."""
    result_N = torch.zeros(sum(len(sample.actions) for sample in samples))
    with torch.no_grad():
        for batch in pack(samples, range(len(samples)), max_tokens=max_tokens):
            result_N[batch.tokens_N] = value(critic, batch.to(device)).cpu()
    return result_N


def value_of_states(critic: AnyCritic, states: Sequence[TokenIds], *, max_tokens: int, device: torch.device) -> Tensor:
    """The critic's value at the end of each token sequence, for bootstrapping truncated trajectories."""
    samples = [Sample(token_ids=state, actions=(len(state) - 1,)) for state in states]
    result = torch.zeros(len(states))
    with torch.no_grad():
        for batch in pack(samples, range(len(samples)), max_tokens=max_tokens):
            moved = batch.to(device)
            values: Tensor = critic(moved.input_ids, moved.attention_mask)
            # The column before the marked token is one short of the state's end.
            result[batch.tokens_N] = values[moved.rows_N, moved.columns_N + 1].cpu()
    return result
