"""Checks of the rows: ground truths are there, gold answers score full marks and wrong ones do not, prompts fit.

Only the recipe knows what a perfect answer looks like. A function `gold_answer(task)` beside the reward function
returns it: the text of the last action. Without it the ground truth is tried as it is and in the usual forms
(`#### 12`, `\\boxed{12}`, `<answer>12</answer>`), and the form that scores is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent_r1.chat import ChatRenderer
from agent_r1.codec import read_json
from agent_r1.errors import EpisodeError, boundary
from agent_r1.findings import Finding
from agent_r1.rewards import (
    RewardFunction,
    accepted_answers,
    no_outcome_reward,
    normalise_text,
    row_problem,
    score_episode,
    truth_problem,
)
from agent_r1.types import Action, Episode, Message, Observation, Step, StopReason, Task

GoldAnswer = Callable[[Task], str]

_TRIED_ROWS = 20
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldResult:
    """How gold answers and wrong answers scored."""

    findings: tuple[Finding, ...]
    seen: str
    skipped: bool = False


def answer_episode(text: str, *, cut: bool = False) -> Episode:
    """An episode of one action with this text that ends, or is cut by the token limit right after it."""
    step = Step(
        observation=Observation(messages=()),
        prompt_ids=(),
        action=Action(text=text, content=text, parse_error="The answer was cut by the length limit." if cut else None),
        action_ids=(),
        rollout_logprobs=(),
        reward=0.0,
        done=not cut,
        policy_versions=(),
    )
    return Episode(steps=(step,), stop_reason=StopReason.MAX_TOKENS if cut else StopReason.DONE)


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


def truth_findings(reward: RewardFunction, tasks: Sequence[Task]) -> list[Finding]:
    """Rows without a ground truth among rows that have one, and ground truths that are empty without punctuation.

    A missing ground truth is a problem if the reward function declares `needs_ground_truth`, otherwise a warning.
    """
    missing, empty = [], []
    for task in tasks:
        problem = row_problem(reward, task)
        if problem is not None:
            missing.append(f"'{task.task_id}' ({problem})")
        elif truth_problem(task.ground_truth, "exact") is not None:
            missing.append(f"'{task.task_id}'")
        elif not any(map(normalise_text, accepted_answers(task.ground_truth))):
            empty.append(f"'{task.task_id}' ({task.ground_truth!r:.40})")
    findings = []
    declared = getattr(reward, "needs_ground_truth", None) is not None
    if missing and (declared or len(missing) < len(tasks)):
        observed = f"{len(missing)} of {len(tasks)} rows have none that the reward can use: {_some(missing)}"
        fix = "Give each row a reward_model.ground_truth, or leave it out: no answer to it can be right"
        findings.append(
            Finding(
                rule="every row has a ground truth",
                observed=observed,
                fix=fix,
                severity="problem" if declared else "warning",
            )
        )
    if empty:
        observed = f"{len(empty)} of {len(tasks)} ground truths are only punctuation: {_some(empty)}"
        fix = "exact_match never matches them; compare with same_text, or leave them out"
        findings.append(
            Finding(rule="a ground truth has a normal form", observed=observed, fix=fix, severity="warning")
        )
    return findings


async def gold_result(reward: RewardFunction, tasks: Sequence[Task]) -> GoldResult:
    """Score the gold answer of every row, and answers that must not score: the gold answer of another row, an empty
    answer, and a gold answer that was cut."""
    recipe_form = own_form(reward)
    if reward is no_outcome_reward:
        return GoldResult(findings=(), seen="all reward comes from the environment", skipped=True)
    findings = truth_findings(reward, tasks)
    with_truth = [
        task for task in tasks if recipe_form is not None or truth_problem(task.ground_truth, "exact") is None
    ]
    with_truth = [task for task in with_truth if row_problem(reward, task) is None]
    if not with_truth:
        seen = "no row has a ground truth"
        return GoldResult(findings=tuple(findings), seen=seen, skipped=not findings)
    name, form = "gold_answer", recipe_form
    if form is None:
        name, form = await _best_form(reward, with_truth[:_TRIED_ROWS])
    if form is None:
        observed = f"none of {', '.join(USUAL_FORMS)} scores full marks on the first rows"
        fix = "Write gold_answer(task) beside the reward function: the text a perfect last action has"
        truth = with_truth[0].ground_truth
        if isinstance(truth, int | float):
            observed += f". The ground truth {truth!r} is a number, and episode.answer is text: they are never equal"
            fix = f"Compare with str(task.ground_truth), or with number_matches. If the reward does: {fix}"
        findings.append(Finding(rule="gold answers score full marks", observed=observed, fix=fix, severity="warning"))
        return GoldResult(findings=tuple(findings), seen="")
    try:
        with boundary(StopReason.REWARD_ERROR, "gold_answer"):
            texts = [form(task) for task in with_truth]
    except EpisodeError as error:
        findings.append(Finding(rule="gold_answer returns a text", observed=str(error), fix="Fix gold_answer"))
        return GoldResult(findings=tuple(findings), seen="")
    scored, seen = await _scores(reward, with_truth, texts, name)
    return GoldResult(findings=(*findings, *scored), seen=seen)


async def _scores(
    reward: RewardFunction, tasks: Sequence[Task], texts: Sequence[str], name: str
) -> tuple[list[Finding], str]:
    pairs = list(zip(tasks, texts, strict=True))
    missed = [f"'{task.task_id}'" for task, text in pairs if not await _full(reward, task, text)]
    wrong = [(task, await _wrong_answer(reward, tasks, texts, index)) for index, task in enumerate(tasks)]
    fooled = [f"'{task.task_id}' ({answer!r})" for task, answer in wrong if answer is not None]
    cut = [f"'{task.task_id}'" for task, text in pairs[:_TRIED_ROWS] if await _full(reward, task, text, cut=True)]
    findings = []
    if missed:
        observed = f"{len(missed)} of {len(tasks)} rows do not give full marks to {name}: {_some(missed)}"
        findings.append(
            Finding(rule="gold answers score full marks", observed=observed, fix="Fix the rows or the reward function")
        )
    if fooled:
        observed = f"{len(fooled)} rows give full marks to a wrong answer: {_some(fooled)}"
        findings.append(
            Finding(rule="wrong answers do not", observed=observed, fix="Make the reward function stricter")
        )
    if cut and not fooled:
        observed = f"{len(cut)} of the first {len(pairs[:_TRIED_ROWS])} rows give full marks to one: {_some(cut)}"
        fix = "Read episode.answer, not episode.final_text: it is empty when the last turn was cut or calls a tool"
        findings.append(
            Finding(rule="an answer that was cut does not score", observed=observed, fix=fix, severity="warning")
        )
    seen = f"{len(tasks) - len(missed)} of {len(tasks)} gold answers ({name}) score full marks"
    return findings, f"{seen}, {len(fooled)} wrong ones do"


async def _best_form(reward: RewardFunction, tasks: Sequence[Task]) -> tuple[str, GoldAnswer | None]:
    counts = {
        name: sum([await _full(reward, task, form(task)) for task in tasks]) for name, form in USUAL_FORMS.items()
    }
    best = max(counts, key=lambda name: counts[name])
    return best, USUAL_FORMS[best] if counts[best] else None


async def _wrong_answer(reward: RewardFunction, tasks: Sequence[Task], texts: Sequence[str], index: int) -> str | None:
    """A wrong answer to a row that gets full marks; None when there is none. Tried are an empty one, and the gold
    answer of the next row with another ground truth.

    Two rows that accept each other's gold answer may have the same answer, written in two ways ($8.0 million, and 8000
    thousand). Then a third row's answer decides: a reward that takes everything takes that too.
    """
    task = tasks[index]
    if await _full(reward, task, ""):
        return ""
    nearby = (n % len(tasks) for n in range(index + 1, index + 1 + min(len(tasks) - 1, _TRIED_ROWS)))
    others = (n for n in nearby if _differs(task, tasks[n]))
    other = next(others, None)
    if other is None or not await _full(reward, task, texts[other]):
        return None
    if await _full(reward, tasks[other], texts[index]):
        third = next((n for n in others if _differs(tasks[other], tasks[n])), None)
        if third is not None and not await _full(reward, task, texts[third]):
            return None
    return texts[other]


def _differs(one: Task, other: Task) -> bool:
    """Neither answer may be among the other's: rows may share aliases."""
    left, right = _truths(one), _truths(other)
    return not left & right


