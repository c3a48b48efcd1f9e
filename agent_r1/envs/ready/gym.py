"""`env=gym:FrozenLake-v1`: a Gymnasium environment. Its tasks are seeds; its reward is that of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.constraints import Count, CountOrZero, Seed
from agent_r1.envs.context import ContextChoice
from agent_r1.envs.grid_text import GRID_ACTIONS
from agent_r1.envs.gym import check_actions, make_gym
from agent_r1.envs.ready.base import ReadyEnv, env_kinds, split_seeds
from agent_r1.envs.space_text import describe_space
from agent_r1.errors import require_installed
from agent_r1.registry import load_function
from agent_r1.rewards import RewardValue, reward_functions
from agent_r1.types import Episode, Task

KNOWN_ACTIONS: dict[str, tuple[str, ...]] = {
    "Acrobot": ("left", "nothing", "right"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "CliffWalking": ("up", "right", "down", "left"),
    "FrozenLake": ("left", "down", "right", "up"),
    "LunarLander": ("nothing", "left", "main", "right"),
    "MountainCar": ("left", "nothing", "right"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}
"""Names of the actions of Gymnasium's own environments, in order. Others have numbers unless `actions` names them."""
GRID_TEXT = "agent_r1.envs:describe_grid"
"""How the view of MiniGrid is written."""


@env_kinds.register("gym")
def gym(
    name: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    tasks: Count = 1000,
    eval_tasks: CountOrZero = 64,
    seed: Seed = 0,
    instructions: str | None = None,
    success: float | None = None,
    observe: str | None = None,
    actions: Sequence[str] | None = None,
    act: str | None = None,
    context: ContextChoice = "append",
    levels: Sequence[Mapping[str, Any]] = (),
) -> ReadyEnv:
    """A Gymnasium id, or `module:attribute`, made with `arguments`.

    `instructions` replaces the system message. `success` is the return from which an episode counts as solved; without
    it that is Gymnasium's `reward_threshold`, or any return above 0. `levels` are arguments of each level of a
    curriculum, the easiest first: the tasks are spread over them. The others are arguments of `GymEnv`.
    """
    require_installed("gymnasium", "gymnasium", "gym", "env=gym:...")
    make_arguments = dict(arguments or {})
    env = make_gym(name, make_arguments)
    try:
        spec = getattr(env, "spec", None)
        if observe is None and _is_grid(env):
            observe, actions = GRID_TEXT, actions if actions or act else GRID_ACTIONS
        if observe is None and "render_mode" not in make_arguments and "ansi" in env.metadata.get("render_modes", ()):
            make_arguments["render_mode"] = "ansi"
        if actions is None and act is None:
            names = KNOWN_ACTIONS.get(getattr(spec, "name", ""), ())
            actions = names if names and getattr(env.action_space, "n", None) == len(names) else None
        act_function = None if act is None else load_function(act, kind="action function")
        check_actions(name, env.action_space, actions, act_function)
        text = instructions or _instructions(name, env.action_space, actions, is_parsed=act is not None)
        threshold = success if success is not None else getattr(spec, "reward_threshold", None)
    finally:
        env.close()
    _check_levels(name, make_arguments, levels)
    chosen = {"arguments": make_arguments, "observe": observe, "actions": actions and list(actions), "act": act}
    section = {key: value for key, value in chosen.items() if value}

    def rows(split: str, count: int) -> list[Task]:
        return [
            Task(
                task_id=f"{name}-{split}-{number}",
                prompt=({"role": "system", "content": text},),
                reward_model={"style": "gym", **({} if threshold is None else {"success": float(threshold)})},
                **_of_level(name, task_seed, number, levels),
            )
            for number, task_seed in enumerate(split_seeds(seed, split, count))
        ]

    return ReadyEnv(
        env={"name": "gym", "make": name, **section, "context": context},
        train=rows("train", tasks),
        eval=rows("eval", eval_tasks),
        reward="gym",
    )


def _of_level(name: str, seed: int, number: int, levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the level of a task decides: its arguments, its difficulty, and where its figures are shown."""
    if not levels:
        return {"env_kwargs": {"seed": seed}, "data_source": name}
    index = number % len(levels)
    return {
        "env_kwargs": {"seed": seed, "arguments": dict(levels[index])},
        "difficulty": index + 1,
        "data_source": f"{name}-level{index + 1}",
    }


def _check_levels(name: str, arguments: Mapping[str, Any], levels: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` now for a level that cannot be made."""
    for level in levels:
        make_gym(name, {**arguments, **level}).close()


def _is_grid(env: Any) -> bool:
    """Whether an environment is of MiniGrid, with its partial view as observation."""
    parts = getattr(env.observation_space, "spaces", {})
    return type(env.unwrapped).__module__.startswith("minigrid.") and {"image", "mission"} <= set(parts)


def _instructions(name: str, space: Any, actions: Sequence[str] | None, *, is_parsed: bool) -> str:
    about = f"You act in the environment {name.rpartition(':')[2]}. Each message shows its state."
    if is_parsed:
        return f"{about} Answer with your next action."
    choice = f"one of: {', '.join(actions)}" if actions else describe_space(space)
    return f"{about} Answer with your next action, {choice}. Write the action alone, or as <action>...</action>."


@reward_functions.register("gym")
def gym_outcome(task: Task, episode: Episode) -> RewardValue:
    """0, because the steps have the environment's rewards; says whether their sum is a success."""
    earned = sum(step.reward for step in episode.steps)
    threshold = task.reward_model.get("success")
    solved = earned > 0 if threshold is None else earned >= threshold
    return {"score": 0.0, "success": float(solved), "return": earned, "answer": ""}
