"""Demonstrations: games that the expert won in the twin, in the form that a model sees.

Every command was really given and every answer is the game's. Some games have slips: a command that leads nowhere, and
the expert continues from there. Where the context policy writes a prompt of its own for each step, slips are shown but
not taught.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_r1.envs import ContextPolicy, Conversation

from .expert import Expert, Habits
from .prompts import answer_message, command_message, shown_commands, task_messages, with_commands
from .world.game import Game
from .world.goals import Goal
from .world.scene import Scene

SLIPS = 0.02
"""The share of steps that are slips, in games that have some."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One step of the expert."""

    command: str
    answer: str
    commands: list[str]
    """What could be given after it."""
    is_slip: bool = False


def room_of(game: Game) -> str:
    """The room's description in the first text of a game."""
    return game.intro.split("\n\n")[1]


def play(
    scene: Scene, goal: Goal, habits: Habits, max_steps: int, rng: random.Random | None = None
) -> list[Move] | None:
    """The expert's game; None when it is not won within the steps. With `rng` it has slips."""
    game = Game(scene, goal)
    expert = Expert(goal, room_of(game), habits)
    moves: list[Move] = []
    while len(moves) < max_steps:
        slip = None if rng is None or rng.random() >= SLIPS else _slip(game, rng)
        command = slip or expert.command()
        if command is None:
            return None
        answer = game.step(command)
        expert.observe(command, answer)
        moves.append(Move(command=command, answer=answer, commands=game.commands(), is_slip=slip is not None))
        if game.won:
            return moves
    return None


def _slip(game: Game, rng: random.Random) -> str:
    """A command that does no harm: to go where nothing was looked for, or to take what is not there."""
    places, things = game.scene.places, game.scene.things
    place = rng.choice(places).name
    return rng.choice([f"go to {place}", f"open {place}", f"take {rng.choice(things).name} from {place}"])


def conversations(
    scene: Scene, goal: Goal, moves: list[Move], policy: ContextPolicy, mode: str
) -> Iterator[dict[str, Any]]:
    """A won game as rows for the warm start, as the environment shows it with this policy and these commands.

    One row where the policy keeps all of the history; one per step where it rewrites it.
    """
    game = Game(scene, goal)
    *before, first = task_messages(room_of(game), goal.text)
    content = with_commands(str(first["content"]), shown_commands(mode, game.commands()))
    conversation = Conversation(policy, [*before, {**first, "content": content}])
    rows: list[list[Any]] = []
    for move in moves:
        message = command_message(move.command)
        shown = [*conversation.messages, message]
        extends = bool(rows) and shown[: len(rows[-1])] == rows[-1]
        if extends:
            rows[-1] = shown
        elif not move.is_slip:
            rows.append(shown)
        conversation.add(message, answer_message(move.answer, shown_commands(mode, move.commands)))
    yield from ({"messages": messages} for messages in rows)
