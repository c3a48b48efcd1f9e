"""Two small Gymnasium environments: one speaks text, one has numbers and named actions."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class GuessWord(gymnasium.Env[str, str]):
    """Guess a letter drawn with the seed; `z` breaks the world."""

    def __init__(self, max_guesses: int = 3) -> None:
        self.action_space = spaces.Text(max_length=1, charset="abcdez")
        self.observation_space = spaces.Text(max_length=40)
        self.max_guesses = max_guesses
        self.threads: set[int] = set()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.threads.add(threading.get_ident())
        self.word = (options or {}).get("word") or "abcde"[int(self.np_random.integers(5))]
        self.num_guesses = 0
        return f"a letter is hidden {int(self.np_random.integers(1000))}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.threads.add(threading.get_ident())
        if action == "z":
            raise OSError("the word is gone")
        self.num_guesses += 1
        right = action == self.word
        return "right" if right else "wrong", float(right), right, self.num_guesses >= self.max_guesses, {}


class Line(gymnasium.Env[Any, Any]):
    """Walk from 0 to 2 on a line; numbers of actions begin with 5."""

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(2, start=5)
        self.observation_space = spaces.Box(-10, 10, (1,), np.int64)
        self.num_closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return np.array([0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += {5: -1, 6: 1}[action]
        return np.array([self.place]), np.float64(0.5), self.place == 2, False, {}

    def close(self) -> None:
        self.num_closed += 1


def describe(seen: Any) -> str:
    return f"You stand at {int(seen[0])}."


def signed(text: str) -> int:
    """+1 and -1 as actions of `Line`."""
    if text not in ("+1", "-1"):
        raise ValueError(f"'{text}' is neither +1 nor -1.")
    return 6 if text == "+1" else 5
