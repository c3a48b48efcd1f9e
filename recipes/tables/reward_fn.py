"""The reward of tables: 1 for the right answer, a little for an answer in the right form, for TAT-QA part of F1."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_r1.rewards import needs_ground_truth
from agent_r1.types import Episode, Task

from .denotation import is_right
from .prompts import answer_text
from .tatqa_score import derivation_share, exact_and_f1, same_scale

FORM_REWARD, OVERLAP_REWARD = 0.1, 0.3
"""For a wrong answer in the right form; for F1 of 1 of a wrong answer to TAT-QA, besides."""
_ANSWER = re.compile(r"^[ \t]*Answer:[ \t]*(.*)$", re.MULTILINE | re.IGNORECASE)
_SCALE = re.compile(r"^[ \t]*Scale:[ \t]*(.*)$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Answered:
    """What a model answered."""

    values: tuple[str, ...]
    scale: str


def read_answer(text: str) -> Answered:
    """The values and the scale of the only line `Answer:`; none where there are several.

    >>> read_answer("Answer: a | b\\nScale: million")
    Answered(values=('a', 'b'), scale='million')
    >>> read_answer("Answer: a\\nAnswer: b").values
    ()
    """
    answers, scales = _ANSWER.findall(text), _SCALE.findall(text)
    if len(answers) != 1 or len(scales) > 1:
        return Answered((), "")
    values = tuple(value for part in answers[0].split(" | ") if (value := part.strip()))
    return Answered(values, scales[0].strip() if scales else "")


@needs_ground_truth("exact")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 for the right denotation (WikiTableQuestions) or an exact match with its scale (TAT-QA); else 0.1 for an answer
    in the right form, and for TAT-QA up to 0.3 more for F1. `derivation` is the share of the gold derivation's numbers
    that the programs have, for questions that come with one."""
    answered = read_answer(episode.answer)
    gold = [str(value) for value in task.ground_truth]
    formed = float(bool(answered.values))
    parts: dict[str, float | str]
    if task.data_source == "tatqa":
        truth = task.reward_model
        scale = str(truth.get("scale") or "")
        exact, f1 = exact_and_f1(gold, scale, answered.values, answered.scale, numeric=bool(truth.get("numeric")))
        parts = {"f1": f1, "scale": formed * same_scale(scale, answered.scale)}
        if truth.get("derivation"):
            parts["derivation"] = derivation_share(str(truth["derivation"]), _written(episode))
    else:
        exact, f1, parts = float(is_right(gold, answered.values)), 0.0, {}
    return {
        "score": 1.0 if exact else FORM_REWARD * formed + OVERLAP_REWARD * f1,
        "success": exact,
        "answered": formed,
        "answer": " | ".join(gold if exact else answered.values),  # votes count equal answers together
        **parts,
    }


def _written(episode: Episode) -> list[str]:
    return [step.action.text for step in episode.steps]


def gold_answer(task: Task) -> str:
    """A perfect last action, for `agent-r1 check`."""
    return answer_text([str(value) for value in task.ground_truth], str(task.reward_model.get("scale") or ""))
