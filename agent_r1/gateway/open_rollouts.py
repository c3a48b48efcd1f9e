"""`OpenRollout`: one rollout while its agent runs. Every call of the agent becomes a step with its exact tokens.

A call that continues an earlier one is bridged over the ids that were sampled there; any other call begins a branch.
Calls at the same time are branches too. What is recorded is what the engine got and gave: the ids of the prompt, the
sampled ids and their log-probs.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from agent_r1.chat import ChatRenderer, Prompt, TokenTexts
from agent_r1.errors import ChatTemplateError, EpisodeError, ImageError, UnsupportedMediaError
from agent_r1.event_loop import gather_or_cancel
from agent_r1.flows import AgentFlowBase, Turn
from agent_r1.gateway.agents import Assignment, task_for_agent
from agent_r1.gateway.history import History, RecordedCall, digest_of, text_prompt
from agent_r1.types import Message, Observation, StopReason, Task, TokenIds, ToolSchema, turn_call_id
from agent_r1.web import RefusedError

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingRequest:
    """What a request may decide about sampling. Temperature, top_p, top_k and the seed are the run's."""

    n: int = 1
    """Completions of the same prompt; each is a branch."""
    max_tokens: int | None = None
    """Maximum tokens, if that is less than the run's own limit."""
    stop: tuple[str, ...] = ()
    """Texts at which a completion ends."""
    with_calls: bool = True
    """False: the request offers no tools, so what looks like a call is text."""
    one_call: bool = False
    """Only the first call of a completion is returned."""


