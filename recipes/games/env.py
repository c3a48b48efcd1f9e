"""The environment of games: TextCraft as a conversation.

    env: {name: textcraft, world: runs/games_data}

The model writes `get`, `craft` or `inventory` and reads what came of it. The episode ends when the goal is held. The
same class runs in the process of a run and in a service (`agent-r1 env serve env:TextCraftEnv`).
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

from agent_r1.data import read_raw
from agent_r1.envs import AgentEnv, Conversation, make_policy
from agent_r1.envs.context import ContextChoice
from agent_r1.errors import DataError
from agent_r1.types import Action, Observation, StepResult, Task

from .textcraft.commands import Amount, read_command
from .textcraft.expert import plan
from .textcraft.game import Game
from .textcraft.goals import choose, goal_amount
from .textcraft.world import Recipe, World

RECIPES_FILE = "recipes.jsonl"
NO_COMMAND = "Error: write get COUNT ITEM, craft COUNT ITEM using COUNT ITEM, ... or inventory."


@lru_cache(maxsize=4)
def open_world(folder: str) -> World:
    """The world whose recipes the data script wrote into a folder."""
    file = Path(folder) / RECIPES_FILE
    if not file.is_file():
        raise DataError(
            f"there is no {file}. The data script writes it, which `agent-r1 train recipes/games` runs where data is "
            "missing; name the folder with env.world=FOLDER"
        )
    return World(map(Recipe.from_json, read_raw([file])))


@AgentEnv.register("textcraft")
class TextCraftEnv(AgentEnv):
    """One player.

    Args:
        world: The folder that the data script wrote.
        context: How much of its history the model sees.
    """

    def __init__(self, world: str = "runs/games_data", context: ContextChoice = "append") -> None:
        self._folder = world
        self._policy = make_policy(context)
        self._game: Game | None = None
        self._conversation: Conversation

    async def reset(self, task: Task) -> Observation:
        """Begin with nothing held, and the row's messages."""
        world, goal = self._world_and_goal(task)
        self._game = Game(world, goal)
        self._conversation = Conversation(self._policy, task.prompt)
        return self._observation(self._game)

    async def step(self, action: Action) -> StepResult:
        """Run the command. Text that is none is explained, and nothing changes."""
        game = self._game
        if game is None or game.is_won:
            raise RuntimeError("step of a TextCraftEnv before its reset, or after its end")
        if self._conversation.takes(action):
            return StepResult(observation=self._observation(game), info={"metrics": {"episode/summaries": 1.0}})
        command = read_command(action.text)
        if command is None:
            reply, succeeded = NO_COMMAND, False
        else:
            reply, succeeded = game.run(command)
        metrics = {"textcraft/mistakes": float(not succeeded)}
        if game.is_won:
            return StepResult(observation=None, done=True, info={"crafted": str(game.goal), "metrics": metrics})
        self._conversation.add(action.as_message(), {"role": "user", "content": reply})
        return StepResult(observation=self._observation(game), info={"metrics": metrics})

    def gold_actions(self, task: Task) -> list[str] | None:
        """A plan of the expert."""
        world, goal = self._world_and_goal(task)
        return [str(command) for command in plan(choose(world, goal.item, random.Random(0)), goal)]

    def _world_and_goal(self, task: Task) -> tuple[World, Amount]:
        world, goal = open_world(self._folder), goal_amount(task.env_kwargs.get("goal"))
        if goal.item not in world.recipes:
            raise DataError(f"task '{task.task_id}': no recipe of {self._folder} makes {goal.item!r}")
        return world, goal

    def _observation(self, game: Game) -> Observation:
        return Observation(messages=self._conversation.messages, anchor=game.inventory)
