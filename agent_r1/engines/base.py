"""The `Engine` protocol (token ids in, token ids and log-probs out), the registry of engines, and `make_engine`.

An engine of your own is a factory under a name, in a module that `imports` lists:

    @engine_factories.register("mine")
    def make_mine(config, policy, context_length, *, url): return MyEngine(url, context_length)

    engine.name=mine engine.arguments.url=http://localhost:8000
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from agent_r1.config import Config
from agent_r1.registry import Registry, bind_part, takes
from agent_r1.types import Action, Completion, Observation, SamplingParams, TokenIds


class Engine(Protocol):
    """Anything that can sample from the policy.

    `generate` may be called by any number of episodes concurrently; an engine batches them as it likes. A request
    depends only on its prompt, its sampling parameters (the seed among them) and the weights.

    Weights may change during a request. Tokens sampled before stay; tokens sampled after come from the new weights,
    given the prompt and everything sampled so far. `Completion.policy_versions` says which is which:

        4 ids sampled at version 0, then `update_weights(..., version=1)`, then 2 more: (0, 0, 0, 0, 1, 1)
    """

    @property
    def policy_version(self) -> int:
        """The version given with the latest weight update."""
        ...

    @property
    def context_length(self) -> int:
        """Prompt and completion together may not be longer than this."""
        ...

    @property
    def adapters(self) -> Collection[str]:
        """Layers whose LoRA adapters the engine applies itself: for these `update_weights` brings the plain weight,
        `<layer>.lora_A` and `<layer>.lora_B` (scaled). All others come merged."""
        ...

    @property
    def pauses_during_update(self) -> bool:
        """Whether requests wait inside `paused()`, as they do in an engine that shares the learner's device. The
        deadlines of episodes are then extended by the time of the update."""
        ...

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample one completion. Raises `EngineError` when the prompt does not fit or the engine is broken."""
        ...

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Load the trainer's weights (name, tensor). Every id sampled from here on carries `version`, also those of
        running requests."""
        ...

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Inside, an engine that shares the learner's device computes nothing and requests wait; another engine may
        continue. Weights may be updated inside."""
        ...

    async def close(self) -> None:
        """Stop and free what the engine holds."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedTokens:
    """What was sampled for a request since the last record of its stream."""

    token_ids: TokenIds
    """The new ids; empty in a last record that adds none."""
    logprobs: tuple[float, ...]
    """One per new id."""
    policy_versions: tuple[int, ...]
    """One per new id: the version of the weights that sampled it."""
    completion: Completion | None = None
    """The whole completion, in the last record only."""


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that gives tokens while it samples. Optional: `stream_completion` works with every engine."""

    def stream(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> AsyncGenerator[StreamedTokens, None]:
        """Sample one completion, as `generate` would, and yield its tokens as they come.

        Closing the stream (`aclose`, or cancelling the task that reads it) drops the request and frees its memory.
        """
        ...


class MessageEngine(ABC):
    """An engine behind a chat API: it takes messages and tools, renders them itself and returns the parsed turn.

    It subclasses this and has the methods of `Engine` too. For inference only: training needs the tokens.
    """

    @abstractmethod
    async def chat(
        self, observation: Observation, sampling: SamplingParams, on_text: Callable[[str], None] | None = None
    ) -> tuple[Completion, Action]:
        """Sample one turn; `on_text` gets its text as it comes. The completion has ids where the API tells them."""

    async def check(self) -> None:  # noqa: B027 - not every API can be checked
        """Raise `EngineError` when requests cannot be served, before the first episode: a wrong key or address."""


@runtime_checkable
class MeasuredEngine(Engine, Protocol):
    """An engine that counts. Optional: `engine_metrics` works with every engine."""

    def metrics(self) -> dict[str, float]:
        """Counts since the last call, by the names they are logged under."""
        ...


def engine_metrics(engine: Engine) -> dict[str, float]:
    """What an engine counted since the last call; nothing for an engine that does not count."""
    return engine.metrics() if isinstance(engine, MeasuredEngine) else {}


async def stream_completion(
    engine: Engine, prompt_ids: Sequence[int], sampling: SamplingParams
) -> AsyncGenerator[StreamedTokens, None]:
    """The tokens of one completion as they are sampled; all at once, at the end, from an engine that cannot stream.

        async with aclosing(stream_completion(engine, prompt_ids, sampling)) as stream:
            async for new in stream:
                show(new.token_ids)
        completion = new.completion

    `aclosing` drops the request as soon as its reader leaves the block.
    """
    if isinstance(engine, StreamingEngine):
        async with aclosing(engine.stream(prompt_ids, sampling)) as stream:
            async for new in stream:
                yield new
    else:
        completion = await engine.generate(prompt_ids, sampling)
        yield StreamedTokens(
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            policy_versions=completion.policy_versions,
            completion=completion,
        )


EngineFactory = Callable[..., Engine]
"""`factory(config, policy, context_length, **engine.arguments)`. The policy is the `transformers` model to train: an
engine copies its weights, or starts from `config.model.path` and waits for `update_weights`."""

engine_factories: Registry[EngineFactory] = Registry(
    "engine", accepts=takes(3), expected="a function of a configuration, a policy and a context length"
)


@engine_factories.register("local")
def _make_local(config: Config, policy: Any, context_length: int) -> Engine:
    """The in-process engine. It is imported here, so that this package can be imported without torch."""
    from agent_r1.engines.local.factory import make_local_engine

    return make_local_engine(config, policy, context_length)


@engine_factories.register("openai")
def _make_openai(
    config: Config,
    policy: Any,
    context_length: int,
    *,
    omit: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> Engine:
    """Any OpenAI-compatible server; `omit` and `extra` change the fields of requests."""
    from agent_r1.engines.openai.factory import make_openai_engine

    return make_openai_engine(config, omit=omit, extra=extra)


_TAKE_MESSAGES = {"openai"}


def takes_messages(config: Config) -> bool:
    """Whether the engine is behind a chat API (`MessageEngine`): it needs no model here, and cannot be trained with."""
    return config.engine.name in _TAKE_MESSAGES


def _make_servers(config: Config, policy: Any, context_length: int) -> Engine:
    """vLLM or SGLang servers. Imported here: it needs the extra `servers`."""
    from agent_r1.engines.http.factory import make_servers_engine

    return make_servers_engine(config, policy, context_length)


SERVER_ENGINES = ("vllm", "sglang", "http")
"""Engines that are servers in processes of their own; `http` asks each server which of the two it is."""
for _name in SERVER_ENGINES:
    engine_factories.add(_name, _make_servers)


def bind_engine(config: Config) -> EngineFactory:
    """The factory that `engine.name` names, with `engine.arguments` bound to it. Raises `ConfigError` for an unknown
    name, for arguments that the factory does not take, and for servers that cannot be used."""
    if config.engine.name in SERVER_ENGINES:
        from agent_r1.engines.http.factory import check_servers

        check_servers(config)
    return bind_part(engine_factories, "engine.arguments", {**config.engine.arguments, "name": config.engine.name})


def make_engine(config: Config, policy: Any, context_length: int) -> Engine:
    """The engine of a run."""
    engine: Engine = bind_engine(config)(config, policy, context_length)
    return engine
