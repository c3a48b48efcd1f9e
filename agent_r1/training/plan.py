"""The plan of a run: configuration, names, data and prompt lengths, checked before a model is loaded.

Nothing here writes files or loads weights. All problems are reported together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_r1.algorithms import Algorithm, bind_algorithm
from agent_r1.chat import tool_formats
from agent_r1.config import Config, value_problems
from agent_r1.data import load_tasks
from agent_r1.engines import bind_engine, takes_messages
from agent_r1.envs import (
    DEFAULT_ENV,
    EXAMPLES,
    AgentEnv,
    bind_wrapper,
    check_wrappers,
    make_env,
    make_policy,
    row_env_name,
)
from agent_r1.errors import AgentR1Error, ConfigError, DataError, UnknownNameError, did_you_mean, report_problems
from agent_r1.flows import AgentEnvLoop, AgentFlowBase
from agent_r1.gateway import GatewayFlow, check_agent
from agent_r1.registry import bind_part, find_module, signature_of
from agent_r1.rewards import RewardFunction, find_reward, row_problem, terms_of
from agent_r1.rollout import check_group_plan
from agent_r1.rollout.workers import check_workers
from agent_r1.runs import check_trackers, folder_problems
from agent_r1.tools import BaseTool, ToolPolicy, ToolRunner, check_process_tool, tools_of_row
from agent_r1.tools.builtin import declare_servers, make_server
from agent_r1.tools.workers import FunctionRef
from agent_r1.types import Observation, Task

_TITLE = "the configuration cannot be used:"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """A checked run: everything but the models."""

    config: Config
    """The configuration, with every argument of the algorithm's parts."""
    algorithm: Algorithm
    """Estimator, loss and their settings."""
    reward: RewardFunction
    """The outcome reward."""
    train_tasks: list[Task]
    """Rows to train on."""
    eval_tasks: list[Task]
    """Held-out rows: those of `eval.split`."""

    def make_env(self, task: Task) -> AgentEnv:
        """A fresh environment for a task."""
        return make_env(task, self.config.env)


