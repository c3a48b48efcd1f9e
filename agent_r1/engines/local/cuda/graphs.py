"""CUDA graphs of whole steps, and the inputs they read: fixed addresses, padded to a few sizes.

Graphs are captured when they are needed: of decoding at the first use of a size, of prompts at the third. They hold
addresses, so inputs, KV caches and weights are only ever changed in place.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_r1.engines.local.batch import block_tables, step_arrays
from agent_r1.engines.local.blocks import BLOCK_SIZE
from agent_r1.engines.local.cuda.sampling_kernels import SampleResults, SampleSettings
from agent_r1.engines.local.request import Chunk, Request
from agent_r1.engines.local.sampling import uniforms
from agent_r1.models import round_up

GraphKey = tuple[Any, ...]
"""`decode`, rows, restricted; or `prefill`, tokens, rows, the longest prompt, restricted."""

BURST = 8
"""Tokens a request samples before the host reads them. Each read costs about one step; tokens sampled after a stop are
wasted."""

PROMPT_TOKENS = (32, 64, 128, 256, 512, 1024, *range(2048, 16385, 2048))
PROMPT_ROWS = (8, 32, 128, 512)
PROMPT_LENGTHS = (32, 128, 512, 2048, 8192)


PROMPT_USES = 3
"""A size of prompts gets a graph at this use. Capturing takes as long as several steps without one, there are hundreds
of sizes, and many of them are met once."""


class GraphCache:
    """CUDA graphs by their sizes. They share one memory pool, because only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[GraphKey, torch.cuda.CUDAGraph] = {}
        self._uses: Counter[GraphKey] = Counter()
        self._pool: Any = None
        self._num_read, self._capture_seconds = 0, 0.0

    def read_metrics(self) -> dict[str, float]:
        """The graphs captured since the last call, and the seconds that this took."""
        fresh, seconds = len(self._graphs) - self._num_read, self._capture_seconds
        self._num_read, self._capture_seconds = len(self._graphs), 0.0
        return {"perf/captured_graphs": float(fresh), "time/capture": seconds}

    def count_use(self, key: GraphKey) -> bool:
        """Count a use of a size of prompts; returns whether it has a graph, or was used often enough to get one."""
        self._uses[key] += 1
        return self._uses[key] >= PROMPT_USES

    def get(self, key: GraphKey) -> torch.cuda.CUDAGraph | None:
        """The graph, if it was captured."""
        return self._graphs.get(key)

    def capture(self, key: GraphKey, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture a step."""
        started = time.perf_counter()
        # Warm up on a side stream, as capturing requires: kernels are compiled and libraries initialised there.
        side_stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side_stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream(self._device).wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: tools may use the device from other threads meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        self._pool = self._pool or graph.pool()
        self._graphs[key] = graph
        self._capture_seconds += time.perf_counter() - started
        return graph


class DecodeInputs:
    """The inputs of a burst on the device, and the tokens it samples."""

    def __init__(self, rows: int, blocks: int, device: torch.device) -> None:
        self.next_tokens = torch.zeros(2, rows, dtype=torch.int64, device=device)  # token ids, positions
        self.contexts = torch.zeros(rows, dtype=torch.int32, device=device)
        # A burst may run past the end of a request that holds all its blocks: one more column keeps it in the table.
        self.tables = torch.zeros(rows, round_up(blocks + 1, 16), dtype=torch.int32, device=device)
        self.query_starts = torch.zeros(1, dtype=torch.int32, device=device)  # unused by decoding
        self.settings = SampleSettings.empty(BURST, rows, device)
        self.step = torch.zeros(1, dtype=torch.int32, device=device)
        self.results = SampleResults.empty(BURST, rows, device)

    def clear(self) -> None:
        """Harmless inputs: token 0 at position 0 of the spare block."""
        for tensor in (self.next_tokens, self.contexts, self.tables, self.step):
            tensor.zero_()
        self.contexts += 1

    def fill(
        self,
        chunks: Sequence[Chunk],
        rows: int,
        steps: int,
        settings: Tensor,
        pending_rows: Mapping[Request, int],
        last_tokens: Tensor,
    ) -> None:
        """Write the inputs of these chunks; rows beyond them are harmless. Nothing here waits for the device.

        Tokens that the host has not read yet are in `last_tokens`, in the row that `pending_rows` gives.
        """
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        columns = (int(starts.max()) + steps - 1) // BLOCK_SIZE + 1
        table = block_tables(chunks, rows, columns)
        next_tokens = np.zeros((2, rows), dtype=np.int64)
        # A pending token is written as -1 - row and looked up on the device below; no token id is negative.
        next_tokens[0, : len(chunks)] = [
            -1 - pending_rows[chunk.request] if chunk.pending_token else chunk.request.tokens[-1] for chunk in chunks
        ]
        next_tokens[1, : len(chunks)] = starts
        moved = send(next_tokens, self.next_tokens.device)
        if pending_rows:
            indices = (-1 - moved[0]).clamp(min=0)
            moved[0] = torch.where(moved[0] < 0, last_tokens.index_select(0, indices).long(), moved[0])
        self.next_tokens[:, :rows] = moved
        self.contexts[:rows] = moved[1] + 1
        self.tables[:rows, : table.shape[1]] = send(table, self.next_tokens.device)
        self.settings.first(rows).fill(settings.to(self.next_tokens.device, non_blocking=True))
        self.step.zero_()

    def move_positions(self, chunks: Sequence[Chunk]) -> None:
        """After `fill`: positions behind images that advanced the text by less than their number of tokens.

        Contexts and slots stay: they count tokens.
        """
        offsets = np.array([0 if each.request.images is None else each.request.images.offset for each in chunks])
        if offsets.any():
            self.next_tokens[1, : len(chunks)] += send(offsets, self.next_tokens.device)


class PromptInputs:
    """The inputs of a captured step of prompts; padding belongs to no request and changes nothing."""

    def __init__(self, blocks: int, device: torch.device) -> None:
        rows, tokens = PROMPT_ROWS[-1], PROMPT_TOKENS[-1]
        self.tokens = torch.zeros(3, tokens, dtype=torch.int64, device=device)
        self.tables = torch.zeros(rows, round_up(blocks + 1, 16), dtype=torch.int32, device=device)
        self.ends = torch.zeros(rows, dtype=torch.int32, device=device)
        self.query_starts = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.logit_rows = torch.zeros(rows, dtype=torch.int64, device=device)
        self.settings = SampleSettings.empty(1, rows, device)
        self.first_step = torch.zeros(1, dtype=torch.int32, device=device)
        self.results = SampleResults.empty(1, rows, device)

    def clear(self) -> None:
        """Harmless inputs: padding only."""
        for tensor in (self.tokens, self.tables, self.ends, self.query_starts, self.logit_rows):
            tensor.zero_()

    def fill(
        self, chunks: Sequence[Chunk], num_tokens: int, rows: int, settings: Tensor, *, reads_images: bool = False
    ) -> None:
        """Write the inputs of these chunks, which have no image tokens. Nothing here waits for the device."""
        arrays = step_arrays(chunks, num_tokens=num_tokens, num_requests=rows, reads_images=reads_images)
        device = self.tokens.device
        self.tokens[:, :num_tokens] = send(arrays.tokens, device)
        self.tables[:rows, : arrays.tables.shape[1]] = send(arrays.tables, device)
        small = send(np.concatenate([arrays.ends, arrays.query_starts, arrays.logit_rows[:rows]]), device)
        self.ends[:rows] = small[:rows]
        self.query_starts[: rows + 1] = small[rows : 2 * rows + 1]
        self.logit_rows[:rows] = small[2 * rows + 1 :]
        self.settings.first(rows).fill(settings.to(device, non_blocking=True))


def prompt_bucket(num_tokens: int, num_requests: int, longest: int) -> tuple[int, int, int] | None:
    """The sizes a step of prompts is padded to: tokens, rows, longest prompt; None when no graph is that large.

    The more rows and the longer the longest, the more programs of the attention kernel have nothing to do.

    >>> prompt_bucket(100, 3, 60), prompt_bucket(9000, 140, 100), prompt_bucket(20000, 2, 15000)
    ((128, 8, 128), (10240, 512, 128), None)
    """
    tokens = next((size for size in PROMPT_TOKENS if size >= num_tokens), None)
    rows = next((size for size in PROMPT_ROWS if size >= num_requests), None)
    length = next((size for size in PROMPT_LENGTHS if size >= longest), None)
    return None if tokens is None or rows is None or length is None else (tokens, rows, length)


def decode_bucket(requests: int) -> int:
    """The number of rows a decoding batch is padded to; never 1, on which compilers specialise.

    >>> [decode_bucket(n) for n in (1, 3, 60, 65, 300, 700)]
    [2, 4, 64, 128, 320, 768]
    """
    if requests <= 64:
        return max(2, 1 << (requests - 1).bit_length())
    return round_up(requests, 64 if requests <= 512 else 128)


def sample_settings(chunks: Sequence[Chunk], rows: int, steps: int) -> tuple[Tensor, bool]:
    """The table that `SampleSettings.fill` takes, in pinned memory, and whether any request has a top-k or top-p."""
    params = [chunk.request.sampling for chunk in chunks]
    table = np.zeros((rows, 3 + steps), dtype=np.float32)
    table[:, 1] = 1.0  # padding rows keep all tokens, which costs nothing
    columns = [(each.temperature, each.top_p, each.top_k) for each in params]
    table[: len(chunks), :3] = np.array(columns, dtype=np.float32).reshape(-1, 3)
    table[: len(chunks), 3:] = uniforms([each.seed for each in params], [c.num_sampled for c in chunks], steps)
    return torch.from_numpy(table).pin_memory(), any(each.top_k or each.top_p < 1 for each in params)


def send(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Copy an array to the device through pinned memory, without waiting."""
    return torch.from_numpy(array).pin_memory().to(device, non_blocking=True)
