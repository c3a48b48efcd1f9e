"""`ToolEnv`: a conversation in which the model may call tools until it answers without calling any."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.envs.base import AgentEnv
from agent_r1.envs.context import ContextChoice, Conversation, make_policy, turns_of
from agent_r1.errors import ConfigError, boundary
from agent_r1.event_loop import gather_or_cancel
from agent_r1.images import with_images
from agent_r1.tools import BaseTool, CallOutcome, ToolContext, ToolEntry, ToolRunner, run_call, tools_of_row
from agent_r1.types import Action, Message, Observation, StepResult, StopReason, Task, ToolSchema

_COUNTED_AS = {"error": "errors", "invalid": "invalid", "timeout": "timeouts"}


@AgentEnv.register("tool")
class ToolEnv(AgentEnv):
    """Runs the tool calls of each action concurrently and shows their results; ends at an action without a call.

    A call whose answer has `ends_episode` ends it too. The reward of a step is the sum of its calls' rewards. What
    tools note is `info["notes"]` of the step, one mapping for each call: there a reward function finds it. A malformed
    action gets an error message as its result. A row's `env_kwargs["tools"]` replaces `tools` for that row: it chooses
    among `tools`, `row_tools` (only for rows that name them) and registered names (`agent_r1/tools/row_tools.py`).
    `context` sets how much of its history the model sees: `{name: window, turns: 4}`.
    """

    def __init__(
        self,
        tools: Sequence[ToolEntry] = (),
        context: ContextChoice = "append",
        row_tools: Sequence[ToolEntry] = (),
    ) -> None:
        self._default_tools = tools
        self._row_tools = row_tools
        self._policy = make_policy(context)
        self._runner: ToolRunner | None = None
        self._tools: dict[str, BaseTool] = {}
        self._first_prompt: tuple[Message, ...] = ()
        self._tool_context: ToolContext
        self._conversation: Conversation

    def set_tool_runner(self, runner: ToolRunner) -> None:
        """Run calls with `runner`; without one, the event loop's default runner is used."""
        self._runner = runner

    async def reset(self, task: Task) -> Observation:
        """Returns the row's messages and the tools' schemas."""
        await self.close()
        self._tools = self._find_tools(task)
        self._tool_context = ToolContext(task=task)
        self._first_prompt = task.prompt
        self._conversation = Conversation(self._policy, task.prompt)
        return self._observation()

    async def extend(self, task: Task) -> Observation:
        """Returns the longer conversation. The tools keep their state; the context policy sees the turns so far."""
        start = len(self._first_prompt)
        if not self._tools or task.prompt[:start] != self._first_prompt:
            return await self.reset(task)
        self._conversation = Conversation(self._policy, self._first_prompt, turns_of(task.prompt[start:]))
        return self._observation()

    def preview(self, task: Task) -> Observation:
        """What `reset` returns."""
        return Observation(messages=task.prompt, tools=_schemas(self._find_tools(task)))

    def _find_tools(self, task: Task) -> dict[str, BaseTool]:
        if "tools" in task.env_kwargs:
            entries = task.env_kwargs["tools"]
            tools = tools_of_row(task.task_id, entries, [*self._default_tools, *self._row_tools])
        else:
            tools = [tool for entry in self._default_tools for tool in BaseTool.find(entry)]
        if not tools:
            raise ConfigError(f"task '{task.task_id}' has no tools: set env.tools, or env_kwargs.tools in its row")
        return {tool.name: tool for tool in tools}

    def _observation(self) -> Observation:
        return Observation(messages=self._conversation.messages, tools=_schemas(self._tools))

    async def step(self, action: Action) -> StepResult:
        """Run the action's calls, report a malformed action, or end the episode when there is no call.

        An action that answers the context policy's question (a summary) does none of these.
        """
        if self._conversation.takes(action):
            return StepResult(observation=self._observation(), info={"metrics": {"episode/summaries": 1.0}})
        if action.parse_error is not None:
            answers: list[Message] = [{"role": "tool", "content": f"Error: {action.parse_error}"}]
            return self._continue(action, answers, 0.0, {"metrics": {"tool/parse_errors": 1.0}})
        if not action.tool_calls:
            return StepResult(observation=None, done=True)
        calls = [run_call(self._tools, call, self._tool_context, runner=self._runner) for call in action.tool_calls]
        outcomes = await gather_or_cancel(calls)
        answers = [
            {
                "role": "tool",
                "name": outcome.call.name,
                "tool_call_id": outcome.call.call_id,
                "content": with_images(outcome.response.text, outcome.response.images),
            }
            for outcome in outcomes
        ]
        metrics = _count(outcomes, self._tools)
        if action.repairs:
            metrics["tool/repaired_calls"] += len(action.repairs)
        info: dict[str, Any] = {"metrics": dict(metrics)}
        if any(outcome.info for outcome in outcomes):
            info["notes"] = [dict(outcome.info) for outcome in outcomes]
        reward = sum(outcome.reward for outcome in outcomes)
        last_words = [outcome.response.text for outcome in outcomes if outcome.response.ends_episode]
        if last_words:
            return StepResult(observation=None, reward=reward, done=True, info=info, answer=last_words[-1])
        return self._continue(action, answers, reward, info)

    async def close(self) -> None:
        """Close every tool, also when closing one of them fails."""
        tools, self._tools = self._tools, {}
        closing = [_close(tool, self._tool_context) for tool in tools.values()]
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if error is not None:
                raise error

    def _continue(self, action: Action, answers: list[Message], reward: float, info: Mapping[str, Any]) -> StepResult:
        self._conversation.add(action.as_message(), *answers)
        return StepResult(observation=self._observation(), reward=reward, info=info)


async def _close(tool: BaseTool, context: ToolContext) -> None:
    """Tools are closed in tasks, where a `SystemExit` would stop the event loop: `boundary` converts it."""
    with boundary(StopReason.ENV_ERROR, f"close of tool '{tool.name}'"):
        await tool.close(context)


def _schemas(tools: dict[str, BaseTool]) -> tuple[ToolSchema, ...]:
    return tuple(tool.tool_schema for tool in tools.values())


def _count(outcomes: Sequence[CallOutcome], tools: dict[str, BaseTool]) -> Counter[str]:
    """Metrics per tool. Tool names that do not exist are counted together as `unknown`."""
    metrics: Counter[str] = Counter()
    for outcome in outcomes:
        name = outcome.call.name if outcome.call.name in tools else "unknown"
        metrics[f"tool/{name}/calls"] += 1
        metrics[f"tool/{name}/seconds"] += outcome.seconds  # type: ignore[assignment]
        if outcome.status != "ok":
            metrics[f"tool/{name}/{_COUNTED_AS[outcome.status]}"] += 1
        if outcome.truncated:
            metrics[f"tool/{name}/truncated"] += 1
        if outcome.retries:
            metrics[f"tool/{name}/retries"] += outcome.retries
    return metrics