class OpenRollout:
    """The server's side of one rollout."""

    def __init__(self, flow: AgentFlowBase, task: Task, *, takes_outcome: bool) -> None:
        self.token = secrets.token_urlsafe(18)
        """The unguessable part of its address."""
        self.failure: asyncio.Future[EpisodeError] = asyncio.get_running_loop().create_future()
        """Resolved when something outside the agent failed: the engine."""
        self.out_of_steps = asyncio.Event()
        """Set when a call was refused because the rollout has made all its steps."""
        self.finished: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """Resolved with the answer of a remote program."""
        self.limit: StopReason | None = None
        """The limit at which the last call was refused; None when a call was answered since."""
        self.calls: list[RecordedCall] = []
        self._flow = flow
        self._task = task
        self._takes_outcome = takes_outcome
        self._history = History()
        self._responses: dict[str, list[int]] = {}
        self._num_started = 0
        self._same_prompt: Counter[bytes] = Counter()
        self._running: set[asyncio.Future[Any]] = set()
        self._is_open = True
        self._takes_rewards = True
        self._rewards: dict[int, float] = {}
        self._outcome: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def assignment(self, base_url: str, api_key: str) -> Assignment:
        """What the agent gets."""
        return Assignment(task=task_for_agent(self._task), base_url=base_url, api_key=api_key, finished=self.finished)

    # --- calls of the model ------------------------------------------------------------------------------------------

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], request: SamplingRequest
    ) -> list[RecordedCall]:
        """Complete a conversation. Raises `RefusedError` for a request that cannot be served."""
        self._check_open()
        try:
            conversation = self._history.find(messages, tools)
            parent = conversation.parent
            prompt = self._flow.render(conversation.observation, after=parent.turn if parent is not None else None)
        except (ChatTemplateError, ImageError, UnsupportedMediaError) as error:
            raise RefusedError(400, "invalid_messages", str(error)) from None
        calls = await self._sample(prompt, parent, request)
        for call in calls:
            self._history.add(conversation, call)
        return calls

    async def complete(self, prompt: str | TokenIds, request: SamplingRequest) -> list[RecordedCall]:
        """Complete a raw prompt: text, whose control tokens are ordinary characters, or exact ids."""
        self._check_open()
        if self._flow.takes_messages:
            raise _behind_chat_api("raw prompts", "send messages to /chat/completions")
        if not isinstance(prompt, str):
            ids = Prompt(observation=Observation(token_ids=prompt), token_ids=prompt)
            return await self._sample(ids, None, request)
        renderer = self._flow.context.renderer
        parent, rest = self._history.find_text(prompt)
        rendered = text_prompt(prompt, renderer.encode, renderer.stop_ids, parent, rest)
        calls = await self._sample(rendered, parent, request)
        for call in calls:
            self._history.add_text(prompt, parent, call)
        return calls

    async def _sample(
        self, prompt: Prompt, parent: RecordedCall | None, request: SamplingRequest
    ) -> list[RecordedCall]:
        """`request.n` completions of a prompt, each recorded as a step."""
        self._reserve(prompt, request.n)
        try:
            seeds = [self._seed(prompt) for _ in range(request.n)]
            calls_to_make = (self._flow.act(prompt, max_tokens=request.max_tokens, seed=seed) for seed in seeds)
            turns = await self._while_open(gather_or_cancel(calls_to_make))
        except EpisodeError as error:
            if not self.failure.done():
                self.failure.set_result(error)
            raise RefusedError(500, "engine_error", f"the engine could not complete the request: {error}") from None
        except BaseException:  # the client left, or the rollout ended
            self._num_started -= request.n
            raise
        renderer = self._flow.context.renderer
        return [self._record(as_returned(turn, request, renderer), parent) for turn in turns]

    def _reserve(self, prompt: Prompt, count: int) -> None:
        context, max_steps = self._flow.context, self._flow.context.max_steps
        if not (prompt.observation.messages if self._flow.takes_messages else prompt.token_ids):
            raise RefusedError(400, "invalid_messages", "the prompt is empty")
        if not self._flow.fits(prompt):
            self._refuse_at(StopReason.CONTEXT_FULL)
            raise RefusedError(
                400,
                "context_length_exceeded",
                f"This model's maximum context length is {context.engine.context_length} tokens "
                f"(rollout.context_length); the prompt has {len(prompt.token_ids)} tokens and leaves no room for more",
            )
        if self._num_started + count > max_steps:
            self._refuse_at(StopReason.MAX_STEPS)
            self.out_of_steps.set()
            raise RefusedError(
                400,
                "max_steps_reached",
                f"this rollout may call the model {max_steps} times (rollout.max_steps) and has done so "
                f"{self._num_started} times; the call asks for {count} more",
            )
        self._num_started += count

    def _refuse_at(self, limit: StopReason) -> None:
        self.limit = limit
        self._flow.metrics["episode/refused_calls"] += 1

    def _seed(self, prompt: Prompt) -> int:
        """A seed that does not depend on the order in which calls at the same time arrive."""
        identity = digest_of(prompt.observation.messages) if self._flow.takes_messages else _bytes_of(prompt.token_ids)
        digest = hashlib.blake2b(identity, digest_size=8).digest()
        self._same_prompt[digest] += 1
        return (int.from_bytes(digest, "little") ^ (self._same_prompt[digest] << 40)) >> 1

    def _record(self, turn: Turn, parent: RecordedCall | None) -> RecordedCall:
        recorded = RecordedCall(len(self.calls), turn)
        self._flow.record(turn, reward=0.0, done=False, parent=-1 if parent is None else parent.index)
        self.calls.append(recorded)
        self.limit = None
        return recorded

    async def _while_open(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`, which is cancelled when the rollout ends."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_open:
                raise
            raise _ended_error() from None
        finally:
            self._running.discard(task)
            task.cancel()

    def remember_response(self, response_id: str, calls: Sequence[RecordedCall]) -> None:
        """Remember which steps a response consists of, so that rewards can name it."""
        self._responses[response_id] = [call.index for call in calls]

    def step_of(self, response_id: Any, index: Any) -> int:
        """The step of a response's choice."""
        steps = self._responses.get(response_id, []) if isinstance(response_id, str) else []
        if not isinstance(index, int) or not 0 <= index < len(steps):
            raise RefusedError(422, "unknown_step", f"no response {response_id!r:.80} with choice {index!r:.20} here")
        return steps[index]

    def check_offers_tokens(self, feature: str) -> None:
        """Raise `RefusedError` where the model is behind a chat API, which tells no tokens."""
        if self._flow.takes_messages:
            raise _behind_chat_api(feature, "leave it out")

    @property
    def token_texts(self) -> TokenTexts:
        """The texts of single tokens, for log-probs in responses; nothing asks for one behind a chat API."""
        return TokenTexts(None) if self._flow.takes_messages else token_texts(self._flow.context.renderer)

    def text_of(self, ids: TokenIds) -> str:
        """The text of a prompt that was given as ids."""
        return self._flow.context.renderer.text_of(ids)

    # --- rewards -----------------------------------------------------------------------------------------------------

    def post_reward(self, reward: float, step: int | None) -> None:
        """Take a reward: of a step, or without `step` of the whole rollout."""
        if not self._takes_rewards:
            raise _ended_error()
        if not math.isfinite(reward) or abs(reward) > 1e9:
            raise RefusedError(422, "invalid_reward", f"a reward is a finite number up to a billion, found {reward}")
        if step is not None:
            if not 0 <= step < len(self.calls):
                count = f"it has made {len(self.calls)}, counted from 0"
                raise RefusedError(422, "unknown_step", f"step {step} is not a step of this rollout: {count}")
            self._rewards[step] = reward
            return
        if not self._takes_outcome:
            raise RefusedError(
                409,
                "reward_not_expected",
                "this run scores rollouts with its reward function; set agent.reward=posted to post the outcome, or "
                "post the reward of a step",
            )
        if self._outcome.done():
            raise RefusedError(409, "reward_posted_twice", "the outcome of this rollout has been posted already")
        self._outcome.set_result(reward)

    async def posted_outcome(self, grace_seconds: float) -> float:
        """The outcome that was posted, or is posted within `grace_seconds`."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._outcome), grace_seconds)
        except TimeoutError:
            details = (
                f"no outcome was posted until {grace_seconds:g} s (agent.grace_seconds) after the agent ended; send "
                'POST <base_url>/reward {"reward": 1.0}, or set agent.reward=function'
            )
            raise EpisodeError(StopReason.REWARD_ERROR, f"task '{self._task.task_id}'", details) from None

    def rewards(self) -> dict[int, float]:
        """The posted rewards of steps; from here on none is accepted."""
        self._takes_rewards = False
        return self._rewards

    # --- its end -----------------------------------------------------------------------------------------------------

    def end_calls(self) -> None:
        """The agent has ended: refuse further calls and drop those that run."""
        self._is_open = False
        for task in list(self._running):
            task.cancel()

    def close(self) -> None:
        """Refuse all requests from now on."""
        self.end_calls()
        self._takes_rewards = False
        for future in (self.failure, self.finished, self._outcome):
            future.cancel()

    def _check_open(self) -> None:
        if not self._is_open:
            raise _ended_error()


@lru_cache(maxsize=8)
def token_texts(renderer: ChatRenderer) -> TokenTexts:
    """Made once for all rollouts of a run."""
    return TokenTexts(renderer.tokenizer)


def as_returned(turn: Turn, request: SamplingRequest, renderer: ChatRenderer) -> Turn:
    """The turn as the client gets it: up to the first stop text, and with the calls it may have.

    The ids up to the one that completes the stop text are kept: no sampled id depends on later ones, so this is what
    sampling that stopped there would have given.
    """
    ids = turn.completion.token_ids
    text = turn.action.text if ids else turn.action.content
    starts = [(start, stop) for stop in request.stop if (start := text.find(stop)) >= 0]
    if starts:
        start, stop = min(starts)
        if not ids:  # behind a chat API
            client_action = replace(
                turn.action, text=text[:start], content=text[:start], tool_calls=(), parse_error=None
            )
            return replace(turn, action=client_action, completion=replace(turn.completion, finish_reason="stop"))
        end = start + len(stop)
        count = bisect_left(range(len(ids) + 1), end, key=lambda number: len(renderer.text_of(ids[:number])))
        completion = replace(
            turn.completion,
            token_ids=ids[:count],
            logprobs=turn.completion.logprobs[:count],
            policy_versions=turn.completion.policy_versions[:count],
            finish_reason="stop",
        )
        action = renderer.parse(ids[:count], truncated=False, text=text[:start])
        turn = replace(turn, completion=completion, action=action, context_cut=False)
    calls = turn.action.tool_calls if request.with_calls else ()
    if not ids:  # the server's own ids are not those that a request shows
        calls = tuple(replace(call, call_id=turn_call_id(number)) for number, call in enumerate(calls))
    return replace(turn, action=replace(turn.action, tool_calls=calls[:1] if request.one_call else calls))


def _bytes_of(ids: TokenIds) -> bytes:
    return array("q", ids).tobytes()


def _behind_chat_api(feature: str, to_do: str) -> RefusedError:
    message = f"the model of this run is behind a chat API (engine=openai), which offers no {feature}; {to_do}"
    return RefusedError(400, "not_offered", message)


def _ended_error() -> RefusedError:
    return RefusedError(410, "rollout_ended", "this rollout has ended; its address is no longer served")
