"""The arguments that `train`, `evaluate`, `sft` and `check` share, and the configuration that they describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.config import Config, Overrides, load_config, override_texts, quoted
from agent_r1.data import Rows, row_files
from agent_r1.envs import AgentEnv, run_name_of
from agent_r1.errors import ConfigError, refuse_run_in_import
from agent_r1.registry import Registry
from agent_r1.rewards import RewardFunction, reward_functions
from agent_r1.tools import BaseTool, FunctionTool, check_form

Recipe = str | Path | Config | None
"""A recipe folder, a configuration (`load_config`), or None for the defaults."""
ToolLike = str | Mapping[str, Any] | BaseTool | type[BaseTool] | Callable[..., Any]
"""A tool, a tool class (instantiated for every episode), a typed function, a tool's name, or its entry in `env.tools`:
`{"name": "search", "index": "wiki"}`."""
RewardTerm = RewardFunction | str
Reward = (
    RewardTerm
    | Sequence[RewardTerm | tuple[RewardTerm, float]]
    | Mapping[str, RewardFunction | tuple[RewardFunction, float]]
)
"""A reward function or its name; or several: `[correct, (format_ok, 0.2)]`, `{"correct": f, "format": (g, 0.2)}`."""


def resolve(
    config_or_recipe: Recipe = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    tools: Sequence[ToolLike] | None = None,
    env: type[AgentEnv] | str | None = None,
    reward: Reward | None = None,
    overrides: Overrides = (),
) -> Config:
    """The configuration that the arguments of `train` describe. Objects are registered, and stand in it by name."""
    refuse_run_in_import()
    texts = override_texts(overrides)
    if not isinstance(model, str | Path | None):
        raise ConfigError(f"model must be a folder, an id or a GGUF file, found {model!r:.80}")
    if model is not None:
        texts.append(f"model.path={quoted(str(model))}")
    if isinstance(tools, str):
        raise ConfigError(f"{tools=} is one text; give a list, such as [{tools!r}]")
    if not isinstance(tools, Sequence | None):
        raise ConfigError(f"tools must be a list of tools, functions or names, found {tools!r:.80}")
    if tools is not None:
        texts += override_texts({"env.tools": [_tool_entry(tool) for tool in tools]})
    if not isinstance(env, type | str | None):
        raise ConfigError(f"env must be an environment class or a name such as 'gym:FrozenLake-v1', found {env!r:.80}")
    if isinstance(env, type) and not issubclass(env, AgentEnv):
        raise ConfigError(
            f"env is the class {env.__name__}, which is no subclass of AgentEnv. A Gymnasium environment is given by "
            "its name: env='gym:my_envs:Maze', for the class Maze in my_envs.py"
        )
    if env is not None:
        texts.append(f"env.name={quoted(env if isinstance(env, str) else _register(AgentEnv.registry, env))}")
    if reward is not None:
        texts += override_texts(reward_settings(reward))
    config = load_config(config_or_recipe, texts)
    if config_or_recipe is None and not any(text.startswith("run.name=") for text in texts):
        config.run.name = run_name_of(config.env.get("name")) or config.run.name
    for key, rows in (("train", data), ("eval", eval_data)):
        if rows is not None:
            setattr(config.data, key, row_files(rows, rows_folder(config), key))
            config.data.prepare = None  # a recipe prepares its own files, not those of the caller
    return config


def folder_of(config: Config) -> Path | None:
    """The recipe folder of a configuration, if it comes from one."""
    return None if config.recipe is None else Path(config.recipe)


def rows_folder(config: Config) -> Path:
    """Where rows given as objects are written. No run has a name that begins with a dot."""
    return Path(config.run.folder) / ".data"


def _tool_entry(tool: ToolLike) -> str | Mapping[str, Any]:
    if isinstance(tool, str | Mapping):
        return tool
    is_class = isinstance(tool, type) and issubclass(tool, BaseTool)
    registered: Any = tool if is_class or isinstance(tool, BaseTool) else FunctionTool(tool)
    check_form(registered)
    BaseTool.registry.add(registered.name, registered, replaceable=True)
    return str(registered.name)


def reward_settings(reward: Reward) -> dict[str, object]:
    """The reward section of a configuration."""
    if isinstance(reward, str) or callable(reward):
        return {"reward.function": _reward_name(reward), "reward.functions": []}
    if not isinstance(reward, Mapping | Sequence):
        raise ConfigError(f"reward must be a function, its name, a list or a mapping of them, found {reward!r:.80}")
    terms = reward.items() if isinstance(reward, Mapping) else [("", term) for term in reward]
    functions: list[dict[str, object]] = []
    for name, term in terms:
        function, *weight = term if isinstance(term, tuple) else (term, 1.0)
        if len(weight) != 1 or not isinstance(weight[0], int | float):
            raise ConfigError(f"a reward with a weight is a pair such as (format_ok, 0.2), found {term!r:.80}")
        if not isinstance(function, str) and not callable(function):
            raise ConfigError(
                f"reward holds {function!r:.80}, which is neither a function nor the name of one. Several rewards are "
                "a list, with a weight in a pair: reward=[correct, (format_ok, 0.2)]"
            )
        functions.append({"name": _reward_name(function, name), "weight": float(weight[0])})
    if not functions:
        raise ConfigError("reward is empty; give a reward function, a list or a mapping of them")
    return {"reward.functions": functions}


def _reward_name(reward: RewardTerm, name: str = "") -> str:
    return reward if isinstance(reward, str) else _register(reward_functions, reward, name)


def _register(registry: Registry[Any], entry: Any, name: str = "") -> str:
    if name and not name.isidentifier():
        raise ConfigError(
            f"a {registry.kind} is named {name!r:.80}; a name is letters, digits and _, such as format_ok"
        )
    name = name or str(getattr(entry, "__name__", ""))
    if not name.isidentifier():
        raise ConfigError(
            f"a {registry.kind} given as an object needs a name, found {entry!r:.80}. Use def or class, or name the "
            "reward: reward={'correct': ...}"
        )
    registry.add(name, entry, replaceable=True)
    return name
