"""Tags that a model was never trained to write: tokens whose rows of the output head equal those of other tokens.

A vocabulary may hold `<tool_call>` as a single token that training never used. The rows of all unused tokens stay
nearly equal, so the model gives each of them the same probability everywhere. It is close to zero: the model never
samples the tag, reinforcement learning has no call to reinforce, and a small warm start leaves the rows as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from agent_r1.chat import Tokenizer
from agent_r1.data import DemonstrationRow

_MIN_COSINE = 0.9999
"""The cosine of rows that are equal but for rounding. In SmolLM2, trained and unused tokens have up to 0.993."""

_TAUGHT_BY = 0.2
"""The share of such a row's weights that a warm start should move them by. With Qwen2.5-Coder-1.5B-Instruct, whose rows
measure 0.015, 60 steps at 5e-5 (a share of 0.2) taught the tags; 60 at 1e-5 (0.04) left it with hardly any call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedRow:
    """A token whose row of the output head is also that of other tokens."""

    text: str
    """The token's text."""
    token_id: int
    """Its id."""
    num_others: int
    """How many other added tokens have the row."""
    scale: float
    """The root mean square of the weights of all added tokens' rows. The row itself may be zeros."""

    @property
    def enough(self) -> float:
        """What the steps of a warm start times its learning rate should make: Adam moves a weight by about the learning
        rate per step."""
        return _TAUGHT_BY * self.scale


@torch.no_grad()
def shared_rows(policy: nn.Module, tokenizer: Tokenizer, token_ids: Iterable[int]) -> list[SharedRow]:
    """The rows of those `token_ids` that are added tokens of the tokenizer and whose row of the output head is also
    that of another one. Only the rows of added tokens are compared."""
    head = cast(Any, policy).get_output_embeddings().weight
    texts = {
        token_id: str(token.content)
        for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
        if token_id < len(head)
    }
    added = sorted(texts)
    candidates = sorted(texts.keys() & set(token_ids))
    if not candidates:
        return []
    rows_AD = head[added].float()
    squares_A = rows_AD.square().sum(1)
    scale = float(rows_AD.square().mean().sqrt())
    shared = []
    for token_id in candidates:
        row = added.index(token_id)
        gaps_A = (rows_AD - rows_AD[row]).square().sum(1)
        # For rows of the same length a cosine of at least _MIN_COSINE; rows of zeros are equal too.
        equal_A = gaps_A <= 2 * (1 - _MIN_COSINE) * squares_A.maximum(squares_A[row])
        num_others = int(equal_A.sum()) - 1
        if num_others > 0:
            shared.append(SharedRow(text=texts[token_id], token_id=token_id, num_others=num_others, scale=scale))
    return shared


def describe_shared(rows: Sequence[SharedRow]) -> str:
    """What such rows mean, in words."""
    first, *more = (f"'{row.text}' (token {row.token_id})" for row in rows)
    others = "1 other added token" if rows[0].num_others == 1 else f"{rows[0].num_others} other added tokens"
    rest = "".join(f", {text} the same as {row.num_others}" for text, row in zip(more, rows[1:], strict=True))
    return (
        f"{first} has the same row of the output head as {others}{rest}: the model was never trained to write "
        f"{'them' if more else 'it'}, and cannot tell such tokens apart"
    )


def warm_start_warning(
    policy: nn.Module,
    tokenizer: Tokenizer,
    conversations: Iterable[Sequence[DemonstrationRow]],
    *,
    steps: int,
    learning_rate: float,
) -> str | None:
    """A warning when demonstrations have tags that the model was never trained to write, and the warm start may not
    teach them: all its steps together move a weight by too little."""
    rows = [row for conversation in conversations for row in conversation]
    trained_ids = {row.token_ids[position] for row in rows for position in row.actions}
    shared = shared_rows(policy, tokenizer, trained_ids)
    if not shared:
        return None
    if not any(parameter.requires_grad for parameter in cast(Any, policy).get_output_embeddings().parameters()):
        return (
            f"{describe_shared(shared)}. Adapters do not change that row: tune without them (model.lora.rank=0), or "
            "start from a model that was trained to write these tags"
        )
    enough = shared[0].enough
    if steps * learning_rate >= enough:
        return None
    return (
        f"{describe_shared(shared)}. This warm start may be too small to teach them: Adam moves a weight by about the "
        f"learning rate per step, and sft.steps={steps} x sft.learning_rate={learning_rate:g} make "
        f"{steps * learning_rate:.2g}. Raise them to {enough:.2g}, or start from a model that was trained to write "
        "these tags"
    )
