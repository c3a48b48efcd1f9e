"""Values and names of a configuration, checked before any data is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from agent_r1.algorithms import Algorithm, bind_algorithm
from agent_r1.chat import tool_formats
from agent_r1.config import Config, value_problems
from agent_r1.engines import bind_engine, takes_messages
from agent_r1.envs import EXAMPLES, AgentEnv, bind_wrapper, check_wrappers, make_policy
from agent_r1.errors import ConfigError, UnknownNameError, report_problems
from agent_r1.registry import bind_part, find_module, signature_of
from agent_r1.rewards import RewardFunction, find_reward, terms_of
from agent_r1.rollout.workers import check_workers
from agent_r1.runs import check_trackers, folder_problems
from agent_r1.tools import BaseTool
from agent_r1.tools.builtin import declare_servers, make_server
from agent_r1.tools.workers import FunctionRef
from agent_r1.training.plan.problems import TITLE, Problems
from agent_r1.training.plan.tools import find_tools, listed_tools, mcp_section

_UNKNOWN_OBJECT = re.compile(r"unknown (reward function|tool|environment) '[^':]+'\.")


def _advice_on_objects(config: Config) -> str:
    several = """'reward.functions=[{name: "my_shop:correct"}]'"""
    reward = several if config.reward.functions else "reward.function=my_shop:correct"
    return (
        "what a program passed to agent_r1.train as an object is known by its name in that program alone. A command "
        "names it as module:attribute, where the module is a file of the current folder: agent-r1 chat RUN "
        f"env.tools=[my_shop:price] {reward}. To evaluate the run's model, call agent_r1.evaluate in that program"
    )


def check_config(config: Config) -> tuple[Algorithm, RewardFunction]:
    """Check values and names, before any data is read. Raises one `ConfigError` that lists every problem."""
    problems = Problems()
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
    problems.run(_check_env, config, not wrong_values and not missing_data(config))
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
    if not wrong_values and config.tracking.profile_step > config.trainer.steps:
        problems.found.append(
            f"tracking.profile_step={config.tracking.profile_step}: the last step is trainer.steps="
            f"{config.trainer.steps}, so no step would be profiled"
        )
    if config.model.lora.rank > 0 and not wrong_values:
        from agent_r1.models import check_form, require_peft

        problems.run(check_form, config.model.lora)
        problems.run(require_peft, config.model.lora)
    if config.recipe is None and any(map(_UNKNOWN_OBJECT.match, problems.found)):
        problems.found.append(_advice_on_objects(config))
    report_problems(problems.found, ConfigError, TITLE)
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


def missing_data(config: Config) -> list[Path]:
    """The data files that are not there, which the recipe's preparation makes."""
    demonstrations = config.sft.data if config.sft.folder is not None else []
    paths = [Path(path) for path in (*config.data.train, *config.data.files(config.eval.split), *demonstrations)]
    return [path for path in paths if not path.is_file()] if config.data.prepare is not None else []


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
        _require_arguments(arguments)
    except UnknownNameError as error:
        ready = ", ".join(EXAMPLES.values())
        raise UnknownNameError(
            f"{str(error).removesuffix('.')}. Environments that you may already have: {ready}"
        ) from error
    if "context" in arguments:
        make_policy(arguments["context"])
    declare_servers({name: make_server(name, settings) for name, settings in mcp_section(config).items()})
    tools = listed_tools(config)
    if are_tools_ready:
        find_tools(config)
    for entry in tools:
        # Arguments of a tool, such as an index, may exist only after the preparation.
        if isinstance(entry, Mapping):
            BaseTool.registry.get(str(entry.get("name")))


def _require_arguments(section: Mapping[str, object]) -> None:
    """Refuse an environment whose arguments have no default and are not in the section."""
    name = str(section["name"])
    parameters = signature_of(AgentEnv.registry.get(name)).parameters.values()
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in section
    ]
    if missing:
        keys = ", ".join(f"env.{argument}" for argument in missing)
        raise ConfigError(f"environment '{name}' needs {keys}, and the configuration does not give it")
