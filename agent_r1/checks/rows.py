"""Do the rows fit: do gold answers score full marks, do wrong ones not, is there room in the context?

What a perfect answer looks like only the recipe knows. A function `gold_answer(task)` beside the reward function says
it: the text of the last action. Without it the ground truth is tried as it stands and in the usual dress (`#### 12`,
`\\boxed{12}`, `<answer>12</answer>`), and the form that scores is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_r1.errors import EpisodeError
from agent_r1.findings import Finding
from agent_r1.rewards import RewardFunction, score_episode
from agent_r1.rewards.outcome import no_outcome_reward
from agent_r1.types import Action, Episode, Observation, Step, StopReason, Task

GoldAnswer = Callable[[Task], str]

_TRIED_ROWS = 20
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldResult:
    """What gold answers and wrong ones scored."""

    findings: tuple[Finding, ...]
    seen: str
    skipped: bool = False


def answer_episode(text: str) -> Episode:
    """An episode of one action that says `text` and ends."""
    step = Step(
        observation=Observation(messages=()),
        prompt_ids=(),
        action=Action(text=text, content=text),
        action_ids=(),
        rollout_logprobs=(),
        reward=0.0,
        done=True,
        policy_versions=(),
    )
    return Episode(steps=(step,), stop_reason=StopReason.DONE)


def _plain(task: Task) -> str:
    truth = task.ground_truth
    return str(truth[0] if isinstance(truth, list | tuple) and truth else truth)


USUAL_FORMS: dict[str, GoldAnswer] = {
    "the ground truth": _plain,
    "#### and the ground truth": lambda task: f"#### {_plain(task)}",
    "\\boxed{the ground truth}": lambda task: f"\\boxed{{{_plain(task)}}}",
    "<answer>the ground truth</answer>": lambda task: f"<answer>{_plain(task)}</answer>",
}


def own_form(reward: RewardFunction) -> GoldAnswer | None:
    """`gold_answer` of the module in which the reward function is defined."""
    module = sys.modules.get(getattr(reward, "__module__", "") or "")
    return getattr(module, "gold_answer", None)


async def gold_result(reward: RewardFunction, tasks: Sequence[Task]) -> GoldResult:
    """Score the gold answer of every row, and the gold answer of another row in its place."""
    own = own_form(reward)
    if reward is no_outcome_reward:
        return GoldResult(findings=(), seen="all reward comes from the environment", skipped=True)
    with_truth = [task for task in tasks if own is not None or task.ground_truth is not None]
    if not with_truth:
        return GoldResult(findings=(), seen="no row has a ground truth", skipped=True)
    name, form = ("gold_answer", own) if own is not None else await _best_form(reward, with_truth[:_TRIED_ROWS])
    if form is None:
        found = f"none of {', '.join(USUAL_FORMS)} scores full marks on the first rows"
        do = "Write gold_answer(task) beside the reward function: the text a perfect last action has"
        finding = Finding(what="gold answers score full marks", found=found, do=do, severity="warning")
        return GoldResult(findings=(finding,), seen="")
    texts = [form(task) for task in with_truth]
    missed = [
        f"'{task.task_id}'" for task, text in zip(with_truth, texts, strict=True) if not await _full(reward, task, text)
    ]
    fooled = [
        f"'{task.task_id}' ({other!r})"
        for task, other in _wrong_answers(with_truth, texts)
        if await _full(reward, task, other)
    ]
    findings = []
    if missed:
        found = f"{len(missed)} of {len(with_truth)} rows do not give full marks to {name}: {_some(missed)}"
        findings.append(
            Finding(what="gold answers score full marks", found=found, do="Mend the rows or the reward function")
        )
    if fooled:
        found = f"{len(fooled)} rows give full marks to a wrong answer: {_some(fooled)}"
        findings.append(Finding(what="wrong answers do not", found=found, do="Make the reward function stricter"))
    seen = f"{len(with_truth) - len(missed)} of {len(with_truth)} gold answers ({name}) score full marks"
    return GoldResult(findings=tuple(findings), seen=f"{seen}, {len(fooled)} wrong ones do")


async def _best_form(reward: RewardFunction, tasks: Sequence[Task]) -> tuple[str, GoldAnswer | None]:
    counts = {
        name: sum([await _full(reward, task, form(task)) for task in tasks]) for name, form in USUAL_FORMS.items()
    }
    best = max(counts, key=lambda name: counts[name])
    return best, USUAL_FORMS[best] if counts[best] else None


def _wrong_answers(tasks: Sequence[Task], texts: Sequence[str]) -> list[tuple[Task, str]]:
    """For each row the gold answer of the next row with another ground truth, and silence."""
    wrong: list[tuple[Task, str]] = []
    for index, task in enumerate(tasks):
        others = (n % len(tasks) for n in range(index + 1, index + 1 + min(len(tasks) - 1, _TRIED_ROWS)))
        other = next((n for n in others if _differs(task, tasks[n])), None)
        if other is not None:
            wrong.append((task, texts[other]))
        wrong.append((task, ""))
    return wrong


def _differs(one: Task, other: Task) -> bool:
    """Neither answer may be among the other's: rows may share aliases."""
    left, right = _truths(one), _truths(other)
    return not left & right


def _truths(task: Task) -> set[str]:
    truth = task.ground_truth
    several = truth if isinstance(truth, list | tuple) else [truth]
    return {" ".join(str(entry).lower().split()) for entry in several}


async def _full(reward: RewardFunction, task: Task, text: str) -> bool:
    """Full marks; a reward function that raises gives none, and the trial episodes tell of it."""
    try:
        score = await score_episode(reward, task, answer_episode(text))
    except EpisodeError:
        return False
    return float(score.parts.get("success", score.value)) >= 1.0


def room_findings(
    lengths: Sequence[tuple[str, int]], *, context: int, max_tokens: int, max_steps: int
) -> list[Finding]:
    """Whether the longest first prompt leaves room for an answer, and for a second turn where there may be one."""
    if not lengths:
        return []
    name, longest = max(lengths, key=lambda entry: entry[1])
    room = context - longest
    where = f"the first prompt of '{name}' has {longest} of {context} tokens"
    if room < max_tokens:
        tight = sum(length + max_tokens > context for _, length in lengths)
        found = f"{where}, which leaves {room} for an action of up to {max_tokens} ({tight} rows are so long)"
        do = "Raise rollout.context_length, shorten the prompts or lower rollout.max_tokens"
        return [Finding(what="the longest row has room for an action", found=found, do=do)]
    if max_steps > 1 and room < 2 * max_tokens:
        found = f"{where}, which leaves {room}: less than two actions of up to {max_tokens}"
        do = "Raise rollout.context_length, or use a context policy (env.context) that forgets"
        return [Finding(what="the longest row has room for two turns", found=found, do=do, severity="warning")]
    return []


def _some(entries: Sequence[str]) -> str:
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return ", ".join(entries[:_SHOWN]) + more
