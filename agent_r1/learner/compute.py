"""Where and how models are run: device, precision, packing, the rollouts' temperature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from agent_r1.config import Config
from agent_r1.learner.packing.samples import Packer, pack
from agent_r1.learner.packing.trie import iter_tries


def cpu_row_tokens(hidden_size: int) -> int:
    """How long a row may be on a CPU, where a dense mask costs the square of its length.

    A layer spends about 24 h^2 operations a token on its matrices and 4 h T on attention over a row of T tokens; up to
    T = 3 h attention is the smaller part. 576 gives 1728.
    """
    return min(4096, max(512, 3 * hidden_size))


CUDA_ROW_TOKENS = 8192
"""Going backward, a block of keys is one loop over all queries that see it: a preamble shared by a whole micro-batch
would be one long loop that everybody waits for. Cutting the trie repeats the preamble a few times instead."""

CUDA_WIDTH_MULTIPLE = 1024
"""Rows on a GPU are padded to multiples of this, so that few different shapes are compiled."""

CUDA_PORTION = 8
"""Samples of so many micro-batches' tokens are sorted before the first micro-batch is computed: what they share makes
them about one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """How a pass over samples is made."""

    device: torch.device
    """Where the models are."""
    pack: Packer
    """How samples become micro-batches."""
    temperature: float = 1.0
    """Of the rollouts: the policy that is trained is the one at this temperature."""
    autocast_dtype: torch.dtype | None = None
    """Matrix products are made in this type; the weights keep their own. None: everything in the weights' type."""

    def autocast(self) -> torch.autocast:
        """The context in which models are run."""
        enabled = self.autocast_dtype is not None
        return torch.autocast(self.device.type, dtype=self.autocast_dtype or torch.bfloat16, enabled=enabled)


def make_compute(config: Config, policy: nn.Module) -> Compute:
    """As the configuration says; `trainer.precision=auto` is bfloat16 on a GPU and `model.dtype` elsewhere."""
    device = next(policy.parameters()).device
    by_default = device.type == "cuda" or config.model.dtype == "bfloat16"
    bfloat16 = {"auto": by_default, "bfloat16": True, "float32": False}[config.trainer.precision]
    return Compute(
        device=device,
        pack=_packer(config, policy, device),
        temperature=config.rollout.temperature,
        autocast_dtype=torch.bfloat16 if bfloat16 else None,
    )


def _packer(config: Config, policy: nn.Module, device: torch.device) -> Packer:
    """`trie`: shared prefixes are computed once. `rows`: one padded row a step, the slow and simple form."""
    max_tokens = config.trainer.micro_batch_tokens
    if config.trainer.packing == "rows":
        return partial(pack, max_tokens=max_tokens)
    if device.type == "cuda":
        multiple = min(max_tokens, CUDA_WIDTH_MULTIPLE)
        return partial(
            iter_tries,
            max_tokens=max_tokens,
            row_tokens=CUDA_ROW_TOKENS,
            width_multiple=multiple,
            portion_tokens=CUDA_PORTION * max_tokens,
        )
    hidden_size = int(cast(Any, policy).config.get_text_config().hidden_size)
    return partial(iter_tries, max_tokens=max_tokens, row_tokens=cpu_row_tokens(hidden_size))