def _truths(task: Task) -> set[str]:
    truth = task.ground_truth
    several = truth if isinstance(truth, list | tuple) else [truth]
    return {" ".join(str(entry).lower().split()) for entry in several}


async def _full(reward: RewardFunction, task: Task, text: str, *, cut: bool = False) -> bool:
    """Whether the answer gets full marks; a reward function that raises gives none, which trial episodes report."""
    try:
        score = await score_episode(reward, task, answer_episode(text, cut=cut))
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
        observed = f"{where}, which leaves {room} for an action of up to {max_tokens} ({tight} rows are so long)"
        fix = "Raise rollout.context_length, shorten the prompts or lower rollout.max_tokens"
        return [Finding(rule="the longest row has room for an action", observed=observed, fix=fix)]
    if max_steps > 1 and room < 2 * max_tokens:
        observed = f"{where}, which leaves {room}: less than two actions of up to {max_tokens}"
        fix = "Raise rollout.context_length, or use a context policy (env.context) that forgets"
        return [Finding(rule="the longest row has room for two turns", observed=observed, fix=fix, severity="warning")]
    return []


def prompt_findings(tasks: Sequence[Task]) -> list[Finding]:
    """Prompts that a model would take for something else: a conversation that the model has ended already, which may
    hold the answer, and messages that were written as text."""
    ended = [f"'{task.task_id}'" for task in tasks if task.prompt and task.prompt[-1].get("role") == "assistant"]
    written = [f"'{task.task_id}'" for task in tasks if _is_written(task.prompt)]
    findings = []
    if ended:
        observed = f"{len(ended)} of {len(tasks)} prompts end with a turn of the assistant: {_some(ended)}"
        fix = "Leave that turn out: the model is shown it, and begins a turn of its own after it"
        findings.append(Finding(rule="a prompt ends before the model's turn", observed=observed, fix=fix))
    if written:
        observed = f"{len(written)} of {len(tasks)} prompts are messages written as JSON text: {_some(written)}"
        fix = "Give the messages themselves, json.loads(row['prompt']): the model is shown the brackets"
        findings.append(Finding(rule="a prompt is messages, or plain text", observed=observed, fix=fix))
    return [replace(finding, severity="warning") for finding in findings]


