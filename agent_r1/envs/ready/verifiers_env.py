"""`VerifiersEnv`: an environment of the library `verifiers`, in our loop.

Its data set, tools, `env_response`, stop conditions and rubric are used; its rollout is not, because that calls a model
over HTTP and returns text. Here the engine samples, and every step keeps its exact tokens.

Not supported: rubrics that score a group together, environments with a rollout of their own (`EnvGroup`, the classes of
`verifiers.v1`), and environments that call the policy's client themselves.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from agent_r1.envs.base import AgentEnv
from agent_r1.errors import ConfigError, DataError, require_installed
from agent_r1.registry import find_module
from agent_r1.rewards import RewardValue, reward_functions
from agent_r1.types import Action, Episode, Message, Observation, StepResult, Task, ToolSchema

_loaded: dict[tuple[str, str], Any] = {}
_errors: ContextVar[list[Exception] | None] = ContextVar("errors_of_reward_functions", default=None)
_MODEL = "policy"


def load_verifiers(name: str, arguments: Mapping[str, Any]) -> Any:
    """The environment that `load_environment(**arguments)` of a module returns; loaded once for the same arguments."""
    require_installed("verifiers", "verifiers", "verifiers", "env=verifiers:...")
    module = find_module(name.rpartition("/")[2].replace("-", "_"), f"verifiers environment '{name}'")
    key = (module.__name__, json.dumps(arguments, sort_keys=True, default=str))
    if key not in _loaded:
        load = getattr(module, "load_environment", None)
        if not callable(load):
            raise ConfigError(f"the module '{module.__name__}' of verifiers:{name} has no function load_environment")
        _loaded[key] = _check_supported(name, load(**arguments))
    return _loaded[key]


def _check_supported(name: str, env: Any) -> Any:
    import verifiers

    multi_turn = getattr(verifiers, "MultiTurnEnv", None)
    if multi_turn is None:
        raise ConfigError(
            f"verifiers {verifiers.__version__} has no MultiTurnEnv; install a version that has: "
            "pip install 'agent-r1[verifiers]'"
        )
    if not isinstance(env, multi_turn) or type(env).rollout is not multi_turn.rollout:
        raise ConfigError(
            f"verifiers:{name} is a {type(env).__name__}; supported are SingleTurnEnv, MultiTurnEnv, ToolEnv, "
            "StatefulToolEnv and subclasses that keep their rollout. Of an EnvGroup, name one environment"
        )
    rubrics = list(_rubrics(env.rubric))
    if any(rubric.has_group_rewards for rubric in rubrics):
        raise ConfigError(
            f"the rubric of verifiers:{name} scores groups together; only rewards of one rollout can be used"
        )
    for rubric in rubrics:
        rubric.funcs = [_reporting(function) for function in rubric.funcs]
    return env


def _rubrics(rubric: Any) -> Iterator[Any]:
    """The rubrics with reward functions: those of a group, or the rubric itself."""
    parts = getattr(rubric, "rubrics", None)
    if parts is None:
        yield rubric
        return
    for part in parts:
        yield from _rubrics(part)


def _reporting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reward function, with its exceptions noted: a rubric logs them and scores 0."""

    async def checked(value: Any) -> float:
        try:
            return float(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            _note(error)
            raise

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            value = function(*arguments, **named)
        except Exception as error:
            _note(error)
            raise
        return checked(value)

    return call


def _note(error: Exception) -> None:
    noted = _errors.get()
    if noted is not None:
        noted.append(error)


class _LiveInfo(dict[str, Any]):
    """The notes of a step, with the rollout's state beside them for the reward function. It is recorded as a plain
    mapping, and lives as long as its episode."""

    def __init__(self, notes: Mapping[str, Any], env: Any, state: Any) -> None:
        super().__init__(notes)
        self.env = env
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))


@AgentEnv.register("verifiers")
class VerifiersEnv(AgentEnv):
    """One rollout in the environment that `load_environment(**arguments)` of the module `environment` returns. The row
    says which example of which data set it is (`env_kwargs.split`, `env_kwargs.index`)."""

    def __init__(self, environment: str, arguments: Mapping[str, Any] | None = None) -> None:
        self._env = load_verifiers(environment, dict(arguments or {}))
        self._state: Any = None
        self._prompt: Any = None
        self._model_messages: list[tuple[Any, Message]] = []

    async def reset(self, task: Task) -> Observation:
        """Set up the rollout's state. Returns the example's prompt and the environment's tools."""
        example = example_of(self._env, task)
        state = await self._env.init_state(example, _no_client(), _MODEL, {})
        # Versions differ in whether the state is changed or returned.
        self._state = await self._env.setup_state(state) or state
        self._raise_error()
        self._prompt = _normal(await self._env.get_prompt_messages(self._state))
        return self._observation()

    def preview(self, task: Task) -> Observation:
        """The example's prompt and tools; what `setup_state` adds is known only after a reset."""
        info = example_of(self._env, task).get("info")
        info = json.loads(info) if isinstance(info, str) and info.strip().startswith("{") else info
        tool_defs = info.get("tool_defs") if isinstance(info, Mapping) else None
        return Observation(messages=task.prompt, tools=_schemas(tool_defs or self._env.tool_defs or ()))

    async def step(self, action: Action) -> StepResult:
        """Add the model's message to the state; the environment answers it, or the rollout is complete."""
        env, state = self._env, self._state
        if state is None:
            raise RuntimeError("step of a VerifiersEnv before its reset, or after its close")
        await env.add_model_response(state, self._prompt, _response(action))
        self._model_messages.append((state["trajectory"][-1]["completion"][-1], action.as_message()))
        info = _LiveInfo({"metrics": {"episode/turns": 1.0}}, env, state)
        if await self._is_over():
            return StepResult(observation=None, done=True, info=info)
        self._prompt = _normal(await env.get_prompt_messages(state))
        if state.get("final_env_response") is not None and await self._is_over():
            return StepResult(observation=None, done=True, info=info)
        return StepResult(observation=self._observation(), info=info)

    async def close(self) -> None:
        """Run the environment's clean-up, which also writes the completion that the rubric reads."""
        state, self._state = self._state, None
        if state is not None:
            await self._env.cleanup(state)

    async def _is_over(self) -> bool:
        over = bool(await self._env.is_completed(self._state))
        self._raise_error()
        return over

    def _raise_error(self) -> None:
        error = self._state.get("error")
        if error is not None:
            raise error

    def _observation(self) -> Observation:
        messages = tuple(self._plain(message) for message in self._prompt)
        return Observation(messages=messages, tools=_schemas(self._state["tool_defs"]))

    def _plain(self, message: Any) -> Message:
        """A message of verifiers as ours. What the model wrote keeps the form in which it was parsed, so that the next
        prompt continues from the sampled tokens."""
        for theirs, ours in self._model_messages:
            if message is theirs or message == theirs:
                return ours
        return plain_message(message)


