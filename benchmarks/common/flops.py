"""Model FLOPs of an update, counted from what is packed: what the mathematics asks for, whatever is computed twice.

A matrix product of T tokens with a matrix of P entries is 2 T P operations forward and twice that backward: 6 T P.

    decoder     6 x entries of the decoder's matrices x tokens
    head        6 x hidden x vocabulary x scored tokens
    attention   12 x layers x heads x head size x visible pairs (query, key): 2 products of 2 operations an entry of a
                head, forward once and backward twice

Left out are embeddings, norms, activations, the optimizer, padding, masked pairs, and everything that is computed
again (a checkpointed layer, the head's logits going backward). Every layer is taken to see its whole context: models
with a sliding window would be credited too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from agent_r1.learner.packing import MicroBatch, Sample, build_rows

PEAK_TFLOPS = {"NVIDIA H100 80GB HBM3": 989.0, "NVIDIA H200": 989.0}
"""Dense bfloat16, by the GPU's name."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the count needs to know of a model."""

    decoder_entries: int
    """Entries of all matrices in the decoder's layers."""
    layers: int
    heads: int
    head_size: int
    hidden: int
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Work:
    """What goes through the model in one update."""

    tokens: int
    """Without padding."""
    scored: int
    """Tokens whose log-probability is asked for."""
    pairs: int
    """(query, key) with the key visible to the query, itself included."""


def shape_of(policy: nn.Module) -> ModelShape:
    """The shape of a `transformers` causal language model."""
    model = cast(Any, policy)
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    matrices = [parameter for parameter in model.get_decoder().layers.parameters() if parameter.dim() == 2]
    return ModelShape(
        decoder_entries=sum(matrix.numel() for matrix in matrices),
        layers=int(config.num_hidden_layers),
        heads=heads,
        head_size=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        hidden=int(config.hidden_size),
        vocabulary=int(config.vocab_size),
    )


def update_flops(shape: ModelShape, work: Work) -> int:
    """Forward and backward of one update."""
    decoder = 6 * shape.decoder_entries * work.tokens
    head = 6 * shape.hidden * shape.vocabulary * work.scored
    attention = 12 * shape.layers * shape.heads * shape.head_size * work.pairs
    return decoder + head + attention


def packed_work(batches: Sequence[MicroBatch]) -> Work:
    """The work in packed tries. A prefix that is repeated because its trie was cut into rows counts each time.

    Samples (1 2 3) and (1 2 4 5), of which the last tokens are scored, are 5 tokens, 2 scored and 1 + 2 + 3 + 3 + 4
    pairs.
    """
    tokens = scored = pairs = 0
    for batch in batches:
        assert batch.ends is not None
        assert batch.position_ids is not None
        # Padding stands behind the tokens with position 0; a row's last token is an action, so its position is not 0.
        for positions, ends in zip(batch.position_ids, batch.ends, strict=True):
            length = int(positions.nonzero().max()) + 1
            tokens += length
            pairs += int(ends[:length].sum()) - length * (length - 1) // 2
        scored += len(batch.tokens_N)
    return Work(tokens=tokens, scored=scored, pairs=pairs)


def distinct_work(samples: Sequence[Sample]) -> Work:
    """The same with every distinct prefix once, as in one endless row: the least any packing could do."""
    rows = build_rows(samples, range(len(samples)), row_tokens=sum(map(len, samples)))
    return Work(
        tokens=sum(map(len, rows)),
        scored=sum(len(sample.action_positions) for sample in samples),
        pairs=sum(int(row.ends.sum()) - len(row) * (len(row) - 1) // 2 for row in rows),
    )


def known_peak() -> float | None:
    """The GPU's peak in TFLOPS, if its name is known."""
    return PEAK_TFLOPS.get(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
