"""The tools of my_task: typed functions, whose docstrings the model reads."""

from __future__ import annotations

from agent_r1.tools import ToolContext, tool


@tool
async def my_task_look_up(word: str, context: ToolContext) -> str:
    """What the register says about a person or a locker.

    Args:
        word: A person's name or a locker's number.
    """
    register = context.task.env_kwargs["register"]
    if word not in register:
        raise ValueError(f"the register has no {word}")  # the model reads this and continues
    return str(register[word])
