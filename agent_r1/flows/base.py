"""`AgentFlowBase`: how one episode runs, from a task to its steps.

Most tasks need no flow of their own: `AgentEnvLoop` runs an environment, `SingleStepFlow` calls the model once. A
subclass controls prompts, model calls, branching and which steps are recorded:

    @AgentFlowBase.register("twice")
    class AskTwice(AgentFlowBase):
        async def run(self, task):
            for _ in range(2):
                prompt = self.render(Observation(messages=task.prompt))
                turn = await self.act(prompt)
                self.record(turn, reward=0.0, done=False)
            return self.episode(StopReason.DONE)

A flow object lives for one episode. `try_flow` runs one with replies that you write; docs/tutorials/your_own_flow.md
leads from there to a trained model.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from agent_r1.chat import ChatRenderer, Prompt, TextStream
from agent_r1.engines import Engine, MessageEngine, stream_completion
from agent_r1.envs import AgentEnv, check_metrics, checked_reward
from agent_r1.errors import ConfigError, EngineError, boundary
from agent_r1.flows.events import ActionParsed, FlowObserver, PromptRendered, StepRecorded, TokensSampled
from agent_r1.images import needs_reading, normal_observation, pictures_in
from agent_r1.metric_names import USAGE_PREFIX
from agent_r1.registry import Registry
from agent_r1.seeds import mix_seed
from agent_r1.tools import ToolRunner
from agent_r1.types import (
    Action,
    Completion,
    Episode,
    Message,
    Observation,
    SamplingParams,
    Step,
    StopReason,
    Task,
    TokenIds,
    own_values,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowContext:
    """What a flow has to work with."""

    engine: Engine
    """Samples from the policy."""
    renderer: ChatRenderer
    """Converts messages to token ids and back."""
    sampling: SamplingParams
    """How actions are sampled; the seed and the stop ids are filled in per call."""
    make_env: Callable[[Task], AgentEnv] | None = None
    """Makes a new environment for a task, for flows that use one."""
    tool_runner: ToolRunner | None = None
    """Runs tool calls, for flows that run tools themselves; `make_env` has given it to its environments already."""
    max_steps: int = 8
    """Maximum steps per episode."""
    max_images: int | None = None
    """Maximum images in one prompt."""
    max_episode_images: int | None = None
    """Maximum images in all prompts of the episode together."""
    seed: int = 0
    """Seeds the episode: the same seed and weights give the same actions."""
    trusted: tuple[Message, ...] = ()
    """Messages in which control tokens are encoded as such: those of a data row with `control_tokens`."""
    observer: FlowObserver | None = None
    """Receives the episode's events while it runs (`agent_r1/flows/events.py`); None in training."""
    continues: Turn | None = None
    """The last turn of an earlier episode that this one continues: prompts that extend it are bridged over its sampled
    ids. None: the episode begins a conversation."""
    services: Mapping[str, Any] = field(default_factory=dict)
    """What the flows of a run share, by name, such as the server that the flow `gateway` needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One model call, before the environment's step."""

    prompt: Prompt
    """What the model saw."""
    completion: Completion
    """The sampled ids and their log-probs."""
    action: Action
    """The completion, parsed."""
    context_cut: bool
    """The action was cut because the context was full, not by `max_tokens`."""
    seconds: float
    """Seconds that the call took."""
    waited: float = 0.0
    """Seconds between the step before, or the beginning of the episode, and the call."""


