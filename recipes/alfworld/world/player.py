"""`Player`: a game behind either engine, as the environment uses it."""

from __future__ import annotations

from typing import Protocol

from .game import Game


class Player(Protocol):
    """A game in progress, and what it said last."""

    answer: str
    """The answer to the last command."""
    won: bool
    """Whether the task is done."""

    @property
    def commands(self) -> list[str]:
        """The commands that can be given now, sorted."""

    @property
    def key(self) -> str:
        """The state's identity."""

    async def give(self, command: str) -> None:
        """Give a command."""

    async def close(self) -> None:
        """Release what the game holds."""


class TwinPlayer:
    """A game of the twin."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self.answer, self.won = game.intro, game.won

    @property
    def commands(self) -> list[str]:
        """The commands that can be given now, sorted."""
        return self._game.commands()

    @property
    def key(self) -> str:
        """The state's identity."""
        return self._game.key()

    async def give(self, command: str) -> None:
        """Give a command."""
        self.answer = self._game.step(command)
        self.won = self._game.won

    async def close(self) -> None:
        """Nothing is held."""
