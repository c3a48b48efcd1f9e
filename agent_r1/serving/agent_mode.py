"""The agent mode: the server runs the recipe's tools itself and streams the whole trajectory.

Every request is one episode of the flow, environment, tools and limits of training. Its events, in order:

    turn      {turn, prompt_tokens}                                     the model is about to be called
    tokens    {turn, text}                                              the model wrote something
    action    {turn, content, tool_calls, parse_error, finish_reason}   its turn is complete
    message   {turn, role, content, name, tool_call_id}                 a tool's result, or the environment's words
    reward    {turn, reward, done}                                      the step is over
    end       {answer, stop_reason, reward, error, num_turns, usage}    the episode is over

With `return_token_ids`, `turn` has `prompt_token_ids`, and `tokens` has `token_ids` and `logprobs`. The outcome
`reward` is null unless the request names a task of the data.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from agent_r1.codec import write_json
from agent_r1.errors import DataError, ImageError
from agent_r1.flows import ActionParsed, FlowEvent, PromptRendered, StepRecorded, TokensSampled
from agent_r1.images import openai_content, picture_messages
from agent_r1.inference import Agent
from agent_r1.openai_api import DONE, ApiError, messages_from_openai, read_fields, tool_calls_to_openai
from agent_r1.serving.events import Reserved
from agent_r1.serving.limits import Slots
from agent_r1.serving.metrics import ServerMetrics
from agent_r1.types import Message, SamplingParams, Task, Trajectory, content_text

Json = dict[str, Any]


class _Fields(BaseModel):
    """The body of `/v1/agent`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    messages: Annotated[list[Json], Field(min_length=1)] | None = None
    task: str | int | None = None
    stream: bool = True
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**62)] | None = None
    return_token_ids: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentRequest:
    """A request to `/v1/agent`."""

    task: Task
    is_scored: bool
    """Whether the task has a ground truth, so that its outcome can be scored."""
    sampling: SamplingParams
    seed: int
    stream: bool
    return_token_ids: bool


class AgentMode:
    """Runs episodes for clients."""

    def __init__(self, agent: Agent, metrics: ServerMetrics) -> None:
        self._agent = agent
        self._metrics = metrics
        self._tasks: dict[str, Task] | None = None

    def read(self, body: Json, *, max_tokens: int | None = None) -> AgentRequest:
        """The checked request: `messages` of a user, or `task`, a row of the recipe's data by its id or number; with
        both, the messages are said in the environment of that row."""
        fields = read_fields(body, _Fields)
        if fields.messages is None and fields.task is None:
            raise ApiError("give messages, or task: the id or number of a row of the data", param="messages")
        task = None if fields.task is None else self._task(fields.task)
        if fields.messages is not None:
            messages = messages_from_openai(fields.messages)
            question = self._agent.question(messages)
            task = question if task is None else replace(task, prompt=messages, reward_model={}, control_tokens=False)
        assert task is not None
        if max_tokens is not None and (fields.max_tokens or 0) > max_tokens:
            raise ApiError(f"max_tokens is {fields.max_tokens}; at most {max_tokens} per turn", param="max_tokens")
        sampling = self._agent.sampling
        if max_tokens is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, max_tokens))
        chosen = fields.model_dump(include={"temperature", "top_p", "max_tokens"}, exclude_none=True)
        return AgentRequest(
            task=task,
            is_scored=fields.messages is None,
            sampling=replace(sampling, **chosen),
            seed=secrets.randbits(62) if fields.seed is None else fields.seed,
            stream=fields.stream,
            return_token_ids=fields.return_token_ids,
        )

    def _task(self, key: str | int) -> Task:
        try:
            tasks = self._agent.tasks()
        except DataError as error:
            raise ApiError(str(error), status=404, param="task") from None
        if isinstance(key, int) and 0 <= key < len(tasks):
            return tasks[key]
        if self._tasks is None:
            self._tasks = {task.task_id: task for task in tasks}
        if key not in self._tasks:
            raise ApiError(
                f"there is no task {key!r:.80}; there are {len(tasks)}, the first is {tasks[0].task_id!r:.80}",
                status=404,
                param="task",
            )
        return self._tasks[str(key)]

    async def run(self, request: AgentRequest, slots: Slots) -> Json:
        """The whole trajectory."""
        observer = _Events(request)
        with slots.taken(1):
            trajectory = await self._play(request, observer)
        events = [event for event in observer.items if event["type"] != "tokens" or request.return_token_ids]
        return {"object": "agent.trajectory", "events": events, **observer.end(trajectory)}

    def stream(self, request: AgentRequest, slots: Slots) -> Reserved:
        """The events of the trajectory as they happen."""
        with ExitStack() as stack:
            stack.enter_context(slots.taken(1))
            return Reserved(self._stream(request), stack.pop_all())

    async def _stream(self, request: AgentRequest) -> AsyncGenerator[bytes, None]:
        observer = _Events(request)
        episode = asyncio.create_task(self._play(request, observer))
        episode.add_done_callback(lambda _: observer.changed.set())
        try:
            while not episode.done():
                await observer.changed.wait()
                observer.changed.clear()
                if items := observer.take():
                    yield b"".join(map(_event, items))
            trajectory = episode.result()
        finally:
            episode.cancel()
            await asyncio.gather(episode, return_exceptions=True)
        yield _event({"type": "end", **observer.end(trajectory)}) + DONE

    async def _play(self, request: AgentRequest, observer: _Events) -> Trajectory:
        trajectory = await self._agent.play(
            request.task,
            observer=observer,
            sampling=request.sampling,
            seed=request.seed,
            scored=request.is_scored,
        )
        self._metrics.sampled_tokens += sum(len(step.action_ids) for step in trajectory.steps)
        self._metrics.prompt_tokens += sum(len(step.prompt_ids) for step in trajectory.steps)
        self._metrics.tool_calls += sum(len(step.action.tool_calls) for step in trajectory.steps)
        return trajectory


