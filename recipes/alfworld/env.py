"""The environment `alfworld`: a game of a row's trial and goal, in the twin or in textworld.

env: {name: alfworld, games: runs/alfworld_data/games.zip, commands: here, context: append}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from agent_r1.constraints import Count, NotNegative, one_of
from agent_r1.envs import AgentEnv, Conversation, make_policy
from agent_r1.envs.context import ContextChoice
from agent_r1.errors import DataError
from agent_r1.types import Action, Message, Observation, StepResult, Task

from .prompts import answer_message, read_command, shown_commands, with_commands
from .world.archive import load_scene, read_problem
from .world.game import NOTHING_HAPPENS, Game
from .world.goals import Goal
from .world.player import Player, TwinPlayer


@AgentEnv.register("alfworld")
class AlfworldEnv(AgentEnv):
    """An episode of ALFWorld. The model writes a command per step; the episode ends when the task is done.

    Args:
        games: The file with the PDDL problems of all trials.
        engine: `twin`, plain Python, or `textworld`, the original (extra `alfworld`).
        workers: Processes that play, where the engine is textworld.
        commands: The commands shown with each answer: `here` (what can be done at this place), `all` (every command
            that can be given, as ALFWorld lists them) or `none`.
        context: The context policy; `alfworld_recent` and `alfworld_notes` show one short prompt per step.
        step_penalty: Subtracted from the reward of each step.
        invalid_penalty: Subtracted from the reward of a step whose command cannot be given.
    """

    def __init__(
        self,
        games: str,
        engine: Annotated[str, one_of("twin", "textworld")] = "twin",
        workers: Count = 2,
        commands: Annotated[str, one_of("here", "all", "none")] = "here",
        context: ContextChoice = "append",
        step_penalty: NotNegative = 0.0,
        invalid_penalty: NotNegative = 0.0,
    ) -> None:
        self._games, self._engine, self._workers, self._commands = games, engine, workers, commands
        self._policy = make_policy(context)
        self._step_penalty, self._invalid_penalty = step_penalty, invalid_penalty
        self._player: Player | None = None
        self._conversation: Conversation
        self._won = False

    async def reset(self, task: Task) -> Observation:
        """Begin the game of a row."""
        trial, goal = row_game(task)
        if self._engine == "textworld":
            from .world.original import OriginalPlayer

            self._player = await OriginalPlayer.start(read_problem(self._games, trial), goal, self._workers)
        else:
            self._player = TwinPlayer(Game(load_scene(self._games, trial), goal))
        self._won = False
        self._conversation = Conversation(self._policy, self._first_messages(task, self._player.commands))
        return self._observation()

    def preview(self, task: Task) -> Observation:
        """What `reset` returns; the twin says it in either engine."""
        trial, goal = row_game(task)
        commands = Game(load_scene(self._games, trial), goal).commands()
        return Observation(messages=Conversation(self._policy, self._first_messages(task, commands)).messages)

    async def step(self, action: Action) -> StepResult:
        """Give the model's command."""
        if self._player is None:
            raise RuntimeError("step of an AlfworldEnv before its reset, or after its close")
        if self._won:
            return StepResult(observation=None, done=True, info={"won": True})
        if self._conversation.takes(action):
            return StepResult(observation=self._observation(), info={"metrics": {"episode/summaries": 1.0}})
        await self._player.give(read_command(action.text))
        player = self._player
        invalid = player.answer == NOTHING_HAPPENS
        self._won = player.won
        self._conversation.add(
            action.as_message(), answer_message(player.answer, shown_commands(self._commands, player.commands))
        )
        return StepResult(
            observation=None if self._won else self._observation(),
            reward=-self._step_penalty - self._invalid_penalty * invalid,
            done=self._won,
            info={"won": self._won, "metrics": {"episode/invalid_commands": float(invalid)}},
        )

    async def close(self) -> None:
        """End the game."""
        player, self._player = self._player, None
        if player is not None:
            await player.close()

    def _observation(self) -> Observation:
        assert self._player is not None
        return Observation(messages=self._conversation.messages, anchor=self._player.key)

    def _first_messages(self, task: Task, commands: list[str]) -> tuple[Message, ...]:
        *before, last = task.prompt
        content = with_commands(str(last["content"]), shown_commands(self._commands, commands))
        return (*before, {**last, "content": content})


def row_game(task: Task) -> tuple[str, Goal]:
    """The trial and the goal of a row."""
    trial, goal = task.env_kwargs.get("trial"), task.env_kwargs.get("goal")
    if not isinstance(trial, str) or not isinstance(goal, Mapping) or not task.prompt:
        found: dict[str, Any] = dict(task.env_kwargs)
        raise DataError(
            f"task '{task.task_id}': env_kwargs needs trial, a name in env.games, and goal, with family, thing and "
            f"place, and the row a prompt; found {found!r:.200}"
        )
    return trial, Goal.from_row(goal)
