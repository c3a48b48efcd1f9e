"""How a run turns samples into micro-batches."""

from __future__ import annotations

from functools import partial

import torch

from agent_r1.config import TrainerConfig
from agent_r1.training.rows import Packer, pack
from agent_r1.training.trie import pack_tries

CPU_ROW_TOKENS = 1024
"""A dense mask costs the square of a row's length: on a CPU a micro-batch is several rows of this length."""


def choose_packer(config: TrainerConfig, device: torch.device) -> Packer:
    """`trie`: shared prefixes are computed once. `rows`: one padded row a step, the slow and simple form."""
    if config.packing == "rows":
        return partial(pack, max_tokens=config.micro_batch_tokens)
    row_tokens = CPU_ROW_TOKENS if device.type == "cpu" else None
    return partial(pack_tries, max_tokens=config.micro_batch_tokens, row_tokens=row_tokens)
