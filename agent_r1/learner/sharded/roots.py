"""Passes through the root of a sharded model.

FSDP gathers a module's weights when the module is called. Scoring calls the decoder and reads the head's weight, which
is past the root of the model: the embeddings and the head would still be shards. `in_root` runs such a pass as if it
were the forward method of the root; for a model that is not sharded it just calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

ROOT_CALL = "call_in_root"
"""The method that a sharded model, and a decoder that belongs to one, has for this."""

ResultT = TypeVar("ResultT")


def in_root(module: nn.Module, work: Callable[[], ResultT]) -> ResultT:
    """What `work` returns, with the weights of the model around `module` gathered meanwhile. `work` returns tensors, or
    a tuple of them."""
    call: Callable[[Callable[[], ResultT]], ResultT] | None = getattr(module, ROOT_CALL, None)
    return work() if call is None else call(work)
