r"""The reward of math_code: 1 for the right answer in `\boxed{}`, a little for an answer in that form."""

from __future__ import annotations

from agent_r1.rewards import needs_ground_truth
from agent_r1.types import Episode, Task

from .grader import Grader
from .grading import boxed_answers

FORM_REWARD = 0.1
"""For a wrong answer in one box."""


@needs_ground_truth("exact")
async def score(task: Task, episode: Episode) -> dict[str, float | str]:
    r"""1 when the last `\boxed{}` of the answer is right, as math-verify judges; else 0.1 for exactly one box.

    Where the tool format has a mark of its own for the answer (`Final Answer: 42`), it needs no box.
    """
    text = episode.answer
    boxes = boxed_answers(text)
    if not boxes and text and episode.steps[-1].action.final_answer is not None:
        boxes = [text.strip()]
    answer = boxes[-1] if boxes else ""
    right = bool(answer) and await Grader.here().is_right(str(task.ground_truth), answer)
    formed = len(boxes) == 1 and bool(answer)
    return {
        "score": 1.0 if right else FORM_REWARD * formed,
        "success": float(right),
        "boxed": float(formed),
        "answer": str(task.ground_truth) if right else answer,  # votes count equal answers together
    }


def gold_answer(task: Task) -> str:
    """A perfect last action, for `agent-r1 check`."""
    return f"The answer is $\\boxed{{{task.ground_truth}}}$."
