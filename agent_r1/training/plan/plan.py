"""`RunPlan`: configuration, names, data and reward of a run, checked together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_r1.algorithms import Algorithm
from agent_r1.config import Config
from agent_r1.envs import AgentEnv, make_env
from agent_r1.errors import ConfigError, raising, report_problems
from agent_r1.flows import AgentEnvLoop, AgentFlowBase
from agent_r1.rewards import RewardFunction, terms_of
from agent_r1.rollout import check_group_plan, configured_members
from agent_r1.training.plan.configuration import check_config
from agent_r1.training.plan.problems import TITLE, Problems
from agent_r1.training.plan.rows import check_agent_section, check_ground_truths, load_rows
from agent_r1.training.plan.tools import check_tools, find_tools
from agent_r1.types import Observation, Task


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


def make_plan(config: Config) -> RunPlan:
    """Check configuration, names and data. Raises one error that lists every problem.

    The data files must be there: `prepare_plan` first makes those that are missing.
    """
    algorithm, reward = check_config(config)
    problems = Problems()
    problems.run(find_tools, config)
    report_problems(problems.found, ConfigError, TITLE)
    train_tasks, eval_tasks = load_rows(config)
    check_group_plan(config, (train_tasks or eval_tasks)[0], needs_greedy=algorithm.needs_greedy)
    check_agent_section(config, [*train_tasks, *eval_tasks])
    check_tools(config, [*train_tasks, *eval_tasks])
    for function in terms_of(reward):
        check_ground_truths(_name_of(function, config), function, [*train_tasks, *eval_tasks])
    return RunPlan(
        config=replace(config, algorithm=algorithm.settings),
        algorithm=algorithm,
        reward=reward,
        train_tasks=train_tasks,
        eval_tasks=eval_tasks,
    )


def check_learns(plan: RunPlan) -> None:
    """Raise `ConfigError` when no rollout could get credit: a task has one, and the algorithm compares several."""
    config = plan.config
    # In this order: asking the algorithm needs torch.
    if not plan.train_tasks or len(configured_members(config, plan.train_tasks[0])) > 1:
        return
    if not plan.algorithm.credits_single_rollouts:
        raise ConfigError(
            f"rollout.group_size={config.rollout.group_size}: algorithm.estimator={config.algorithm.estimator.name} "
            "compares the rollouts of a task with one another, so nothing would be learned. Raise rollout.group_size, "
            "or use an algorithm that needs no group, such as steppo or reinforce_pp"
        )


def first_observation(plan: RunPlan, task: Task) -> Observation:
    """The first observation of a task, without starting anything."""
    flow = AgentFlowBase.registry.get(task.agent_name)
    if not issubclass(flow, AgentEnvLoop):
        return Observation(messages=task.prompt)
    with raising(ConfigError, f"the environment of task '{task.task_id}' cannot be made"):
        return plan.make_env(task).preview(task)


def _name_of(function: RewardFunction, config: Config) -> str:
    return getattr(function, "__name__", "") if config.reward.functions else config.reward.function
