"""Who sees whom in a micro-batch, in the form the model's attention wants.

Plain rows say it with a 0/1 mask over tokens and the model makes its own causal mask. Trie rows say it with `ends`:
token j is visible to token i when `j <= i < end[j]`. On a CPU that becomes a dense mask for SDPA, on a GPU a block mask
for FlexAttention, which skips what nobody sees.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.training.rows import MicroBatch


def last_hidden(trunk: nn.Module, batch: MicroBatch) -> Tensor:
    """The trunk's last hidden states [rows, width, hidden] of a micro-batch."""
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
    if batch.ends is None:
        inputs["attention_mask"] = batch.attention_mask
    else:
        inputs["position_ids"] = batch.position_ids
        inputs["attention_mask"] = trie_mask(batch, cast(Any, trunk).config)
    hidden: Tensor = trunk(**inputs).last_hidden_state
    return hidden


def trie_mask(batch: MicroBatch, config: Any) -> Tensor | dict[str, Tensor]:
    """[rows, 1, width, width], True where the column is visible to the row; by layer type for models with windows."""
    assert batch.ends is not None
    assert batch.position_ids is not None
    text_config = config.get_text_config()
    width = batch.input_ids.shape[1]
    columns = torch.arange(width, device=batch.ends.device)
    seen = (columns[None, None, :] <= columns[None, :, None]) & (columns[None, :, None] < batch.ends[:, None, :])
    window = getattr(text_config, "sliding_window", None)
    layer_types = set(getattr(text_config, "layer_types", None) or ())
    switched_off = not getattr(text_config, "use_sliding_window", True)
    if window is None or switched_off or (layer_types and "sliding_attention" not in layer_types):
        return seen[:, None]
    distance = batch.position_ids[:, :, None] - batch.position_ids[:, None, :]
    near = seen & (distance < int(window))
    if layer_types <= {"sliding_attention"}:  # a window without layer types is every layer's
        return near[:, None]
    return {"full_attention": seen[:, None], "sliding_attention": near[:, None]}
