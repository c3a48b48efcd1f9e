"""The rows of a run: loaded, and checked for the names that they use and the answers that they need."""

from __future__ import annotations

from collections.abc import Sequence

from agent_r1.config import Config
from agent_r1.data import load_tasks
from agent_r1.envs import DEFAULT_ENV, AgentEnv, row_env_name
from agent_r1.errors import AgentR1Error, ConfigError, DataError, report_problems
from agent_r1.flows import AgentFlowBase
from agent_r1.gateway import GatewayFlow, check_agent
from agent_r1.registry import signature_of
from agent_r1.rewards import RewardFunction, row_problem
from agent_r1.training.plan.problems import Problems
from agent_r1.training.plan.tools import distinct_setups, tools_of_task
from agent_r1.types import Task


def load_rows(config: Config) -> tuple[list[Task], list[Task]]:
    """Both sets of rows, with the names they use checked."""
    files = config.data.files(config.eval.split)
    if not config.data.train and not (config.eval.split == "test" and files):
        raise ConfigError("data.train is empty; give one or more .parquet or .jsonl files")
    train = load_tasks(config.data.train, default_agent=config.data.agent_name) if config.data.train else []
    if config.eval.split == "test" and not files:
        raise ConfigError("eval.split=test needs test rows, and data.test is empty: name their files there")
    held_out = load_tasks(files, default_agent=config.data.agent_name) if files else []
    problems = Problems()
    for task in distinct_setups([*train, *held_out]):
        problems.run(AgentFlowBase.registry.get, task.agent_name)
        problems.run(_check_env_of_row, config, task)
        problems.run(tools_of_task, config, task)
    report_problems(
        list(dict.fromkeys(problems.found)),
        DataError,
        "the data names things that do not exist or that rows may not name:",
    )
    return train, held_out


def _check_env_of_row(config: Config, task: Task) -> None:
    """Another environment than the configured one must be registered, and work without arguments."""
    name = row_env_name(task)
    if name is None or name == config.env.get("name", DEFAULT_ENV):
        return
    try:
        signature_of(AgentEnv.registry.registered(name)).bind()
    except AgentR1Error as error:
        raise DataError(f"task '{task.task_id}', env_kwargs.env: {error}") from error
    except TypeError as error:
        raise DataError(
            f"task '{task.task_id}': env_kwargs.env='{name}' needs arguments ({error}), which rows cannot give; set "
            f"env.name={name} and its arguments in the configuration"
        ) from None


def check_agent_section(config: Config, tasks: Sequence[Task]) -> None:
    """Refuse a section `agent` that rows need and that cannot work, and one that no row uses."""
    flows = [AgentFlowBase.registry.get(task.agent_name) for task in distinct_setups(tasks)]
    if any(issubclass(flow, GatewayFlow) for flow in flows):
        check_agent(config.agent)
    elif config.agent.function or config.agent.command or config.agent.remote:
        raise ConfigError("the section `agent` is set and no row has the flow 'gateway'; set data.agent_name=gateway")


def check_ground_truths(name: str, reward: RewardFunction, tasks: Sequence[Task]) -> None:
    """Refuse rows that the reward function declares it cannot score: no answer to them would ever be right."""
    problems = [(task.task_id, problem) for task in tasks if (problem := row_problem(reward, task)) is not None]
    if problems:
        first_ones = "\n".join(f"  - row '{task_id}': {problem}" for task_id, problem in problems[:10])
        more = f"\n  - ... and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise DataError(
            f"the reward function '{name}' cannot score {len(problems)} of {len(tasks)} rows; give each a "
            f"reward_model.ground_truth, leave them out, or choose another reward.function:\n{first_ones}{more}"
        )