class _Events:
    """Observes an episode and writes down its events."""

    def __init__(self, request: AgentRequest) -> None:
        self._request = request
        self._turn = 0
        self.items: list[Json] = []
        self._num_taken = 0
        self.changed = asyncio.Event()

    def take(self) -> list[Json]:
        """The events since the last call."""
        new, self._num_taken = self.items[self._num_taken :], len(self.items)
        return new

    def __call__(self, event: FlowEvent) -> None:
        if isinstance(event, PromptRendered):
            self._turn += 1
            self._add("turn", prompt_tokens=len(event.prompt.token_ids))
            if self._request.return_token_ids:
                self.items[-1]["prompt_token_ids"] = list(event.prompt.token_ids)
        elif isinstance(event, TokensSampled):
            exact = {"token_ids": list(event.token_ids), "logprobs": list(event.logprobs)}
            self._add("tokens", text=event.text, **(exact if self._request.return_token_ids else {}))
        elif isinstance(event, ActionParsed):
            action = event.turn.action
            self._add(
                "action",
                content=action.content if action.tool_calls else action.as_message()["content"],
                tool_calls=tool_calls_to_openai(action.tool_calls, keep_ids=True),
                parse_error=action.parse_error,
                finish_reason=event.turn.completion.finish_reason,
            )
        else:
            self._step(event)
        self.changed.set()

    def _step(self, event: StepRecorded) -> None:
        for message in event.replies:
            fields = {key: value for key, value in message.items() if isinstance(value, str)}
            self._add("message", **fields | {"content": _shown_content(message)})
        self._add("reward", reward=event.step.reward, done=event.step.done)

    def _add(self, kind: str, **fields: Any) -> None:
        self.items.append({"type": kind, "turn": self._turn, **fields})

    def end(self, trajectory: Trajectory) -> Json:
        """The last event of an episode."""
        last = trajectory.steps[-1].action if trajectory.steps else None
        answer = None if last is None else last.final_answer or last.as_message()["content"]
        answer = answer if trajectory.given_answer is None else trajectory.given_answer
        num_prompt = sum(len(step.prompt_ids) for step in trajectory.steps)
        num_sampled = sum(len(step.action_ids) for step in trajectory.steps)
        return {
            "answer": answer,
            "stop_reason": trajectory.stop_reason.value,
            "reward": trajectory.outcome_reward if self._request.is_scored and not trajectory.is_failure else None,
            "error": _short(trajectory.error) if trajectory.is_failure else None,
            "num_turns": len(trajectory.steps),
            "usage": {
                "prompt_tokens": num_prompt,
                "completion_tokens": num_sampled,
                "total_tokens": num_prompt + num_sampled,
            },
        }


def _shown_content(message: Message) -> Any:
    """Text, or parts in which images are data URLs."""
    try:
        return openai_content(picture_messages([message])[0].get("content"))
    except ImageError:
        return content_text(message.get("content"))


def _short(error: str | None) -> str:
    """The last line of an error: tracebacks show paths of the server."""
    lines = [line for line in (error or "").strip().splitlines() if line.strip()]
    return lines[-1][:500] if lines else "the episode failed"


def _event(item: Json) -> bytes:
    return f"event: {item['type']}\ndata: {write_json(item)}\n\n".encode()
