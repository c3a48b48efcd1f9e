"""`check`: what will go wrong in a run, before any training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_r1.api.arguments import Recipe, Reward, ToolLike, folder_of, resolve
from agent_r1.config import Overrides
from agent_r1.console import RunConsole
from agent_r1.data import Rows
from agent_r1.envs import AgentEnv
from agent_r1.errors import no_exit
from agent_r1.event_loop import callable_in_event_loop
from agent_r1.registry import recipe_folder

if TYPE_CHECKING:
    from agent_r1.checks import Report


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
