"""Attention masks of micro-batches, in the form the model's attention takes.

Plain rows have a 0/1 mask over tokens, and the model makes its own causal mask. Trie rows have `ends`:
token j is visible to token i when `j <= i < end[j]`. On a CPU that becomes a dense mask for SDPA, on a GPU a block mask
for FlexAttention, which skips every block of keys that no token of a block of queries sees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from agent_r1.learner.packing.flex_attention import LARGE_BLOCK, block_tokens, kernel_options, with_own_heads
from agent_r1.learner.packing.samples import MicroBatch
from agent_r1.models import (
    decoder_inputs,
    layer_windows,
    places_in_two_dimensions,
    refuse_features,
    watch_compilation,
)

TRIE_ATTENTION = "agent_r1_trie"
"""The attention that takes block masks (FlexAttention) as well as dense ones (SDPA)."""

Mask = Tensor | BlockMask
LayerMasks = Mask | dict[str, Mask]


def last_hidden(trunk: nn.Module, batch: MicroBatch) -> Tensor:
    """The trunk's last hidden states [rows, width, hidden] of a micro-batch."""
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
    if batch.image_places is not None:
        assert batch.image_rows is not None, "images are embedded before a trunk reads the micro-batch"
        inputs.pop("input_ids")
        inputs |= decoder_inputs(trunk, batch.input_ids, batch.image_places, batch.image_rows)
    if batch.ends is None:
        inputs["attention_mask"] = batch.attention_mask
    else:
        inputs["position_ids"] = batch.position_ids
        inputs["attention_mask"] = trie_masks(batch, cast(Any, trunk).config)
    if batch.rope_ids is not None and places_in_two_dimensions(cast(Any, trunk).config):
        inputs["position_ids"] = batch.rope_ids
    hidden: Tensor = trunk(**inputs).last_hidden_state
    return hidden


def trie_masks(batch: MicroBatch, config: Any) -> LayerMasks:
    """The mask of a trie's rows; one by layer type for models in which some layers see only a window."""
    text_config = config.get_text_config()
    make: Callable[[MicroBatch, int | None], Mask] = dense_mask
    if batch.input_ids.is_cuda:
        make = partial(block_mask, block=block_tokens(text_config))
    windows = set(layer_windows(config))
    if len(windows) == 1:
        return make(batch, *windows)
    return {"full_attention": make(batch, None), "sliding_attention": make(batch, *(windows - {None}))}


def dense_mask(batch: MicroBatch, window: int | None) -> Tensor:
    """[rows, 1, width, width], True where the column is visible to the row."""
    assert batch.ends is not None
    assert batch.position_ids is not None
    columns = torch.arange(batch.ends.shape[1], device=batch.ends.device)
    seen = (columns[None, None, :] <= columns[None, :, None]) & (columns[None, :, None] < batch.ends[:, None, :])
    if window is not None:
        seen &= batch.position_ids[:, :, None] - batch.position_ids[:, None, :] < window
    return seen[:, None]


def block_mask(batch: MicroBatch, window: int | None, block: int = LARGE_BLOCK) -> BlockMask:
    """The mask for FlexAttention: which blocks of keys each block of queries reads, and which of them in full.

    It follows from the ends of each block alone: keys before the queries are seen by some when the latest end lies
    behind the first query, by all when the earliest end lies behind the last.
    """
    assert batch.ends is not None
    assert batch.position_ids is not None
    ends, positions = batch.ends, batch.position_ids
    rows, width = ends.shape
    num_blocks = -(-width // block)
    padded = torch.nn.functional.pad(ends, (0, num_blocks * block - width))
    by_block = padded.view(rows, num_blocks, block)
    blocks = torch.arange(num_blocks, device=ends.device)
    before = blocks[None, :] < blocks[:, None]
    first_query = (blocks * block)[None, :, None]
    last_query = first_query + block - 1
    some = (by_block.amax(2)[:, None, :] > first_query) & before | (blocks[None, :] == blocks[:, None])
    every = (by_block.amin(2)[:, None, :] > last_query) & before
    if window is not None:
        every = torch.zeros_like(every)
    counts, indices = _block_lists(some & ~every)
    full_counts, full_indices = _block_lists(every)
    return BlockMask.from_kv_blocks(
        counts,
        indices,
        full_counts,
        full_indices,
        BLOCK_SIZE=block,
        mask_mod=_visible(ends, positions, window),
        seq_lengths=(width, width),
    )


def _block_lists(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each block of queries reads, and which, chosen ones first."""
    counts = chosen.sum(-1, dtype=torch.int32)
    order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[:, None], order[:, None].contiguous()


def _visible(ends: Tensor, positions: Tensor, window: int | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[row, key])

    if window is None:
        return seen
    reach = window

    def seen_near(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return seen(row, head, query, key) & (positions[row, query] - positions[row, key] < reach)

    return seen_near


def _flex() -> Callable[..., Tensor]:
    """FlexAttention, which must be compiled: inside a compiled layer it is compiled with the rest."""
    return cast(Callable[..., Tensor], flex_attention) if torch.compiler.is_compiling() else _compiled_flex()


@lru_cache
def _compiled_flex() -> Callable[..., Tensor]:
    watch_compilation()
    return cast(Callable[..., Tensor], torch.compile(flex_attention))


def _softcap_scores(softcap: float) -> Callable[..., Tensor]:
    def capped(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scaling: float | None, softcap: float
) -> Tensor:
    """[rows, width, heads, size]; without a mask each token sees itself and all before it. Scores are float32."""
    key, value = with_own_heads(query, key, value)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    scores = softcap * torch.tanh((query @ key.transpose(2, 3)).float() * (scale / softcap))
    if mask is None:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril()
    # Not minus infinity: a padding token that sees no token would be NaN, and so would its gradient.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    attended = torch.softmax(scores, dim=-1).to(value.dtype) @ value
    return attended.transpose(1, 2).contiguous()


def trie_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as `transformers` calls it: FlexAttention for block masks, SDPA for all others.

    A window is part of the mask. SDPA has no cap on the scores: capped attention over a dense mask is written out.
    """
    refuse_features(module, kwargs)
    if not isinstance(attention_mask, BlockMask):
        if softcap is not None:
            return _capped_attention(query, key, value, attention_mask, scaling=scaling, softcap=softcap), None
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling)
        return output, None

    # Under autocast rotary embeddings leave queries and keys in float32; the values have the layer's type.
    query, key = query.to(value.dtype), key.to(value.dtype)
    key, value = with_own_heads(query, key, value)
    attended = _flex()(
        query,
        key,
        value,
        score_mod=None if softcap is None else _softcap_scores(softcap),
        block_mask=attention_mask,
        scale=scaling,
        kernel_options=kernel_options(query, attention_mask.BLOCK_SIZE[0]),
    )
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(TRIE_ATTENTION, trie_attention)
AttentionMaskInterface.register(TRIE_ATTENTION, sdpa_mask)
