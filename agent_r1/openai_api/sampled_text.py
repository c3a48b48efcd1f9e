"""Completions as text, up to a stop text.

An engine stops at token ids. A stop text can begin and end anywhere in the tokens, so it is found in the text of a
stream, and the stream is closed there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from agent_r1.chat import ChatRenderer, TextStream
from agent_r1.engines import Engine, stream_completion
from agent_r1.errors import EngineError, EngineRequestError
from agent_r1.openai_api.errors import ApiError
from agent_r1.types import Completion, SamplingParams, TokenIds


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledText:
    """A finished completion and its text, without the end of turn and without the stop text."""

    completion: Completion
    text: str
    stop_text: str | None = None
    """The stop text that ended it; the completion's tokens contain it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextDelta:
    """Tokens, and the text that is certain with them."""

    text: str
    token_ids: TokenIds
    logprobs: tuple[float, ...]
    end: SampledText | None = None
    """The whole, in the last delta only."""


async def sample_whole_text(
    engine: Engine, renderer: ChatRenderer, prompt_ids: TokenIds, params: SamplingParams
) -> SampledText:
    """A completion without stop texts."""
    with engine_errors_as_api_errors():
        completion = await engine.generate(prompt_ids, params)
    return SampledText(completion=completion, text=renderer.text_of(completion.token_ids))


async def sample_text(
    engine: Engine, renderer: ChatRenderer, prompt_ids: TokenIds, params: SamplingParams, stop: Sequence[str]
) -> AsyncGenerator[TextDelta, None]:
    """A completion as it is sampled, up to the first stop text. `TextDelta.text` may contain the stop text."""
    texts, so_far = TextStream(renderer), _SoFar(stop)
    with engine_errors_as_api_errors():
        async with aclosing(stream_completion(engine, prompt_ids, params)) as stream:
            async for new in stream:
                text = texts.add(new.token_ids)
                end = so_far.stopped_at(text, new.token_ids, new.logprobs, new.policy_versions) if stop else None
                if end is None and new.completion is not None:
                    end = _finish(new.completion, renderer, stop)
                yield TextDelta(text=text, token_ids=new.token_ids, logprobs=new.logprobs, end=end)
                if end is not None:
                    return


def _finish(completion: Completion, renderer: ChatRenderer, stop: Sequence[str]) -> SampledText:
    """A completion that the engine finished. Text that was not certain before may contain a stop text."""
    text = renderer.text_of(completion.token_ids)
    place = _first_stop(text, stop, 0)
    return SampledText(
        completion=completion,
        text=text if place is None else text[: place[0]],
        stop_text=None if place is None else place[1],
    )


class _SoFar:
    """What was sampled so far, in which stop texts are searched."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._overlap = max(map(len, stop), default=1) - 1
        self._text = ""
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def stopped_at(
        self, text: str, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> SampledText | None:
        """The completion up to here, if the text has a stop text with this addition."""
        searched = max(0, len(self._text) - self._overlap)
        self._text += text
        self._ids += ids
        self._logprobs += logprobs
        self._versions += versions
        place = _first_stop(self._text, self._stop, searched)
        if place is None:
            return None
        completion = Completion(
            token_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs),
            finish_reason="stop",
            policy_versions=tuple(self._versions),
        )
        return SampledText(completion=completion, text=self._text[: place[0]], stop_text=place[1])


def _first_stop(text: str, stop: Sequence[str], start: int) -> tuple[int, str] | None:
    """Where the first stop text begins, and which it is."""
    places = [(index, mark) for mark in stop if (index := text.find(mark, start)) >= 0]
    return min(places, default=None)


@contextmanager
def engine_errors_as_api_errors() -> Iterator[None]:
    """A request that the engine refuses is the client's mistake, any other failure the server's."""
    try:
        yield
    except EngineRequestError as error:
        raise ApiError(str(error)) from None
    except EngineError as error:
        raise ApiError(f"the engine failed: {error}", status=500, code="engine_error") from error
