"""Agent-R1 from Python: `train`, `evaluate`, `sft` and `check`, as on the command line.

    agent_r1.train("recipes/quickstart", overrides={"algorithm": "ppo", "trainer.steps": 20})
    agent_r1.train(model="Qwen/Qwen3-0.6B", data=rows, tools=[stock], reward=score, overrides=["trainer.steps=20"])
    agent_r1.train(model="Qwen/Qwen3-0.6B", env="gym:FrozenLake-v1")

All of them work in a notebook too, where an event loop is running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_r1.config import Config, Overrides, load_config, override_texts, quoted
from agent_r1.console import RunConsole
from agent_r1.data import Rows, row_files
from agent_r1.engines import takes_messages
from agent_r1.envs import AgentEnv, run_name_of
from agent_r1.errors import ConfigError, UnknownNameError, did_you_mean, no_exit
from agent_r1.event_loop import callable_in_event_loop
from agent_r1.registry import Registry, recipe_folder
from agent_r1.rewards import RewardFunction, reward_functions
from agent_r1.runs import Gain, RunFolder, paired_gain, read_evaluation
from agent_r1.tools import BaseTool, FunctionTool

if TYPE_CHECKING:
    from agent_r1.checks import Report
    from agent_r1.evaluation import Evaluation
    from agent_r1.training import Summary

Recipe = str | Path | Config | None
"""A recipe folder, a configuration (`load_config`), or None for the defaults."""
ToolLike = str | Mapping[str, Any] | BaseTool | Callable[..., Any]
"""A tool, a typed function, a tool's name, or its entry in `env.tools`: `{"name": "search", "index": "wiki"}`."""
RewardTerm = RewardFunction | str
Reward = (
    RewardTerm
    | Sequence[RewardTerm | tuple[RewardTerm, float]]
    | Mapping[str, RewardFunction | tuple[RewardFunction, float]]
)
"""A reward function or its name; or several: `[correct, (format_ok, 0.2)]`, `{"correct": f, "format": (g, 0.2)}`."""

SPLITS = ("validation", "test", "train")
"""Where the tasks of an evaluation come from."""

BASELINES = {"react": ("model.tool_format=react",)}
"""Ways to run an untrained model, as overrides."""


@callable_in_event_loop
def train(
    config_or_recipe: Recipe = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    tools: Sequence[ToolLike] | None = None,
    env: type[AgentEnv] | str | None = None,
    reward: Reward | None = None,
    overrides: Overrides = (),
    quiet: bool = False,
) -> Summary:
    """Train an agent. Running the same call again resumes an unfinished run.

    Args:
        config_or_recipe: A recipe folder such as `recipes/quickstart`, a `Config`, or None for the defaults.
        model: A Hugging Face folder or id, or a GGUF file.
        data: Rows to train on: a file, a list of files, or rows as dicts, `Task`s or a `datasets.Dataset`. A row has
            the columns of a data file, or just `prompt` (or `question`) and `answer`.
        eval_data: Held-out rows, in the same forms.
        tools: Tools, typed functions or names of tools.
        env: An environment class, its name, or one that you already have: `gym:FrozenLake-v1` brings its own tasks.
        reward: A reward function, or several with weights: `[correct, (format_ok, 0.2)]` or
            `{"correct": f, "format": (g, 0.2)}`. Each is logged as `reward/<name>`.
        overrides: Changes of the configuration, `["trainer.steps=20"]` or `{"trainer.steps": 20}`.
        quiet: Print nothing; the logger `agent_r1` still receives every line.
    """
    from agent_r1.training import train_run

    config = resolve(
        config_or_recipe,
        model=model,
        data=data,
        eval_data=eval_data,
        tools=tools,
        env=env,
        reward=reward,
        overrides=overrides,
    )
    with no_exit("the code of the recipe"), recipe_folder(folder_of(config)):
        return train_run(config, RunConsole(quiet=quiet))


