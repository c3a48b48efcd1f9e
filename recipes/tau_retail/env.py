"""The environment `tau_retail`: the shop's tools, a customer, and a view of the database per episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_r1.envs import AgentEnv, ToolEnv
from agent_r1.errors import ConfigError, DataError
from agent_r1.tools import ToolContext
from agent_r1.types import Action, Observation, StepResult, Task, ToolCall

from .customers import CUSTOMERS, Customer, make_customer, said_text
from .database import Database, View, open_database
from .outputs import missing_outputs
from .prompts import Policy, answer_text, first_messages, system_text
from .service import RefusedError
from .texts import Form
from .tools import STATE, TOOLS, TRANSFER, WRITING, Desk

_BY_NAME = {tool.name: tool for tool in TOOLS}


@AgentEnv.register("tau_retail")
class RetailEnv(ToolEnv):
    """A `ToolEnv` over one view of the database. A message without a call goes to the customer, who may answer.

    Args:
        shop: The folder with the database.
        user: `solo`: the instruction is the request, and the first message ends the episode; `rules`: a customer who
            tells the instruction in turns; `openai`: one that a model behind `user_server` plays.
        user_server: Of `openai`: `url`, `model`, `key_env`, `temperature`, `max_tokens`, `timeout`, `retries`.
        policy: `short`, or `full`: tau-bench's own text.
        form: Of records: `compact`, or the `json` of tau-bench.
        context: How much of its history the model sees.
    """

    def __init__(
        self,
        shop: str,
        user: str = "solo",
        user_server: Mapping[str, Any] | None = None,
        policy: Policy = "short",
        form: Form = "compact",
        context: str | Mapping[str, Any] = "append",
    ) -> None:
        wrong = [
            f"env.{name}={value} must be one of {', '.join(known)}"
            for name, value, known in (
                ("user", user, CUSTOMERS),
                ("policy", policy, ("short", "full")),
                ("form", form, ("compact", "json")),
            )
            if value not in known
        ]
        if wrong:
            raise ConfigError("; ".join(wrong))
        super().__init__(TOOLS, context)
        self._shop, self._user, self._form = shop, user, form
        self._server = dict(user_server or {})
        make_customer(user, "", self._server)  # wrong settings are an error before the first episode
        self._policy_name: Policy = policy
        self._customer: Customer | None = None
        self._desk: Desk
        self._task: Task
        self._said: list[str] = []

    @property
    def _solo(self) -> bool:
        return self._user == "solo"

    async def reset(self, task: Task) -> Observation:
        """Returns the policy, what the customer says first, and the tools."""
        customer = make_customer(self._user, _text_of(task, "instruction"), self._server)
        try:
            request = await customer.begin()
            observation = await super().reset(replace(task, prompt=tuple(self._messages(request))))
        except BaseException:
            await customer.close()
            raise
        self._customer = customer
        self._task, self._said = task, []
        self._desk = Desk(view=View(database=open_database(self._shop)), form=self._form)
        self._tool_context.state[STATE] = self._desk
        return observation

    def preview(self, task: Task) -> Observation:
        """What `reset` returns; where the customer speaks in turns, with the whole instruction."""
        return super().preview(replace(task, prompt=tuple(self._messages(_text_of(task, "instruction")))))

    async def step(self, action: Action) -> StepResult:
        """Run calls, or give a message to the customer. The episode ends when the customer has nothing to add, or with
        the transfer to a human agent."""
        if self._customer is None:
            raise RuntimeError("step before reset, or after close")
        changed, refused = len(self._desk.writes), self._desk.num_refused
        result = await super().step(action)
        metrics = {
            **result.info.get("metrics", {}),
            "retail/writes": float(len(self._desk.writes) - changed),
            "retail/refused_writes": float(self._desk.num_refused - refused),
        }
        if self._desk.transferred:
            return await self._end(metrics)
        if not result.done:
            return replace(result, info={**result.info, "metrics": metrics})
        text = said_text(action)
        self._said.append(text)
        reply = await self._customer.reply(text)
        if reply is None:
            return await self._end(metrics)
        self._conversation.add(action.as_message(), {"role": "user", "content": reply})
        return StepResult(observation=self._observation(), info={"metrics": {**metrics, "retail/replies": 1.0}})

    def gold_actions(self, task: Task) -> list[Action] | None:
        """The calls of the gold plan and a last message with the outputs; in solo mode only. A transfer ends the
        episode, so it is the last action, or is left out where outputs must be told."""
        if not self._solo:
            return None
        outputs = list(task.env_kwargs.get("outputs") or ())
        calls = [call for call in gold_calls(task) if call.name != TRANSFER]
        last = next((call for call in gold_calls(task) if call.name == TRANSFER and not outputs), None)
        text = answer_text(outputs)
        end = Action(text=text, content=text) if last is None else Action(text="", tool_calls=(last,))
        return [*(Action(text="", tool_calls=(call,)) for call in calls), end]

    async def close(self) -> None:
        """Release the customer and the view."""
        customer, self._customer = self._customer, None
        if customer is not None:
            await customer.close()
        await super().close()

    async def _end(self, metrics: Mapping[str, float]) -> StepResult:
        expected = await gold_view(self._desk.view.database, self._task)
        right = self._desk.view.digest() == expected.digest()
        outputs = list(self._task.env_kwargs.get("outputs") or ())
        given = 1.0 - len(missing_outputs(outputs, self._said)) / len(outputs) if outputs else 1.0
        info = {
            "database_right": float(right),
            "outputs_given": given,
            "writes": list(self._desk.writes),
            "metrics": dict(metrics),
        }
        return StepResult(observation=None, done=True, info=info)

    def _messages(self, request: str) -> list[dict[str, Any]]:
        return first_messages(system_text(self._policy_name, solo=self._solo, folder=self._shop), request)


def gold_calls(task: Task) -> list[ToolCall]:
    """The gold actions of a row as calls."""
    actions = task.env_kwargs.get("actions")
    if not isinstance(actions, Sequence) or not all(
        isinstance(action, Mapping) and action.get("name") in _BY_NAME and isinstance(action.get("kwargs"), Mapping)
        for action in actions
    ):
        raise DataError(
            f"task '{task.task_id}': env_kwargs.actions must be a list of {{name, kwargs}} with names of tools"
        )
    return [ToolCall(name=action["name"], arguments=action["kwargs"]) for action in actions]


async def gold_view(database: Database, task: Task) -> View:
    """The database after the gold actions. What the shop refuses changes nothing, and is part of some plans."""
    desk = Desk(view=View(database=database))
    context = ToolContext(task=task, state={STATE: desk})
    for call in gold_calls(task):
        if call.name in WRITING:
            try:
                await _BY_NAME[call.name].execute(call.arguments, context=context)
            except RefusedError:
                continue
    return desk.view


def _text_of(task: Task, name: str) -> str:
    value = task.env_kwargs.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"task '{task.task_id}': env_kwargs.{name} must be a text, found {type(value).__name__}")
    return value
