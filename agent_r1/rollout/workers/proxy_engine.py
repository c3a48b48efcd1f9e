"""`ProxyEngine`: the engine of a worker's episodes. It asks the driver, which has the real one.

Ids of image tokens mean something only where the image is known, so its picture travels with the first prompt that has
it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agent_r1.engines import MessageEngine
from agent_r1.errors import EngineError, EngineRequestError
from agent_r1.images import Picture, has_image_ids, image_store
from agent_r1.rollout.workers.messages import CancelRequest, EngineAnswer, EngineRequest
from agent_r1.types import Action, Completion, Observation, SamplingParams

MAX_SENT_BYTES = 256 * 2**20
"""A picture is sent again when this many bytes of others were sent or used since: the driver forgets much later."""


class ProxyEngine:
    """Sends requests with `send` and resolves them when `answer` is called. It has no weights."""

    def __init__(self, send: Callable[[EngineRequest | CancelRequest], None], *, context_length: int) -> None:
        self._send = send
        self._context_length = context_length
        self._policy_version = 0
        self._num_requests = 0
        self._open: dict[int, asyncio.Future[EngineAnswer]] = {}
        self._sent = SentPictures()

    @property
    def policy_version(self) -> int:
        """The newest version that a completion had."""
        return self._policy_version

    @property
    def context_length(self) -> int:
        """The context length of the driver's engine."""
        return self._context_length

    @property
    def adapters(self) -> frozenset[str]:
        """None: the weights are elsewhere."""
        return frozenset()

    @property
    def pauses_during_update(self) -> bool:
        """False: the driver stops the clocks of workers itself."""
        return False

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample one completion with the real engine."""
        pictures = self.new_pictures(prompt_ids)
        answer = await self._ask(prompt_ids=tuple(prompt_ids), pictures=pictures, sampling=sampling)
        assert answer.completion is not None
        return answer.completion

    def new_pictures(self, prompt_ids: Sequence[int]) -> tuple[Picture, ...]:
        """The images of a prompt that the driver does not have, and that are now sent with it."""
        return self._sent.new_in(prompt_ids)

    async def _ask(self, **request: Any) -> EngineAnswer:
        number = self._num_requests = self._num_requests + 1
        future: asyncio.Future[EngineAnswer] = asyncio.get_running_loop().create_future()
        self._open[number] = future
        self._send(EngineRequest(number=number, **request))
        try:
            answer = await future
        except asyncio.CancelledError:
            self._send(CancelRequest(number=number))
            raise
        finally:
            del self._open[number]
        if answer.error is not None:
            raise (EngineRequestError if answer.is_refusal else EngineError)(answer.error)
        if answer.completion is not None:
            self._policy_version = max(self._policy_version, *answer.completion.policy_versions, 0)
        return answer

    def answer(self, answer: EngineAnswer) -> None:
        """Resolve a request; one that was cancelled meanwhile is ignored."""
        future = self._open.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Refused: only the driver's engine has weights."""
        raise EngineError("a rollout worker's engine has no weights to update; update the engine of the run")

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Does nothing: the driver pauses its engine."""
        yield

    async def close(self) -> None:
        """Does nothing: the driver closes its engine."""


class SentPictures:
    """What the driver has of the pictures of this process."""

    def __init__(self, max_bytes: int = MAX_SENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._num_bytes = 0

    def new_in(self, prompt_ids: Sequence[int]) -> tuple[Picture, ...]:
        """The pictures of a prompt that have to be sent with it."""
        if not has_image_ids(prompt_ids):
            return ()
        store, new = image_store(), list[Picture]()
        for image in {span.image.key: span.image for span in store.spans(prompt_ids)}.values():
            if image.key in self._sizes:
                self._sizes.move_to_end(image.key)
                continue
            new.append(store.picture(image))
            self._sizes[image.key] = len(new[-1].png())
            self._num_bytes += self._sizes[image.key]
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._sizes.popitem(last=False)[1]
        return tuple(new)


class MessageProxyEngine(ProxyEngine, MessageEngine):
    """A proxy for an engine behind a chat API."""

    async def chat(
        self, observation: Observation, sampling: SamplingParams, on_text: Callable[[str], None] | None = None
    ) -> tuple[Completion, Action]:
        """Sample one turn; its text comes as a whole."""
        answer = await self._ask(observation=observation, sampling=sampling)
        assert answer.completion is not None
        assert answer.action is not None
        if on_text is not None:
            on_text(answer.action.text)
        return answer.completion, answer.action