@callable_in_event_loop
def evaluate(
    config_or_recipe: Recipe = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    tools: Sequence[ToolLike] | None = None,
    env: type[AgentEnv] | str | None = None,
    reward: Reward | None = None,
    overrides: Overrides = (),
    baseline: str | None = None,
    quiet: bool = False,
) -> Evaluation:
    """Evaluate a model on the held-out rows (the training rows when there are none).

    Args:
        config_or_recipe: As for `train`.
        model: The model to evaluate, as it is; without one, the model that the recipe's training starts from. With
            `engine=openai`, its name at the server; without one, the first that the server lists.
        data: As for `train`.
        eval_data: As for `train`.
        tools: As for `train`.
        env: As for `train`.
        reward: As for `train`.
        overrides: As for `train`, for example `["eval.samples=4"]`.
        baseline: `react`: the untrained model, without the recipe's warm start, in the ReAct text format.
        quiet: Print nothing.
    """
    from agent_r1.training import eval_run

    if baseline is not None and baseline not in BASELINES:
        raise UnknownNameError(f"unknown baseline '{baseline}'. {did_you_mean(baseline, BASELINES)}")
    texts = override_texts(overrides)
    keys = {text.partition("=")[0] for text in texts}
    is_named = model is not None or ("model.path" in keys and "sft.folder" not in keys)
    as_it_is = ["sft.folder=null"] if baseline is not None or is_named else []
    config = resolve(
        config_or_recipe,
        model=model,
        data=data,
        eval_data=eval_data,
        tools=tools,
        env=env,
        reward=reward,
        overrides=[*texts, *BASELINES.get(baseline or "", ()), *as_it_is],
    )
    if model is not None and takes_messages(config):
        config.engine.servers.model = str(model)
    with no_exit("the code of the recipe"), recipe_folder(folder_of(config)):
        return eval_run(config, RunConsole(quiet=quiet))


@callable_in_event_loop
def evaluate_run(run: str | Path, *, split: str = "test", again: bool = False, quiet: bool = False) -> Gain:
    """Evaluate a finished run on the rows of a split, before and after its training, and compare task by task.

    Both evaluations are recorded in the run's folder (`evaluations/`), where `agent-r1 table` finds them.

    Args:
        run: The folder of the run.
        split: `test` for published figures, `validation`, or `train`.
        again: Evaluate again what is recorded already.
        quiet: Print nothing.
    """
    from agent_r1.training import eval_trained

    if split not in SPLITS:
        raise UnknownNameError(f"unknown split '{split}'. {did_you_mean(split, SPLITS)}")
    folder = RunFolder(Path(run))
    with no_exit("the code of the recipe"), recipe_folder(folder_of(folder.read_config())):
        eval_trained(folder, split, RunConsole(quiet=quiet), again=again)
    before, after = (read_evaluation(folder.evaluation(split, stage)) for stage in ("before", "after"))
    return paired_gain([(before.by_task(), after.by_task())])


@callable_in_event_loop
def sft(
    config_or_recipe: Recipe = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    tools: Sequence[ToolLike] | None = None,
    env: type[AgentEnv] | str | None = None,
    reward: Reward | None = None,
    demonstrations: Rows | None = None,
    overrides: Overrides = (),
    quiet: bool = False,
) -> Path:
    """Warm-start a model on demonstrations; returns the folder of the tuned model.

    Args:
        config_or_recipe: As for `train`.
        model: The model to tune.
        data: As for `train`.
        eval_data: As for `train`.
        tools: As for `train`.
        env: As for `train`.
        reward: As for `train`.
        demonstrations: Rows with `messages` (a whole conversation) and optional `tools`: files or dicts (`sft.data`).
        overrides: As for `train`, for example `["sft.steps=100"]`.
        quiet: Print nothing.
    """
    from agent_r1.training import sft_run

    config = resolve(
        config_or_recipe,
        model=model,
        data=data,
        eval_data=eval_data,
        tools=tools,
        env=env,
        reward=reward,
        overrides=overrides,
    )
    if demonstrations is not None:
        config.sft.data = row_files(demonstrations, _rows_folder(config), "demonstrations")
    with no_exit("the code of the recipe"), recipe_folder(folder_of(config)):
        return sft_run(config, RunConsole(quiet=quiet))


