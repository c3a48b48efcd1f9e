"""The attention function that `transformers` models call in the engine, registered by name.

No model code is forked: a model whose attention implementation is ATTENTION_NAME makes no mask and passes queries, keys
and values of the flat row to `paged_attention`, with the step's `PagedBatch` as the keyword `paged`. The KV caches are
an attribute of each layer's attention module, not looked up by layer number: one compiled layer then serves all layers.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from transformers import AttentionInterface

from agent_r1.engines.local.batch import PagedBatch
from agent_r1.engines.local.cpu.attention import grouped_attention, write_kv
from agent_r1.engines.local.kv_cache import LayerCache
from agent_r1.models import refuse_features

ATTENTION_NAME = "agent_r1_paged"


def attach_caches(model: nn.Module, caches: tuple[LayerCache, ...]) -> None:
    """Set each attention module's `kv_cache` to the cache of its layer."""
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int):
            cast(Any, module).kv_cache = caches[layer]


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: PagedBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Write the new keys and values, then attend over the requests' blocks.

    Queries, keys and values are [1, heads, T, head size]; the result is [1, T, heads, head size].
    """
    refuse_features(module, kwargs)
    queries, keys, values = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
    key_cache, value_cache = cast(LayerCache, module.kv_cache)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if query.is_cuda:
        attended = _attend_on_cuda(
            queries, keys, values, key_cache, value_cache, paged, scale=scale, window=sliding_window, softcap=softcap
        )
    else:
        assert paged.slot_mapping is not None
        write_kv(keys, values, key_cache, value_cache, paged.slot_mapping)
        attended = grouped_attention(
            queries, key_cache, value_cache, paged.groups, scale=scale, window=sliding_window, softcap=softcap
        )
    return attended.unsqueeze(0), None


def _attend_on_cuda(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    paged: PagedBatch,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    from agent_r1.engines.local.cuda import (
        attention_kernels as kernels,  # needs Triton, which machines without CUDA lack
    )

    if paged.max_query_length == 1 and queries.shape[0] == paged.context_lengths.shape[0]:
        return kernels.decode_attention(
            queries,
            keys,
            values,
            key_cache,
            value_cache,
            paged.block_tables,
            paged.context_lengths,
            scale=scale,
            window=window,
            softcap=softcap,
        )
    assert paged.slot_mapping is not None
    kernels.write_kv(keys, values, key_cache, value_cache, paged.slot_mapping)
    return kernels.prefill_attention(
        queries,
        key_cache,
        value_cache,
        paged.block_tables,
        paged.context_lengths,
        paged.query_starts,
        max_query_length=paged.max_query_length,
        scale=scale,
        window=window,
        softcap=softcap,
    )


AttentionInterface.register(ATTENTION_NAME, paged_attention)
