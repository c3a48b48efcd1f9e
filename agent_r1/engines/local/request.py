"""One request in the engine, the part of it that a step computes, and the checks it must pass."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from agent_r1.engines.local.blocks import BLOCK_SIZE, blocks_for
from agent_r1.engines.local.images.prompt_images import PromptImages, find_images
from agent_r1.errors import EngineRequestError
from agent_r1.images import FIRST_IMAGE_ID, is_image_id
from agent_r1.models import VisionFamily
from agent_r1.types import SamplingParams, TokenIds

_KEY_BYTES = 4 * BLOCK_SIZE


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A prompt, the tokens sampled so far, and the blocks that hold their keys and values.

    >>> request = Request(prompt=(5, 6, 7), sampling=SamplingParams(max_tokens=4))
    >>> request.num_remaining  # nothing is computed yet
    3
    >>> request.num_computed = 3; request.append([9], [-0.5], 0)
    1
    >>> request.num_remaining  # the sampled token is to be computed
    1
    """

    prompt: TokenIds
    sampling: SamplingParams
    tokens: list[int] = field(init=False)
    """The prompt and every sampled token."""
    logprobs: list[float] = field(default_factory=list)
    """The log-probs of the sampled tokens."""
    versions: list[int] = field(default_factory=list)
    """The policy version of each sampled token."""
    blocks: list[int] = field(default_factory=list)
    """The blocks of the KV cache that hold its tokens, in order; empty while it waits."""
    num_computed: int = 0
    """Leading tokens whose keys and values are in the KV cache."""
    num_cached_blocks: int = 0
    """Leading blocks that are in the prefix cache."""
    images: PromptImages | None = None
    """The images of the prompt; None without any."""
    _keys: list[bytes] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    def keys(self, count: int) -> list[bytes]:
        """The keys of its first full blocks in the prefix cache, `count` of them or more.

        Each is made once, most of them while the device computes other requests.
        """
        if len(self._keys) < count:
            self._keys += block_keys(self.tokens[len(self._keys) * BLOCK_SIZE : count * BLOCK_SIZE])
        return self._keys

    @property
    def num_sampled(self) -> int:
        """How many tokens were sampled."""
        return len(self.logprobs)

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def max_blocks(self) -> int:
        """Blocks it holds at its longest; the last sampled token is never computed."""
        return blocks_for(len(self.prompt) + self.sampling.max_tokens - 1)

    @property
    def stopped(self) -> bool:
        """Whether a stop id was sampled."""
        return self.num_sampled > 0 and self.tokens[-1] in self.sampling.stop

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be sampled."""
        num_sampled = len(self.logprobs)
        return num_sampled == self.sampling.max_tokens or (num_sampled > 0 and self.tokens[-1] in self.sampling.stop)

    def append(self, tokens: list[int], logprobs: list[float], version: int) -> int:
        """Append tokens sampled by weights of this version, up to the first stop id. Returns how many."""
        count = len(tokens)
        for stop in self.sampling.stop:
            if stop in tokens:
                count = min(count, tokens.index(stop) + 1)
        if count < len(tokens):
            tokens, logprobs = tokens[:count], logprobs[:count]
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += [version] * count
        return count


class Chunk(NamedTuple):
    """Tokens `start` to `start + length` of a request are computed in this step.

    A tuple because every step makes up to thousands of them, and other records take several times as long to make.
    """

    request: Request
    start: int
    length: int
    new_tokens: int = 1
    """Tokens that may be sampled after it, one after another: the request holds the blocks for them."""
    pending_token: bool = False
    """Its token is not known on the host yet: it is the last one that the previous step samples."""

    @property
    def end(self) -> int:
        """Tokens of the request that are computed after this step."""
        return self.start + self.length

    @property
    def samples(self) -> bool:
        """Whether a token can be sampled after it."""
        return self.pending_token or self.end == len(self.request.tokens)

    @property
    def num_sampled(self) -> int:
        """Tokens of the request that were sampled before this step."""
        return self.end - len(self.request.prompt)


def block_keys(tokens: Sequence[int]) -> list[bytes]:
    """The tokens of each full block, as the prefix cache finds them: bytes are hashed and compared at once, tuples
    number by number.

    >>> [len(key) for key in block_keys(range(40))]
    [64, 64]
    """
    num_tokens = len(tokens) // BLOCK_SIZE * BLOCK_SIZE
    try:
        packed = struct.pack(f"{num_tokens}i", *tokens[:num_tokens])
    except struct.error:  # some are image tokens
        return [_wide_key(tokens[start : start + BLOCK_SIZE]) for start in range(0, num_tokens, BLOCK_SIZE)]
    return [packed[start : start + _KEY_BYTES] for start in range(0, len(packed), _KEY_BYTES)]


def _wide_key(block: Sequence[int]) -> bytes:
    """The key of one block: twice as long, and so never that of another, where it has image tokens."""
    return struct.pack(f"{BLOCK_SIZE}{'q' if any(map(is_image_id, block)) else 'i'}", *block)


def check_request(
    request: Request, *, context_length: int, num_blocks: int, vocabulary: int, family: VisionFamily | None = None
) -> None:
    """Raise EngineRequestError for a request that can never be answered. Finds its images, for a model that reads
    them."""
    prompt, max_tokens = request.prompt, request.sampling.max_tokens
    if not prompt:
        raise EngineRequestError("the prompt is empty; give at least one token")
    if max_tokens < 1:
        raise EngineRequestError(f"max_tokens is {max_tokens}; ask for at least one token")
    _check_sampling(request.sampling)
    total = f"a prompt of {len(prompt)} tokens and {max_tokens} new ones do not fit"
    if len(prompt) + max_tokens > context_length:
        raise EngineRequestError(f"{total} a context of {context_length}")
    if request.max_blocks > num_blocks:
        raise EngineRequestError(
            f"{total} the cache of {num_blocks * BLOCK_SIZE} tokens; give the engine more kv_memory"
        )
    if not _are_below(vocabulary, prompt):
        if FIRST_IMAGE_ID <= max(prompt) < 2 * FIRST_IMAGE_ID:
            if family is None:
                raise EngineRequestError("the prompt has images, and the model reads none; give it text alone")
            request.images = find_images(prompt, vocabulary=vocabulary, two_dimensional=family.two_dimensional)
            return
        raise EngineRequestError(
            f"the prompt has token ids from {min(prompt)} to {max(prompt)}; the model knows 0 to {vocabulary - 1}"
        )


def _are_below(vocabulary: int, prompt: TokenIds) -> bool:
    """Whether all ids are in the vocabulary."""
    try:
        packed = struct.pack(f"{len(prompt)}I", *prompt)
    except struct.error:  # an id that is negative or does not fit
        return False
    return bool(np.frombuffer(packed, np.uintc).max() < vocabulary)


def _check_sampling(sampling: SamplingParams) -> None:
    """Refuse values without a meaning here: devices would interpret them differently."""
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p
    if not (temperature == 0 or 1e-6 <= temperature < math.inf):
        raise EngineRequestError(f"temperature is {temperature}; give 0 (greedy) or at least 1e-6")
    if top_k < 0:
        raise EngineRequestError(f"top_k is {top_k}; give 0 to keep all tokens")
    if not 0 < top_p <= 1:
        raise EngineRequestError(f"top_p is {top_p}; give a number in (0, 1]")
