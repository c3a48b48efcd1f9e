"""`Connection`: the driver's end of one worker. It batches messages to it and lets the engine answer its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent_r1.engines import Engine, MessageEngine
from agent_r1.errors import INTERRUPTIONS, AgentR1Error, EngineLostError, EngineRequestError, described
from agent_r1.images import ImageProcessor, Picture
from agent_r1.rollout.workers.cluster import WorkerHandle
from agent_r1.rollout.workers.messages import EngineAnswer, EngineRequest, ToWorker


class Connection:
    """All messages of one round of the event loop travel as one batch."""

    def __init__(
        self,
        handle: WorkerHandle,
        engine: Engine,
        on_engine_lost: Callable[[EngineLostError], None],
        processor: ImageProcessor | None = None,
    ) -> None:
        """`processor` is the model's own, for one that reads images."""
        self._handle = handle
        self._engine = engine
        self._processor = processor
        self._on_engine_lost = on_engine_lost
        self._outbox: list[ToWorker] = []
        self._num_batches = 0
        self._requests: dict[int, asyncio.Task[None]] = {}

    def send(self, message: ToWorker) -> None:
        """Send a message with the next batch."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self._outbox.append(message)

    def flush(self) -> None:
        """Send what there is."""
        if self._outbox:
            messages, self._outbox = self._outbox, []
            self._handle.deliver(self._num_batches, messages)
            self._num_batches += 1

    def request(self, request: EngineRequest) -> None:
        """Let the engine answer a request. Its pictures are known from now on: later requests come without them."""
        try:
            self.take_pictures(request.pictures)
        except AgentR1Error as error:
            self.send(EngineAnswer(number=request.number, error=described(error), is_refusal=True))
            return
        self._requests[request.number] = asyncio.create_task(self._answer(request))

    def take_pictures(self, pictures: Sequence[Picture]) -> None:
        """Make pictures of the worker's prompts known in this process."""
        if self._processor is not None:
            for picture in pictures:
                self._processor.encode(picture)

    def cancel_request(self, number: int) -> None:
        """The episode no longer waits for the answer: the engine drops the request."""
        if number in self._requests:
            self._requests[number].cancel()

    def close(self) -> None:
        """The worker is gone: the engine drops all its requests."""
        self._outbox.clear()
        for answering in self._requests.values():
            answering.cancel()

    async def _answer(self, request: EngineRequest) -> None:
        try:
            self.send(await self._ask(request))
        except INTERRUPTIONS:
            raise
        except EngineLostError as error:
            self._on_engine_lost(error)
        except BaseException as error:  # noqa: BLE001 - an engine of the user's own may raise anything; the episode fails
            is_refusal = isinstance(error, EngineRequestError)
            self.send(EngineAnswer(number=request.number, error=described(error), is_refusal=is_refusal))
        finally:
            del self._requests[request.number]

    async def _ask(self, request: EngineRequest) -> EngineAnswer:
        if request.observation is None:
            await self._prepare(request)
            completion = await self._engine.generate(request.prompt_ids, request.sampling)
            return EngineAnswer(number=request.number, completion=completion)
        assert isinstance(self._engine, MessageEngine)
        completion, action = await self._engine.chat(request.observation, request.sampling)
        return EngineAnswer(number=request.number, completion=completion, action=action)

    async def _prepare(self, request: EngineRequest) -> None:
        """Make what the model takes of new pictures in threads, and not on the event loop."""
        if self._processor is not None:
            for picture in request.pictures:
                if not self._processor.is_prepared(picture):
                    await asyncio.to_thread(self._processor.prepare, picture)