@callable_in_event_loop
def check(
    config_or_recipe: Recipe = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    tools: Sequence[ToolLike] | None = None,
    env: type[AgentEnv] | str | None = None,
    reward: Reward | None = None,
    overrides: Overrides = (),
    groups: int = 8,
    members: int = 4,
    trials: bool = True,
    quiet: bool = False,
) -> Report:
    """Report what will go wrong in a run, before any training.

    Args:
        config_or_recipe: As for `train`.
        model: As for `train`.
        data: As for `train`.
        eval_data: As for `train`.
        tools: As for `train`.
        env: As for `train`.
        reward: As for `train`.
        overrides: As for `train`.
        groups: Tasks for trial episodes.
        members: Trial episodes per task.
        trials: Run trial episodes with the model; without them only what needs no model is checked.
        quiet: Print nothing.
    """
    from agent_r1.checks import check_recipe

    config = resolve(
        config_or_recipe,
        model=model,
        data=data,
        eval_data=eval_data,
        tools=tools,
        env=env,
        reward=reward,
        overrides=overrides,
    )
    console = RunConsole(quiet=quiet)
    with no_exit("the code of the recipe"), recipe_folder(folder_of(config)):
        return check_recipe(
            config, console, groups=groups, members=members, with_trials=trials, on_result=console.check_line
        )


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
    texts = override_texts(overrides)
    if model is not None:
        texts.append(f"model.path={quoted(str(model))}")
    if isinstance(tools, str):
        raise ConfigError(f"{tools=} is one text; give a list, such as [{tools!r}]")
    if tools is not None:
        texts += override_texts({"env.tools": [_tool_entry(tool) for tool in tools]})
    if env is not None:
        texts.append(f"env.name={quoted(env if isinstance(env, str) else _register(AgentEnv.registry, env))}")
    if reward is not None:
        texts += override_texts(_reward_settings(reward))
    config = load_config(config_or_recipe, texts)
    if config_or_recipe is None and not any(text.startswith("run.name=") for text in texts):
        config.run.name = run_name_of(config.env.get("name")) or config.run.name
    for key, rows in (("train", data), ("eval", eval_data)):
        if rows is not None:
            setattr(config.data, key, row_files(rows, _rows_folder(config), key))
            config.data.prepare = None  # a recipe prepares its own files, not those of the caller
    return config


def folder_of(config: Config) -> Path | None:
    """The recipe folder of a configuration, if it comes from one."""
    return None if config.recipe is None else Path(config.recipe)


def _rows_folder(config: Config) -> Path:
    """Where rows given as objects are written. No run has a name that begins with a dot."""
    return Path(config.run.folder) / ".data"


def _tool_entry(tool: ToolLike) -> str | Mapping[str, Any]:
    if isinstance(tool, str | Mapping):
        return tool
    registered = tool if isinstance(tool, BaseTool) else FunctionTool(tool)
    BaseTool.registry.add(registered.name, registered, replaceable=True)
    return registered.name


def _reward_settings(reward: Reward) -> dict[str, object]:
    """The reward section of a configuration."""
    if isinstance(reward, str) or callable(reward):
        return {"reward.function": _reward_name(reward), "reward.functions": []}
    if not isinstance(reward, Mapping | Sequence):
        raise ConfigError(f"reward must be a function, its name, a list or a mapping of them, found {reward!r:.80}")
    terms = reward.items() if isinstance(reward, Mapping) else [("", term) for term in reward]
    functions: list[dict[str, object]] = []
    for name, term in terms:
        function, weight = term if isinstance(term, tuple) else (term, 1.0)
        functions.append({"name": _reward_name(function, name), "weight": float(weight)})
    if not functions:
        raise ConfigError("reward is empty; give a reward function, a list or a mapping of them")
    return {"reward.functions": functions}


def _reward_name(reward: RewardTerm, name: str = "") -> str:
    return reward if isinstance(reward, str) else _register(reward_functions, reward, name)


def _register(registry: Registry[Any], entry: Any, name: str = "") -> str:
    name = name or str(getattr(entry, "__name__", ""))
    if not name.isidentifier():
        raise ConfigError(
            f"a {registry.kind} given as an object needs a name, found {entry!r:.80}. Use def or class, or name the "
            "reward: reward={'correct': ...}"
        )
    registry.add(name, entry, replaceable=True)
    return name
