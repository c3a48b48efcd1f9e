"""Where and how models are run: device, precision, packing, the rollouts' temperature."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn

from agent_r1.config import Config
from agent_r1.learner.packing.samples import MicroBatch, Packer, Sample, pack
from agent_r1.learner.packing.trie import pack_tries
from agent_r1.learner.sharded.peers import ONE_PROCESS, Peers

ResultT = TypeVar("ResultT")


def cpu_row_tokens(hidden_size: int) -> int:
    """The longest row on a CPU, where a dense mask costs the square of its length.

    A layer spends about 24 h^2 operations per token on its matrices and 4 h T on attention over a row of T tokens; up
    to T = 3 h attention is the smaller part. 576 gives 1728.
    """
    return min(4096, max(512, 3 * hidden_size))


CUDA_ROW_TOKENS = 8192
"""The longest row on a GPU. In the backward pass a block of keys is one loop over all queries that see it: a preamble
shared by a whole micro-batch would be one long loop that all others wait for. Cutting the trie repeats the preamble a
few times instead."""

CUDA_WIDTH_MULTIPLE = 1024
"""Rows on a GPU are padded to multiples of this, so that few different shapes are compiled."""

CUDA_PORTION = 8
"""This many micro-batches' worth of tokens are sorted before the first micro-batch is computed; shared prefixes shrink
them to about one micro-batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """How models are run over samples."""

    device: torch.device
    """The device of the models."""
    pack: Packer
    """How samples become micro-batches."""
    temperature: float = 1.0
    """The rollouts' temperature: the policy is trained at the temperature it was sampled at."""
    autocast_dtype: torch.dtype | None = None
    """The type of matrix products; the weights keep theirs. None: everything is computed in the weights' type."""
    peers: Peers = ONE_PROCESS
    """The processes that compute an update together."""

    def micro_batches(self, samples: Sequence[Sample], chosen: Sequence[int]) -> Iterable[MicroBatch]:
        """The micro-batches of the chosen samples that this process computes."""
        return self.peers.share(self.pack(samples, chosen))

    def autocast(self) -> torch.autocast:
        """The context in which models are run."""
        enabled = self.autocast_dtype is not None
        return torch.autocast(self.device.type, dtype=self.autocast_dtype or torch.bfloat16, enabled=enabled)


_WAKE_SECONDS = 0.2


class UpdateThread:
    """A thread in which updates are computed, so that the event loop keeps running meanwhile.

    It computes what the calling thread would compute: torch keeps its number of CPU threads, its current CUDA device
    and stream, and (in context variables) the compiler's settings per thread, and all of them are taken from the
    caller. One thread serves all updates, so that what torch allocates per thread (OpenMP teams, cuBLAS workspaces)
    exists once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """What `work` returns. When the caller is cancelled, the work is finished first: an abandoned update would
        change weights that are being saved."""
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        num_threads, context = torch.get_num_threads(), copy_context()

        def compute() -> ResultT:
            torch.set_num_threads(num_threads)
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                return work()

        future = asyncio.get_running_loop().run_in_executor(self._executor, context.run, compute)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                # Wakes up now and then: Python handles a signal in the main thread, which one that was delivered to
                # another thread does not wake.
                await asyncio.wait([future], timeout=_WAKE_SECONDS)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            future.exception()  # retrieved: asyncio would report it as lost
            raise cancelled
        return future.result()


def make_compute(config: Config, policy: nn.Module) -> Compute:
    """How a run's models are run; `trainer.precision=auto` is bfloat16 on a GPU and `model.dtype` elsewhere."""
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
    """`trie`: shared prefixes are computed once. `rows`: one padded row per step, slow and simple."""
    max_tokens = config.trainer.micro_batch_tokens
    if config.trainer.packing == "rows":
        return partial(pack, max_tokens=max_tokens)
    if device.type == "cuda":
        multiple = min(max_tokens, CUDA_WIDTH_MULTIPLE)
        return partial(
            pack_tries,
            max_tokens=max_tokens,
            row_tokens=CUDA_ROW_TOKENS,
            width_multiple=multiple,
            portion_tokens=CUDA_PORTION * max_tokens,
            end_to_end=True,
        )
    hidden_size = int(cast(Any, policy).config.get_text_config().hidden_size)
    return partial(pack_tries, max_tokens=max_tokens, row_tokens=cpu_row_tokens(hidden_size))