def _is_written(prompt: Sequence[Message]) -> bool:
    """Whether a prompt is one message whose text is JSON of messages."""
    text = prompt[0].get("content") if len(prompt) == 1 else None
    if not isinstance(text, str) or not text.lstrip().startswith("["):
        return False
    try:
        read = read_json(text)
    except ValueError:
        return False
    return isinstance(read, list) and all(isinstance(entry, dict) and "role" in entry for entry in read) and bool(read)


def control_token_findings(renderer: ChatRenderer, tasks: Sequence[Task]) -> list[Finding]:
    """Which rows have control tokens in their text although they do not set `control_tokens`."""
    named = []
    for task in tasks:
        tokens = [] if task.control_tokens else renderer.control_tokens.found_in(task.prompt)
        if tokens:
            named.append(f"'{task.task_id}' ({', '.join(tokens[:_SHOWN])})")
    if not named:
        return []
    observed = (
        f"{len(named)} rows have control tokens in their text, which the model reads as plain text: {_some(named)}"
    )
    fix = 'Nothing, when it is plain text; set "control_tokens": true in rows whose control tokens must count'
    return [Finding(rule="rows have no control tokens in their text", observed=observed, fix=fix, severity="warning")]


def _some(entries: Sequence[str]) -> str:
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return ", ".join(entries[:_SHOWN]) + more
