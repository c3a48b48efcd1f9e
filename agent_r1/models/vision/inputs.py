"""What a decoder is called with when some of its tokens are image tokens."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn


def decoder_inputs(decoder: nn.Module, input_ids: Tensor, places: Tensor, rows: Tensor) -> dict[str, Any]:
    """Embeddings of `input_ids` [batch, width], with `rows` [images' tokens, width] at the flat indices `places`.

    Rows that are wider than an embedding are several embeddings side by side: the first replaces the token's, each
    further one is added to the output of one more layer, by the decoder itself.
    """
    embedded: Tensor = cast(Any, decoder).get_input_embeddings()(input_ids)
    width = embedded.shape[-1]
    rows = rows.to(embedded.dtype)
    flat = embedded.flatten(0, 1).index_copy(0, places, rows[:, :width])
    inputs: dict[str, Any] = {"inputs_embeds": flat.view_as(embedded)}
    if rows.shape[1] > width:
        mask = torch.zeros(flat.shape[0], dtype=torch.bool, device=flat.device).index_fill(0, places, True)
        inputs["visual_pos_masks"] = mask.view(input_ids.shape)
        inputs["deepstack_visual_embeds"] = list(torch.split(rows[:, width:], width, dim=1))
    return inputs
