"""The futures that callers of the engine wait on."""

from __future__ import annotations

import asyncio

from agent_r1.engines.local.request import Request
from agent_r1.errors import EngineError
from agent_r1.types import Completion


class RequestFutures:
    """One future per unfinished request. A future that its caller cancelled is left as it is."""

    def __init__(self) -> None:
        self._futures: dict[Request, asyncio.Future[Completion]] = {}

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
