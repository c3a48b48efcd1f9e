"""Agent-R1 from Python: the same as the command line.

A recipe folder with overrides, or overrides with parts of your own:

    agent_r1.train("recipes/quickstart", "algorithm=ppo", "trainer.steps=20")
    agent_r1.train("trainer.steps=20", model="Qwen/Qwen3-0.6B", data="tasks.jsonl", tools=[stock], reward=score)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_r1.config import Config, load_config, quoted
from agent_r1.console import RunConsole
from agent_r1.envs import AgentEnv
from agent_r1.errors import ConfigError, UnknownNameError, did_you_mean, no_exit
from agent_r1.registry import recipe_folder
from agent_r1.rewards import RewardFunction, reward_functions
from agent_r1.tools import BaseTool, FunctionTool

if TYPE_CHECKING:
    from agent_r1.checks import Report
    from agent_r1.evaluation import Evaluation
    from agent_r1.training import Summary


BASELINES = {"react": ("model.tool_format=react",)}
"""Ways to run a model that nobody has trained, as overrides."""


def train(*recipe_and_overrides: str, quiet: bool = False, **parts: Any) -> Summary:
    """Train an agent. Give a recipe folder and `key=value` overrides; or overrides alone with your own parts.

    Args:
        recipe_and_overrides: A recipe folder (first, if any) and overrides such as `trainer.steps=20`.
        quiet: Print nothing.
        parts: `model`, `data`, `eval_data` (paths), `tools` (tools, functions or names), `env` (a class), `reward` (a
            function).
    """
    from agent_r1.training import train_run

    recipe, config = resolve(recipe_and_overrides, **parts)
    with no_exit("the code of the recipe"), recipe_folder(recipe):
        return train_run(config, RunConsole(quiet=quiet))


def evaluate(*recipe_and_overrides: str, baseline: str | None = None, quiet: bool = False, **parts: Any) -> Evaluation:
    """Evaluate a model; takes what `train` takes. Without `model`, what the recipe's training starts from.

    Args:
        recipe_and_overrides: A recipe folder (first, if any) and overrides such as `eval.samples=4`.
        baseline: `react`: the model as it came, without the recipe's warm start, in the ReAct text format.
        quiet: Print nothing.
        parts: As for `train`.
    """
    from agent_r1.training import eval_run

    if baseline is not None and baseline not in BASELINES:
        raise UnknownNameError(f"unknown baseline '{baseline}'. {did_you_mean(baseline, BASELINES)}")
    # A model that is named is evaluated as it is.
    keys = {entry.partition("=")[0] for entry in recipe_and_overrides}
    named = parts.get("model") is not None or ("model.path" in keys and "sft.folder" not in keys)
    as_it_came = baseline is not None or named
    overrides = [*BASELINES.get(baseline or "", ()), *(["sft.folder=null"] if as_it_came else [])]
    recipe, config = resolve([*recipe_and_overrides, *overrides], **parts)
    with no_exit("the code of the recipe"), recipe_folder(recipe):
        return eval_run(config, RunConsole(quiet=quiet))


def sft(*recipe_and_overrides: str, quiet: bool = False, **parts: Any) -> Path:
    """Warm-start a model on demonstrations (`sft.data`); gives the folder of the tuned model."""
    from agent_r1.training import sft_run

    recipe, config = resolve(recipe_and_overrides, **parts)
    with no_exit("the code of the recipe"), recipe_folder(recipe):
        return sft_run(config, RunConsole(quiet=quiet))


def check(
    *recipe_and_overrides: str,
    groups: int = 8,
    members: int = 4,
    trials: bool = True,
    quiet: bool = False,
    **parts: Any,
) -> Report:
    """What will go wrong in a recipe, found before any training; takes what `train` takes.

    Args:
        recipe_and_overrides: A recipe folder (first, if any) and overrides such as `trainer.steps=20`.
        groups: Tasks for trial episodes.
        members: Trial episodes of each.
        trials: Try episodes with the model; without them only what needs no model is looked at.
        quiet: Print nothing.
        parts: As for `train`.
    """
    from agent_r1.checks import check_recipe

    recipe, config = resolve(recipe_and_overrides, **parts)
    console = RunConsole(quiet=quiet)
    with no_exit("the code of the recipe"), recipe_folder(recipe):
        return check_recipe(
            config, console, groups=groups, members=members, with_trials=trials, on_result=console.check_line
        )


def resolve(
    recipe_and_overrides: Sequence[str],
    *,
    model: str | Path | None = None,
    data: str | Path | None = None,
    eval_data: str | Path | None = None,
    tools: Sequence[str | BaseTool | Callable[..., Any]] = (),
    env: type[AgentEnv] | None = None,
    reward: RewardFunction | None = None,
) -> tuple[Path | None, Config]:
    """The recipe folder, if one is given, and the configuration. Parts given as objects are registered by name."""
    recipe: Path | None = None
    overrides = list(recipe_and_overrides)
    if overrides and "=" not in overrides[0] and not overrides[0].startswith("~"):
        recipe = Path(overrides.pop(0))
    given = {"model.path": model, "data.train": data, "data.eval": eval_data}
    for key, path in given.items():
        if path is not None:
            text = quoted(str(path))
            overrides.append(f"{key}={text}" if key == "model.path" else f"{key}=[{text}]")
    if tools:
        names = [_register_tool(entry) for entry in tools]
        overrides.append(f"env.tools=[{','.join(names)}]")
    if env is not None:
        overrides.append(f"env.name={_register(AgentEnv.registry, env)}")
    if reward is not None:
        overrides.append(f"reward.function={_register(reward_functions, reward)}")
    return recipe, load_config(recipe, overrides)


def _register_tool(entry: str | BaseTool | Callable[..., Any]) -> str:
    if isinstance(entry, str):
        return entry
    tool = entry if isinstance(entry, BaseTool) else FunctionTool(entry)
    BaseTool.registry.add(tool.name, tool)
    return tool.name


def _register(registry: Any, entry: Any) -> str:
    name = getattr(entry, "__name__", None)
    if name is None or not name.isidentifier():
        raise ConfigError(f"a {registry.kind} given as an object needs a name; got {entry!r}. Use def or class")
    registry.add(name, entry)
    return str(name)