class _Problems:
    """Collects problems so that all can be reported at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Inside, an error is recorded instead of raised."""
        try:
            yield
        except AgentR1Error as error:
            self.found.append(str(error))

    def run(self, check: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a check, or None if it raised."""
        with self.collect():
            return check(*arguments)
        return None


def tool_policies(config: Config) -> dict[str, Any]:
    """The configuration's changes to the policies of tools, by tool name."""
    return {name: changes for name, changes in config.tools.items() if name != "mcp"}


def check_config(config: Config) -> tuple[Algorithm, RewardFunction]:
    """Check values and names, before any data is read. Raises one `ConfigError` that lists every problem."""
    problems = _Problems()
    wrong_values = value_problems(config)
    for module in config.imports:
        if isinstance(module, str):  # others are among the wrong values
            problems.run(find_module, module, f"module '{module}' of imports")
    problems.found.extend(wrong_values)
    if all(isinstance(name, str) for name in (config.run.name, config.run.folder, config.sft.folder or "")):
        problems.found += folder_problems(config)
    algorithm = problems.run(bind_algorithm, config.algorithm)
    if algorithm is not None:
        problems.run(_check_staleness, config, algorithm)
    weighted = [(part.name, part.weight) for part in config.reward.functions]
    reward = problems.run(find_reward, config.reward.function, weighted)
    problems.run(tool_formats.get, config.model.tool_format)
    problems.run(bind_engine, config)
    problems.run(check_workers, config)
    if not wrong_values:
        problems.run(check_trackers, config)
    # With wrong values, paths may be no strings.
    problems.run(_check_env, config, not wrong_values and not lacks_data(config))
    if config.reward.timeout is not None and reward is not None:
        for function in terms_of(reward):
            problems.run(FunctionRef.of, function)
    if config.sft.folder is not None and not config.sft.data:
        problems.found.append("sft.folder is set and sft.data is empty; give demonstrations, or set sft.folder=null")
    if config.tracking.record_credit and config.tracking.record_every == 0:
        problems.found.append(
            "tracking.record_credit=true records credit with the trajectories of a step, and tracking.record_every=0 "
            "records none; set record_every=1, or record_credit=false"
        )
    if config.model.lora.rank > 0 and not wrong_values:
        from agent_r1.models import check_form, require_peft

        problems.run(check_form, config.model.lora)
        problems.run(require_peft, config.model.lora)
    report_problems(problems.found, ConfigError, _TITLE)
    return algorithm, reward


def check_trainable(config: Config) -> None:
    """Raise `ConfigError` for an engine that nothing can be trained with, and for rows that training must not see."""
    if takes_messages(config):
        raise ConfigError(
            f"engine={config.engine.name} takes messages and tells no token ids, so nothing can be trained with it: "
            f"evaluate with it (agent-r1 eval RECIPE engine={config.engine.name} ...), or train with engine=local"
        )
    if config.eval.split == "test" and config.data.test and not config.data.train:
        raise ConfigError("this recipe has no rows to train on: evaluate with it, agent-r1 eval RECIPE --model MODEL")
    if config.eval.split != "validation":
        raise ConfigError(
            f"eval.split={config.eval.split}: training is evaluated on validation rows alone, so that nothing is "
            f"chosen on others; after it, run: agent-r1 eval RUN --split {config.eval.split}"
        )


def make_plan(config: Config) -> RunPlan:
    """Check configuration, names and data. Raises one error that lists every problem.

    The data files must be there: `prepare_plan` first makes those that are missing.
    """
    algorithm, reward = check_config(config)
    problems = _Problems()
    problems.run(_find_tools, config)
    report_problems(problems.found, ConfigError, _TITLE)
    train_tasks, eval_tasks = _load(config)
    check_group_plan(config, (train_tasks or eval_tasks)[0], needs_greedy=algorithm.needs_greedy)
    _check_agent(config, [*train_tasks, *eval_tasks])
    _check_tools(config, [*train_tasks, *eval_tasks])
    for function in terms_of(reward):
        _check_ground_truths(_name_of(function, config), function, [*train_tasks, *eval_tasks])
    return RunPlan(
        config=replace(config, algorithm=algorithm.settings),
        algorithm=algorithm,
        reward=reward,
        train_tasks=train_tasks,
        eval_tasks=eval_tasks,
    )


def first_observation(plan: RunPlan, task: Task) -> Observation:
    """The first observation of a task, without starting anything."""
    flow = AgentFlowBase.registry.get(task.agent_name)
    return plan.make_env(task).preview(task) if issubclass(flow, AgentEnvLoop) else Observation(messages=task.prompt)


def _check_staleness(config: Config, algorithm: Algorithm) -> None:
    if config.rollout.max_staleness > 0 and not algorithm.accounts_for_stale_tokens:
        raise ConfigError(
            f"rollout.max_staleness={config.rollout.max_staleness} trains on tokens that older policies sampled, and "
            "nothing in this algorithm accounts for it: its loss has no ratio, or one that does not start from the "
            "log-probs they were sampled with. Set algorithm.off_policy.name=token, or max_staleness=0"
        )


def _check_env(config: Config, are_tools_ready: bool) -> None:
    arguments = dict(config.env)
    for limit in check_wrappers(arguments.pop("limits", ())):
        bind_wrapper(limit)
    try:
        bind_part(AgentEnv.registry, "env", arguments)
    except UnknownNameError as error:
        ready = ", ".join(EXAMPLES.values())
        raise UnknownNameError(f"{error}. Environments that you may already have: {ready}") from error
    if "context" in arguments:
        make_policy(arguments["context"])
    declare_servers({name: make_server(name, given) for name, given in _mcp_section(config).items()})
    listed = _listed_tools(config)
    if are_tools_ready:
        _find_tools(config)
    for entry in listed:
        # Arguments of a tool, such as an index, may exist only after the preparation.
        if isinstance(entry, Mapping):
            BaseTool.registry.get(str(entry.get("name")))


def _mcp_section(config: Config) -> Mapping[str, Any]:
    section = config.tools.get("mcp", {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"tools.mcp={section!r:.80} must name servers: tools.mcp.shop.url=http://localhost:8000/mcp")
    return section


def _listed_tools(config: Config, keys: Sequence[str] = ("tools", "row_tools")) -> list[Any]:
    """The entries of `env.tools` and `env.row_tools`; anything else than a list of entries is refused."""
    listed: list[Any] = []
    for key in keys:
        entries = config.env.get(key, [])
        if not isinstance(entries, list | tuple) or not all(
            isinstance(entry, str | BaseTool) or (isinstance(entry, Mapping) and isinstance(entry.get("name"), str))
            for entry in entries
        ):
            raise ConfigError(
                f"env.{key}={entries!r:.80} must be a list of names and of entries like {{name: search, index: wiki}}"
            )
        listed.extend(entries)
    return listed


def _find_tools(config: Config) -> None:
    for entry in _listed_tools(config, ["tools"]):
        BaseTool.find(entry)


def tools_in_use(config: Config, tasks: Sequence[Task]) -> list[BaseTool]:
    """The tools of the configuration, and those that rows name."""
    tools = [tool for entry in _listed_tools(config, ["tools"]) for tool in BaseTool.find(entry)]
    for task in distinct_setups(tasks):
        tools.extend(_tools_of(config, task))
    return tools


def _tools_of(config: Config, task: Task) -> list[BaseTool]:
    """The tools that a row names itself; in an environment of its own it has none of the configured ones."""
    if "tools" not in task.env_kwargs:
        return []
    listed = _listed_tools(config) if row_env_name(task) in (None, config.env.get("name", DEFAULT_ENV)) else []
    return tools_of_row(task.task_id, task.env_kwargs["tools"], listed)


def _check_tools(config: Config, tasks: Sequence[Task]) -> None:
    """Refuse policies of unknown tools, unknown keys of policies, and process tools that a process could not import."""
    used = tools_in_use(config, tasks)
    known = {*BaseTool.registry.names(), *(tool.name for tool in used)}
    problems = _Problems()
    for name, changes in tool_policies(config).items():
        if name not in known:
            problems.found.append(f"unknown tool in 'tools.{name}'. {did_you_mean(name, known)}")
        elif not isinstance(changes, Mapping):
            problems.found.append(f"tools.{name}={changes} is not a policy; write for example tools.{name}.timeout=5")
        else:
            problems.run(ToolPolicy().with_overrides, name, changes)
    report_problems(problems.found, ConfigError, _TITLE)
    runner = ToolRunner(tool_policies(config))
    for tool in {id(tool): tool for tool in used}.values():
        if runner.policy_of(tool).process:
            problems.run(check_process_tool, tool)
    report_problems(problems.found, ConfigError, "tools that should run in worker processes cannot:")


def lacks_data(config: Config) -> bool:
    """Whether data files are missing that the recipe's preparation makes."""
    demonstrations = config.sft.data if config.sft.folder is not None else []
    paths = [Path(path) for path in (*config.data.train, *config.data.files(config.eval.split), *demonstrations)]
    return config.data.prepare is not None and any(not path.is_file() for path in paths)


def _load(config: Config) -> tuple[list[Task], list[Task]]:
    """Both sets of rows, with the names they use checked."""
    files = config.data.files(config.eval.split)
    if not config.data.train and not (config.eval.split == "test" and files):
        raise ConfigError("data.train is empty; give one or more .parquet or .jsonl files")
    train = load_tasks(config.data.train, default_agent=config.data.agent_name) if config.data.train else []
    if config.eval.split == "test" and not files:
        raise ConfigError("eval.split=test needs test rows, and data.test is empty: name their files there")
    held_out = load_tasks(files, default_agent=config.data.agent_name) if files else []
    problems = _Problems()
    for task in distinct_setups([*train, *held_out]):
        problems.run(AgentFlowBase.registry.get, task.agent_name)
        problems.run(_check_env_of_row, config, task)
        problems.run(_tools_of, config, task)
    report_problems(
        list(dict.fromkeys(problems.found)),
        DataError,
        "the data names things that do not exist or that rows may not name:",
    )
    return train, held_out


def _check_env_of_row(config: Config, task: Task) -> None:
    """Another environment than the configured one must be registered, and work without arguments."""
    own = row_env_name(task)
    if own is None or own == config.env.get("name", DEFAULT_ENV):
        return
    try:
        signature_of(AgentEnv.registry.registered(own)).bind()
    except AgentR1Error as error:
        raise DataError(f"task '{task.task_id}', env_kwargs.env: {error}") from error
    except TypeError as error:
        raise DataError(
            f"task '{task.task_id}': env_kwargs.env='{own}' needs arguments ({error}), which rows cannot give; set "
            f"env.name={own} and its arguments in the configuration"
        ) from None


def _check_agent(config: Config, tasks: Sequence[Task]) -> None:
    """Refuse a section `agent` that rows need and that cannot work, and one that no row uses."""
    flows = [AgentFlowBase.registry.get(task.agent_name) for task in distinct_setups(tasks)]
    if any(issubclass(flow, GatewayFlow) for flow in flows):
        if takes_messages(config):
            raise ConfigError(
                f"rows have the flow 'gateway', which records token ids, and engine={config.engine.name} tells none; "
                "let the agent call that server itself"
            )
        check_agent(config.agent)
    elif config.agent.function or config.agent.command or config.agent.remote:
        raise ConfigError("the section `agent` is set and no row has the flow 'gateway'; set data.agent_name=gateway")


def _check_ground_truths(name: str, reward: RewardFunction, tasks: Sequence[Task]) -> None:
    """Refuse rows that the reward function declares it cannot score: no answer to them would ever be right."""
    problems = [(task.task_id, problem) for task in tasks if (problem := row_problem(reward, task)) is not None]
    if problems:
        shown = "\n".join(f"  - row '{task_id}': {problem}" for task_id, problem in problems[:10])
        more = f"\n  - ... and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise DataError(
            f"the reward function '{name}' cannot score {len(problems)} of {len(tasks)} rows; give each a "
            f"reward_model.ground_truth, leave them out, or choose another reward.function:\n{shown}{more}"
        )


def _name_of(function: RewardFunction, config: Config) -> str:
    return getattr(function, "__name__", "") if config.reward.functions else config.reward.function


def distinct_setups(tasks: Sequence[Task]) -> list[Task]:
    """One task per combination of names, so that a million rows are not a million look-ups."""
    unique = {(t.agent_name, str(t.env_kwargs.get("env")), str(t.env_kwargs.get("tools"))): t for t in tasks}
    return list(unique.values())