class AgentFlowBase(ABC):
    """Base class of flows: implement `run` with `render`, `act`, `record` and `episode`."""

    registry: ClassVar[Registry[type[AgentFlowBase]]] = Registry(
        "flow",
        accepts=lambda entry: isinstance(entry, type) and issubclass(entry, AgentFlowBase),
        expected="a subclass of AgentFlowBase",
    )

    def __init__(self, context: FlowContext) -> None:
        self.context = context
        self.steps: list[Step] = []
        self._recorded: list[Turn] = []
        self.metrics: Counter[str] = Counter()
        self._num_calls = 0
        self._shown: Counter[str] = Counter()
        self._last_recorded = time.perf_counter()
        engine = context.engine
        self._message_engine = engine if isinstance(engine, MessageEngine) else None

    @abstractmethod
    async def run(self, task: Task) -> Episode:
        """Run one episode."""

    @property
    def takes_messages(self) -> bool:
        """Whether the engine is behind a chat API: prompts and completions have no token ids."""
        return self._message_engine is not None

    def render(self, observation: Observation, after: Turn | None = None) -> Prompt:
        """The prompt of an observation; bridged over `after`'s sampled ids when it extends what that turn saw."""
        _require_observation("render", observation)
        if self._message_engine is not None:
            seen = None if after is None else after.prompt.observation
            return Prompt(observation=normal_observation(observation).with_own_values(seen), token_ids=())
        after = self.context.continues if after is None else after
        if after is None:
            return self.context.renderer.render(observation, trusted=self.context.trusted)
        return self.context.renderer.next_prompt(after.prompt, after.action, observation, trusted=self.context.trusted)

    async def render_async(self, observation: Observation, after: Turn | None = None) -> Prompt:
        """What `render` returns. Where the engine computes outside this thread, the event loop continues while long
        texts are encoded; otherwise nothing here waits, but for images that are read."""
        _require_observation("render_async", observation)
        sees_images = self._message_engine is not None or self.context.renderer.sees_images
        if sees_images and needs_reading(observation):
            observation = await asyncio.to_thread(normal_observation, observation)
        if self._message_engine is not None or type(self).render is not AgentFlowBase.render:
            return self.render(observation, after)
        after = self.context.continues if after is None else after
        previous = None if after is None else (after.prompt, after.action)
        return await self.context.renderer.prompt_async(observation, previous, trusted=self.context.trusted)

    def fits(self, prompt: Prompt) -> bool:
        """Whether the context has room for at least one more token, and the prompt, together with those before it, has
        no more images than allowed."""
        context = self.context
        if context.max_images is not None or context.max_episode_images is not None:
            pictures = _pictures_of(prompt)
            if context.max_images is not None and pictures.total() > context.max_images:
                return False
            if context.max_episode_images is not None and (self._shown | pictures).total() > context.max_episode_images:
                return False
        return len(prompt.token_ids) < context.engine.context_length

    async def act(self, prompt: Prompt, *, max_tokens: int | None = None, seed: int | None = None) -> Turn:
        """Call the model once; `max_tokens` may ask for less than the configuration allows. By default the seed depends
        on the number of calls before: calls at the same time need seeds that do not depend on who is first."""
        if not isinstance(prompt, Prompt):
            raise ConfigError(
                f"act needs a prompt, got {type(prompt).__name__}; write await self.act(self.render(observation))"
            )
        started = time.perf_counter()
        waited = started - self._last_recorded
        room = self.context.engine.context_length - len(prompt.token_ids)
        if room <= 0:
            raise ConfigError(
                f"the prompt has {len(prompt.token_ids)} tokens and leaves no room for an action in a context of "
                f"{self.context.engine.context_length}; ask self.fits(prompt) first, or raise rollout.context_length"
            )
        limit = self.context.sampling.max_tokens
        limit = limit if max_tokens is None else min(limit, max_tokens)
        sampling = replace(
            self.context.sampling,
            max_tokens=min(limit, room),
            stop=self.context.renderer.stop_ids,
            seed=mix_seed(self.context.seed, self._num_calls if seed is None else seed),
        )
        self._num_calls += 1
        if self.context.max_episode_images is not None:
            self._shown |= _pictures_of(prompt)
        if self._message_engine is None:
            completion, action = await self._sample(prompt, sampling)
        else:
            completion, action = await self._chat(self._message_engine, prompt, sampling)
        cut = completion.finish_reason == "length"
        turn = Turn(
            prompt=prompt,
            completion=completion,
            action=action,
            context_cut=cut and room < limit,
            seconds=time.perf_counter() - started,
            waited=waited,
        )
        if self.context.observer is not None:
            self.context.observer(ActionParsed(turn=turn))
        return turn

    async def _sample(self, prompt: Prompt, sampling: SamplingParams) -> tuple[Completion, Action]:
        with boundary(StopReason.ENGINE_ERROR, "the engine"):
            if self.context.observer is None:
                sampled = await self.context.engine.generate(prompt.token_ids, sampling)
            else:
                sampled = await self._sample_observed(prompt, sampling, self.context.observer)
        completion = self.context.renderer.own_turn(sampled)
        is_cut = completion.finish_reason == "length"
        return completion, self.context.renderer.parse(completion.token_ids, truncated=is_cut)

    async def _chat(self, engine: MessageEngine, prompt: Prompt, sampling: SamplingParams) -> tuple[Completion, Action]:
        """One turn of an engine that takes messages."""
        observer, on_text = self.context.observer, None
        if observer is not None:
            observer(PromptRendered(prompt=prompt))
            on_text = partial(_show_text, observer)
        with boundary(StopReason.ENGINE_ERROR, "the engine"):
            return await engine.chat(prompt.observation, sampling, on_text)
        raise AssertionError  # a boundary raises what it catches, as another error

    async def _sample_observed(self, prompt: Prompt, sampling: SamplingParams, observer: FlowObserver) -> Completion:
        """The same completion as `engine.generate`, with its tokens shown to the observer as they are sampled."""
        observer(PromptRendered(prompt=prompt))
        text = TextStream(self.context.renderer)
        completion: Completion | None = None
        async with aclosing(stream_completion(self.context.engine, prompt.token_ids, sampling)) as stream:
            async for new in stream:
                completion = new.completion
                new_text = text.add(new.token_ids, is_last=completion is not None)
                observer(TokensSampled(text=new_text, token_ids=new.token_ids, logprobs=new.logprobs))
        if completion is None:
            raise EngineError("the engine's stream ended without a completion")
        return completion

    def record(
        self,
        turn: Turn,
        *,
        reward: float,
        done: bool,
        info: Mapping[str, Any] | None = None,
        env_seconds: float = 0.0,
        following: Observation | None = None,
        parent: int | None = None,
    ) -> Step:
        """Append the turn to the episode as one MDP step. `following`, the next model input, is for observers. In an
        episode that branches, `parent` is the index of the step that it continues, -1 for none; without it, it
        continues the step before."""
        info = info or {}
        if not isinstance(turn, Turn):
            raise ConfigError(
                f"record needs the turn that act returned, got {type(turn).__name__}; write "
                "turn = await self.act(prompt), then self.record(turn, reward=0.0, done=True)"
            )
        if any(recorded is turn for recorded in self._recorded):
            raise ConfigError("this turn is recorded already; record each turn once, or it is learned from twice")
        check_metrics(info, "record was given")
        step = Step(
            observation=turn.prompt.observation,
            prompt_ids=turn.prompt.token_ids,
            action=turn.action,
            action_ids=turn.completion.token_ids,
            rollout_logprobs=turn.completion.logprobs,
            reward=checked_reward(reward, "record was given"),
            done=bool(done),
            policy_versions=turn.completion.policy_versions,
            info=own_values(info),
            timings={"wait": turn.waited, "generate": turn.seconds, "env": env_seconds},
            parent=parent,
        )
        self.steps.append(step)
        self._recorded.append(turn)
        self._last_recorded = time.perf_counter()
        self.metrics.update(info.get("metrics", {}))
        self.metrics["episode/cut_actions"] += turn.completion.finish_reason == "length"  # also when it is 0
        for name, amount in (turn.completion.usage or {}).items():
            self.metrics[f"{USAGE_PREFIX}{name}"] += amount
        if self.context.observer is not None:
            self.context.observer(StepRecorded(step=step, following=following))
        return step

    def episode(
        self,
        stop_reason: StopReason,
        next_prompt_ids: TokenIds | None = None,
        next_privileged: str | None = None,
        *,
        answer: str | None = None,
    ) -> Episode:
        """What `run` returns: all recorded steps, and for a truncated episode the state after the last one. `answer` is
        the episode's answer where it is not the text of the last recorded call."""
        return Episode(
            steps=tuple(self.steps),
            stop_reason=stop_reason,
            next_prompt_ids=next_prompt_ids,
            next_privileged=next_privileged,
            metrics={name: float(value) for name, value in self.metrics.items()},
            given_answer=answer,
        )

    @classmethod
    def register(cls, name: str) -> Callable[[type[_FlowT]], type[_FlowT]]:
        """Register a flow class under a name that data rows can use as `agent_name`."""
        return cls.registry.register(name)  # type: ignore[return-value]


_FlowT = TypeVar("_FlowT", bound=AgentFlowBase)


def _require_observation(method: str, observation: object) -> None:
    if not isinstance(observation, Observation):
        raise ConfigError(
            f"{method} needs an Observation, got {type(observation).__name__}; write "
            f"self.{method}(Observation(messages=task.prompt))"
        )


def _show_text(observer: FlowObserver, text: str) -> None:
    observer(TokensSampled(text=text, token_ids=(), logprobs=()))


def _pictures_of(prompt: Prompt) -> Counter[str]:
    """How often each picture is in a prompt, by content. Of several prompts, the most often counts."""
    return Counter(picture.content_hash for picture in pictures_in(prompt.observation.messages or ()))