def example_of(env: Any, task: Task) -> dict[str, Any]:
    """The example of a task, checked to be the one that the row was made from."""
    split, index = task.env_kwargs.get("split"), task.env_kwargs.get("index")
    if split not in ("train", "eval") or isinstance(index, bool) or not isinstance(index, int):
        raise DataError(
            f"task '{task.task_id}' is no row of a verifiers environment: env_kwargs needs split and index. Rows are "
            "made by env=verifiers:NAME without data.train"
        )
    data = env.get_eval_dataset() if split == "eval" else env.get_dataset()
    if not 0 <= index < len(data):
        raise DataError(f"task '{task.task_id}': the {split} data set has {len(data)} examples, not number {index}")
    example = dict(data[index])
    if prompt_of(example) != task.prompt:
        raise DataError(
            f"task '{task.task_id}' has another prompt than example {index} of the {split} data set: the environment "
            "gives other examples each time it is loaded. Fix its seed, for example env.arguments.seed=0"
        )
    return example


def prompt_of(example: Mapping[str, Any]) -> tuple[Message, ...]:
    """The prompt of an example as messages."""
    return tuple(plain_message(message) for message in _normal(example.get("prompt")))


def plain_message(message: Any) -> Message:
    """A message of verifiers as a plain one."""
    entries = message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else dict(message)
    plain: dict[str, Any] = {"role": entries["role"], "content": entries.get("content") or ""}
    if entries.get("tool_call_id"):
        plain["tool_call_id"] = entries["tool_call_id"]
    if entries.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in entries["tool_calls"]]
    return plain


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        arguments = json.loads(call["arguments"])
    except ValueError:
        arguments = {}
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _normal(messages: Any) -> Any:
    from verifiers.utils.message_utils import normalize_messages

    return normalize_messages(messages, field_name="prompt")


def _schemas(tools: Any) -> tuple[ToolSchema, ...]:
    """Tool definitions of verifiers in the form that chat templates read."""
    schemas: list[ToolSchema] = []
    for tool in tools:
        entries = tool.model_dump() if hasattr(tool, "model_dump") else dict(tool)
        function = {key: entries[key] for key in ("name", "description", "parameters")}
        schemas.append({"type": "function", "function": function})
    return tuple(schemas)


def _response(action: Action) -> Any:
    """The model's action as a response of verifiers. A malformed call is text, as it is to a server's parser."""
    from verifiers.types import Response, ResponseMessage, ToolCall

    calls = () if action.parse_error is not None else action.tool_calls
    message = ResponseMessage(
        content=action.content if calls else action.text,
        tool_calls=[
            ToolCall(id=call.call_id or f"call_{number}", name=call.name, arguments=json.dumps(dict(call.arguments)))
            for number, call in enumerate(calls)
        ]
        or None,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
        tokens=None,
    )
    return Response(id="", created=int(time.time()), model=_MODEL, message=message)


@functools.cache
def _no_client() -> Any:
    """A client that refuses: the policy is called by our engine."""
    from verifiers.clients import Client

    async def refuse(*arguments: Any, **named: Any) -> Any:
        raise ConfigError("this verifiers environment calls the policy itself, which Agent-R1 does not support")

    kind = type("NoClient", (Client,), {"get_response": refuse, "setup_client": lambda self, config: None})
    kind.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return kind(None)


@reward_functions.register("verifiers")
async def verifiers_score(task: Task, episode: Episode) -> RewardValue:
    """The reward of the environment's rubric. A reward function that raises fails the rollout; it is not a 0."""
    info = episode.steps[-1].info if episode.steps else {}
    if not isinstance(info, _LiveInfo):
        raise DataError(
            f"the reward 'verifiers' cannot score task '{task.task_id}': it needs the state of an episode of "
            "env=verifiers:NAME, in this process. Set reward.timeout=null, or choose another reward.function"
        )
    env, state, noted = info.env, info.state, list[Exception]()
    token = _errors.set(noted)
    try:
        await env.rubric.score_rollout(state)
    finally:
        _errors.reset(token)
        await env.rubric.cleanup(state)
    if noted:
        raise noted[0]
    reward = float(state["reward"])
    numbers = {str(name): float(value) for name, value in (state["metrics"] or {}).items()}
    passed = reward >= float(getattr(env, "pass_threshold", 1.0))
    return {**numbers, "score": reward, "success": float(passed), "answer": episode.answer}
