"""One request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_r1.engines.local.blocks import BLOCK_SIZE, blocks_for
from agent_r1.types import SamplingParams, TokenIds


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A prompt, what was sampled so far, and where its keys and values are.

    >>> request = Request(prompt=(5, 6, 7), sampling=SamplingParams(max_tokens=4))
    >>> request.num_remaining  # nothing is computed yet
    3
    >>> request.num_computed = 3; request.take([9], [-0.5], 0)
    1
    >>> request.num_remaining  # the sampled token is to be computed
    1
    """

    prompt: TokenIds
    sampling: SamplingParams
    tokens: list[int] = field(init=False)
    """The prompt and every sampled token."""
    logprobs: list[float] = field(default_factory=list)
    """Of the sampled tokens."""
    versions: list[int] = field(default_factory=list)
    """The policy's version at each sampled token."""
    blocks: list[int] = field(default_factory=list)
    """The blocks of the cache that hold its tokens, in order; empty while it waits."""
    num_computed: int = 0
    """Leading tokens whose keys and values are in the cache."""
    num_filed: int = 0
    """Leading blocks that the prefix cache knows."""
    _prompt_hashes: tuple[int, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def prompt_hashes(self) -> tuple[int, ...]:
        """One per full block of the prompt, each of the whole prefix up to its end.

        Computed when the request is first looked at, while a device computes others.
        """
        if self._prompt_hashes is None:
            hashes, chained = [], 0
            for start in range(0, len(self.prompt) - BLOCK_SIZE + 1, BLOCK_SIZE):
                chained = hash((chained, self.prompt[start : start + BLOCK_SIZE]))
                hashes.append(chained)
            self._prompt_hashes = tuple(hashes)
        return self._prompt_hashes

    @property
    def num_sampled(self) -> int:
        """How many tokens were sampled."""
        return len(self.logprobs)

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def most_blocks(self) -> int:
        """Blocks it holds at its longest; the last sampled token is never computed."""
        return blocks_for(len(self.prompt) + self.sampling.max_tokens - 1)

    @property
    def stopped(self) -> bool:
        """Whether a stop id was sampled."""
        return self.num_sampled > 0 and self.tokens[-1] in self.sampling.stop

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be sampled."""
        return self.stopped or self.num_sampled == self.sampling.max_tokens

    def take(self, tokens: list[int], logprobs: list[float], version: int) -> int:
        """Append tokens that weights of this version sampled, up to the first stop id; gives how many."""
        count = len(tokens)
        for stop in self.sampling.stop:
            if stop in tokens:
                count = min(count, tokens.index(stop) + 1)
        self.tokens += tokens[:count]
        self.logprobs += logprobs[:count]
        self.versions += [version] * count
        return count
