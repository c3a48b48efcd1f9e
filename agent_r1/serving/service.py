"""`ModelServer`: the requests of the OpenAI API, answered by an agent's engine and renderer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any

from agent_r1.errors import ConfigError
from agent_r1.inference import Agent
from agent_r1.openai_api import (
    DONE,
    ApiError,
    ChatChunks,
    ChatModel,
    ChatRequest,
    Choice,
    ChoiceDelta,
    CompletionChunks,
    CompletionRequest,
    ResponseHead,
    chat_response,
    completion_response,
    models_response,
    read_chat_request,
    read_completion_request,
)
from agent_r1.serving.agent_mode import AgentMode, AgentRequest
from agent_r1.serving.events import Reserved, merged
from agent_r1.serving.limits import ServingLimits, Slots
from agent_r1.serving.metrics import ServerMetrics
from agent_r1.types import Completion, TokenIds
from agent_r1.version import __version__

Json = dict[str, Any]


class ModelServer:
    """One agent behind the API. The methods take the JSON of a request and give that of the response, or events."""

    def __init__(self, agent: Agent, *, limits: ServingLimits | None = None, name: str | None = None) -> None:
        if not agent.tells_tokens:
            raise ConfigError(
                f"{agent.source.label} is at a server already, which renders its prompts (engine.name="
                f"{agent.config.engine.name}): clients call that server"
            )
        self.agent = agent
        self.limits = limits or ServingLimits()
        self.name = name or agent.source.label
        self.model = ChatModel(
            agent.engine,
            agent.renderer,
            name=self.name,
            max_tokens=self.limits.max_tokens,
            max_prompt_tokens=self.limits.max_prompt_tokens,
        )
        self.slots = Slots(self.limits)
        self.metrics = ServerMetrics()
        self.agent_mode = AgentMode(agent, self.metrics)
        self._started = int(time.time())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Inside, requests can be answered; at the end the engine and the tools are closed."""
        async with self.agent.opened():
            yield

    def health(self) -> Json:
        """The state of the server."""
        return {
            "status": "ok",
            "model": self.name,
            "version": __version__,
            "completions": self.slots.num_taken,
            "waiting": self.slots.num_waiting,
        }

    def models(self) -> Json:
        """The one model that is served."""
        return models_response([self.name], self._started, max_model_len=self.agent.engine.context_length)

    def metrics_text(self) -> str:
        """Counters, and the state of the engine, in Prometheus' text format."""
        slots, stats = self.slots, getattr(self.agent.engine, "stats", None)
        gauges = {
            "completions_taken": ("Completions in the server.", lambda: float(slots.num_taken)),
            "completions_waiting": ("Completions that wait for a slot.", lambda: float(slots.num_waiting)),
        }
        for name in ("generated_tokens", "computed_tokens", "prefix_tokens", "preemptions", "steps"):
            if stats is not None:
                value = float(getattr(stats, name))
                gauges[f"engine_{name}"] = (f"The engine's count of {name}.", lambda value=value: value)  # type: ignore[misc]
        return self.metrics.text(gauges)

    # --- chat completions ---

    def read_chat(self, body: Json) -> ChatRequest:
        """The checked request."""
        request = read_chat_request(body)
        self._check_name(request.model)
        return request

    async def chat(self, request: ChatRequest) -> Json:
        """The whole response."""
        with self.slots.taken(request.n):
            prompt = self.model.prompt(request)
            seed = self._seed(request.sampling.seed)
            choices = await _all_of(
                self.model.choice(request, prompt, seed=seed, index=index) for index in range(request.n)
            )
            self._count(len(prompt.token_ids), choices)
            return chat_response(self._head("chat.completion"), request, prompt.token_ids, choices, self.texts)

    def stream_chat(self, request: ChatRequest) -> Reserved:
        """The events of a streamed response. What is wrong with the request is raised here, before the first event."""
        with ExitStack() as stack:
            stack.enter_context(self.slots.taken(request.n))
            prompt = self.model.prompt(request)
            seed = self._seed(request.sampling.seed)
            self.model.sampling_params(request.sampling, prompt.token_ids, seed=seed, index=0)
            chunks = ChatChunks(self._head("chat.completion"), request, prompt.token_ids, self.texts)
            streams = [self.model.stream_choice(request, prompt, seed=seed, index=index) for index in range(request.n)]
            first = [chunks.first(index) for index in range(request.n)]
            return Reserved(self._events(streams, first, chunks, len(prompt.token_ids)), stack.pop_all())

    # --- plain completions ---

    def read_completion(self, body: Json) -> CompletionRequest:
        """The checked request."""
        request = read_completion_request(body)
        self._check_name(request.model)
        return request

    async def complete(self, request: CompletionRequest) -> Json:
        """The whole response."""
        with self.slots.taken(request.n * len(request.prompts)):
            prompts, seed = self._prompts(request)
            choices = await _all_of(
                self.model.completion(request, prompts[index // request.n], seed=seed, index=index)
                for index in range(request.n * len(prompts))
            )
            self._count(sum(map(len, prompts)), choices)
            echoed = [self._echo(request, prompt) for prompt in prompts]
            return completion_response(self._head("text_completion"), request, prompts, echoed, choices, self.texts)

    def stream_completion(self, request: CompletionRequest) -> Reserved:
        """The events of a streamed response. What is wrong with the request is raised here, before the first event."""
        with ExitStack() as stack:
            stack.enter_context(self.slots.taken(request.n * len(request.prompts)))
            prompts, seed = self._prompts(request)
            chunks = CompletionChunks(self._head("text_completion"), request, prompts, self.texts)
            streams, first = [], []
            for index in range(request.n * len(prompts)):
                prompt = prompts[index // request.n]
                streams.append(self.model.stream_text(request, prompt, seed=seed, index=index))
                first.append(chunks.first(index, self._echo(request, prompt)))
            return Reserved(self._events(streams, first, chunks, sum(map(len, prompts))), stack.pop_all())

    def _prompts(self, request: CompletionRequest) -> tuple[list[TokenIds], int]:
        """The ids of every prompt, and the seed."""
        prompts = [self.model.prompt_ids(prompt) for prompt in request.prompts]
        seed = self._seed(request.sampling.seed)
        for prompt in prompts:
            self.model.sampling_params(request.sampling, prompt, seed=seed, index=0)
        return prompts, seed

    def _echo(self, request: CompletionRequest, prompt: TokenIds) -> str:
        return self.agent.renderer.text_of(prompt) if request.echo else ""

    # --- agent mode ---

    def read_agent(self, body: Json) -> AgentRequest:
        """The checked request."""
        self._check_name(body["model"] if isinstance(body.get("model"), str) else self.name)
        return self.agent_mode.read(body, max_tokens=self.limits.max_tokens)

    # --- what both share ---

    @property
    def texts(self) -> Any:
        """The texts of single tokens."""
        return self.model.token_texts

    async def _events(
        self,
        streams: Sequence[AsyncGenerator[ChoiceDelta, None]],
        first: Sequence[bytes],
        chunks: ChatChunks | CompletionChunks,
        num_prompt: int,
    ) -> AsyncGenerator[bytes, None]:
        """The events of all choices; those of one engine step are one piece."""
        completions: list[Completion] = []
        started, pending = time.perf_counter(), b"".join(first)
        self.metrics.prompt_tokens += num_prompt
        async with aclosing(_number_deltas(streams)) as deltas:
            async for items in deltas:
                events = b"".join([chunks.delta(index, delta) for index, delta in items])
                completions += [delta.choice.completion for _, delta in items if delta.choice is not None]
                self.metrics.sampled_tokens += sum(len(delta.token_ids) for _, delta in items)
                if pending:
                    self.metrics.first_token.add(time.perf_counter() - started)
                    events, pending = pending + events, b""
                if events:
                    yield events
        yield chunks.usage(completions) + DONE

    def _count(self, num_prompt: int, choices: Sequence[Choice]) -> None:
        self.metrics.prompt_tokens += num_prompt
        self.metrics.sampled_tokens += sum(len(choice.completion.token_ids) for choice in choices)

    def _head(self, kind: str) -> ResponseHead:
        return ResponseHead(kind=kind, model=self.name, fingerprint=f"v{self.agent.engine.policy_version}")

    def _seed(self, seed: int | None) -> int:
        return secrets.randbits(62) if seed is None else seed

    def _check_name(self, name: str) -> None:
        if name != self.name:
            raise ApiError(
                f"there is no model {name!r:.100} on this server; it serves {self.name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )


async def _number_deltas(
    streams: Sequence[AsyncGenerator[ChoiceDelta, None]],
) -> AsyncGenerator[list[tuple[int, ChoiceDelta]], None]:
    """The deltas of all streams with their numbers; one stream needs no task of its own."""
    if len(streams) > 1:
        async with aclosing(merged(streams)) as items:
            async for together in items:
                yield together
        return
    async with aclosing(streams[0]) as stream:
        async for delta in stream:
            yield [(0, delta)]


async def _all_of(calls: Any) -> list[Choice]:
    """The results of all calls, in order. When one fails, the others are cancelled."""
    first, *others = calls
    if not others:
        return [await first]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call) for call in (first, *others)]
    return [task.result() for task in tasks]
