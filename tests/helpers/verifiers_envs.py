"""Environments of the library `verifiers`, as a package of theirs would define them."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset


def load_environment(kind: str = "single", size: int = 10, reward: str = "letters", seed: int = 0) -> vf.Environment:
    """Small environments of each class that is supported, and of some that are not."""
    data = Dataset.from_list([{"question": f"What is {n} + {seed}?", "answer": str(n + seed)} for n in range(size)])
    rubric = vf.Rubric(funcs=[REWARDS[reward], length], weights=[1.0, 0.0])
    shared: dict[str, Any] = {"dataset": data, "rubric": rubric, "system_prompt": "Answer."}
    if kind == "single":
        held_out = [{"question": text, "answer": "7"} for text in ("What is 0 + 0?", "What is 3 + 4?")]
        return vf.SingleTurnEnv(**shared, eval_dataset=Dataset.from_list(held_out))
    if kind == "tools":
        return vf.ToolEnv(**shared, tools=[add], max_turns=3)
    if kind == "turns":
        return Hints(**shared, max_turns=4)
    if kind == "group":
        return vf.EnvGroup([vf.SingleTurnEnv(**shared)])
    raise ValueError(f"no such kind: {kind}")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One number.
        b: Another one.
    """
    return a + b


class Hints(vf.MultiTurnEnv):
    """Gives a hint after each wrong answer, and counts them; `boom` breaks it, `stop` ends it with a last word."""

    async def setup_state(self, state: vf.State) -> None:
        state["hints"] = 0

    @vf.stop  # type: ignore[untyped-decorator]
    async def is_right(self, state: vf.State) -> bool:
        turns = state["trajectory"]
        return bool(turns) and turns[-1]["completion"][-1].content == state["answer"]

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        said = messages[-1].content
        if said == "boom":
            raise vf.Error("the hints are gone")
        state["hints"] += 1
        hint = [vf.UserMessage(content=f"No. Hint {state['hints']}: it is not {said}.")]
        if said == "stop":
            state["final_env_response"] = hint
        return hint


async def letters(completion: vf.Messages, **kwargs: Any) -> float:
    """Differs between the answers of a random model."""
    return float(len({letter for message in completion for letter in str(message.content)}))


def exact(completion: vf.Messages, answer: str) -> float:
    """1 for the right answer."""
    return float(completion[-1].content == answer)


def broken(completion: vf.Messages) -> float:
    """A reward with a bug."""
    raise KeyError("score")


def together(completions: list[vf.Messages]) -> list[float]:
    """Scores a group."""
    return [0.0 for _ in completions]


def length(completion: vf.Messages) -> float:
    """A metric."""
    return float(len(completion))


REWARDS = {"letters": letters, "exact": exact, "broken": broken, "together": together}
