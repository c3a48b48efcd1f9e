"""The futures and streams that callers of the engine wait on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from agent_r1.engines.base import StreamedTokens
from agent_r1.engines.local.request import Request
from agent_r1.errors import EngineError
from agent_r1.types import Completion


class RequestFutures:
    """One future per unfinished request. A future that its caller cancelled is left as it is."""

    def __init__(self) -> None:
        self._futures: dict[Request, asyncio.Future[Completion]] = {}
        self._streams: dict[Request, _Stream] = {}

    def __contains__(self, request: Request) -> bool:
        return request in self._futures

    def __len__(self) -> int:
        return len(self._futures)

    def add(self, request: Request) -> asyncio.Future[Completion]:
        """The future of a new request."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._futures[request] = future
        return future

    def resolve(self, request: Request) -> None:
        """Give the caller what was sampled."""
        future = self._futures.pop(request)
        if not future.done():
            future.set_result(
                Completion(
                    token_ids=tuple(request.tokens[len(request.prompt) :]),
                    logprobs=tuple(request.logprobs),
                    finish_reason="stop" if request.stopped else "length",
                    policy_versions=tuple(request.versions),
                )
            )

    def fail(self, request: Request, message: str, cause: BaseException | None = None) -> None:
        """Raise EngineError in the caller."""
        future = self._futures.pop(request)
        if not future.done():
            error = EngineError(message)
            error.__cause__ = cause
            future.set_exception(error)

    def fail_all(self, message: str) -> None:
        """Raise EngineError in every caller."""
        for request in list(self._futures):
            self.fail(request, message)

    def pop_cancelled(self) -> list[Request]:
        """Remove and return the requests whose callers were cancelled."""
        cancelled = [request for request, future in self._futures.items() if future.done()]
        for request in cancelled:
            del self._futures[request]
        return cancelled

    async def stream(
        self,
        request: Request,
        submit: Callable[[Request], asyncio.Future[Completion]],
        drop: Callable[[Request], None],
    ) -> AsyncGenerator[StreamedTokens, None]:
        """The tokens of a request as its steps finish; the last record has the completion.

        The request is submitted when the first record is awaited, and dropped when the stream is closed before it is
        answered.
        """
        future = submit(request)
        stream = self._streams[request] = _Stream()
        future.add_done_callback(stream.wake)
        try:
            completion: Completion | None = None
            while completion is None:
                await stream.changed.wait()
                stream.changed.clear()
                completion = future.result() if future.done() else None
                first, stream.num_sent = stream.num_sent, request.num_sampled
                yield StreamedTokens(
                    token_ids=tuple(request.tokens[len(request.prompt) + first :]),
                    logprobs=tuple(request.logprobs[first:]),
                    policy_versions=tuple(request.versions[first:]),
                    completion=completion,
                )
        finally:
            del self._streams[request]
            if self._futures.pop(request, None) is not None:
                drop(request)

    def wake_streams(self) -> None:
        """After a step: streams whose requests have new tokens continue."""
        for request, stream in self._streams.items():
            if request.num_sampled > stream.num_sent:
                stream.changed.set()


class _Stream:
    """How much of a request its caller has, and whether there is more."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.changed = asyncio.Event()

    def wake(self, future: asyncio.Future[Completion]) -> None:
        """The request was answered, or failed."""
        if not future.cancelled():
            future.exception()  # whoever closed the stream is not told of a failure, and needs not be
        self.changed.set()
