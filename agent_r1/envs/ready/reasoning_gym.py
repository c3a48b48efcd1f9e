"""`env=reasoning_gym:leg_counting`: questions of a data set of reasoning-gym, scored by its own scorer.

A row holds what makes its question again (data set, configuration, seed, index), because the scorer needs the whole
entry. Several scorers evaluate the answer as Python; they get only answers that are harmless to evaluate
(`answer_guards.py`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from agent_r1.codec import read_json, write_json
from agent_r1.constraints import Count, CountOrZero, Seed
from agent_r1.envs.context import strip_thinking
from agent_r1.envs.ready.answer_guards import guard_of
from agent_r1.envs.ready.base import ReadyEnv, env_kinds
from agent_r1.errors import ConfigError, DataError, UnknownNameError, did_you_mean, require_installed
from agent_r1.rewards import RewardValue, reward_functions
from agent_r1.types import Episode, Task

INSTRUCTIONS = "Answer the question. Think first if you need to, then give the final answer as <answer>...</answer>."

_SEED_STEP, _EVAL_OFFSET = 1_000_000, 2**30
"""An entry is made from the data set's seed plus its index, so ranges of seeds must not overlap."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@env_kinds.register("reasoning_gym")
def reasoning_gym(
    name: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    tasks: Count = 1000,
    eval_tasks: CountOrZero = 100,
    seed: Seed = 0,
    instructions: str = INSTRUCTIONS,
    tools: Sequence[Any] = (),
    levels: Sequence[Mapping[str, Any]] = (),
) -> ReadyEnv:
    """A data set by its name, with `arguments` as its configuration.

    `instructions` is the system message. With `tools`, the model may call them before it answers. `levels` are further
    arguments of each level of a curriculum, the easiest first: the tasks are spread over them.
    """
    require_installed("reasoning_gym", "reasoning-gym", "reasoning-gym", "env=reasoning_gym:...")
    configs = [{**(arguments or {}), **level} for level in levels or ({},)]
    reserved = sorted({"size", "seed"} & {key for config in configs for key in config})
    if reserved:
        raise ConfigError(f"env.arguments.{reserved[0]} is set by env.tasks, env.eval_tasks and env.seed")
    first = seed * _SEED_STEP % _EVAL_OFFSET
    train = _rows_by_level(name, "train", configs, first, tasks, set())
    questions = {str(task.prompt[-1]["content"]) for task in train}
    held_out = _rows_by_level(name, "eval", configs, first + _EVAL_OFFSET, eval_tasks, questions)
    if eval_tasks and not held_out:
        raise ConfigError(
            f"reasoning_gym:{name} has no question left for env.eval_tasks={eval_tasks}: env.tasks={tasks} holds all "
            "of them. Lower env.tasks, or set env.eval_tasks=0"
        )
    flow = "env_loop" if tools else "single_step"
    section = {"name": "tool", "tools": list(tools)} if tools else {"name": "tool"}

    def rows(chosen: Sequence[Task]) -> list[Task]:
        return [
            Task(
                task_id=task.task_id,
                prompt=({"role": "system", "content": instructions}, *task.prompt),
                agent_name=flow,
                reward_model=task.reward_model,
                difficulty=task.difficulty,
                data_source=name if task.difficulty is None else f"{name}-level{task.difficulty}",
            )
            for task in chosen
        ]

    return ReadyEnv(env=section, train=rows(train), eval=rows(held_out), reward="reasoning_gym")


def _rows_by_level(
    name: str, split: str, configs: Sequence[Mapping[str, Any]], seed: int, count: int, used_questions: set[str]
) -> list[Task]:
    """Tasks of a split, spread evenly over the levels."""
    if len(configs) == 1:
        return _rows(name, split, configs[0], seed, count * (4 if split == "eval" else 1), count, used_questions)
    tasks: list[Task] = []
    for level, config in enumerate(configs, start=1):
        share = count // len(configs) + (level <= count % len(configs))
        size = share * (4 if split == "eval" else 1)
        rows = _rows(name, split, config, seed, size, share, used_questions)
        tasks += [replace(row, task_id=f"{row.task_id}-level{level}", difficulty=level) for row in rows]
    return tasks


def _rows(
    name: str, split: str, config: Mapping[str, Any], seed: int, size: int, count: int, used_questions: set[str]
) -> list[Task]:
    """Tasks from the first `count` entries whose question is not taken. A question stands in each split once."""
    if not count:
        return []
    text = write_json(config)
    data, again = _dataset(name, text, seed, size), _dataset.__wrapped__(name, text, seed, size)
    seen = set(used_questions)
    tasks: list[Task] = []
    for index in range(size):
        entry = data[index]
        question = str(entry["question"])
        if len(tasks) < 3 and again[index]["question"] != question:
            raise ConfigError(
                f"reasoning_gym:{name} gives another question for the same seed each time, so that answers could not "
                "be scored; choose another data set"
            )
        if split == "eval" and question in seen:
            continue
        seen.add(question)
        truth = entry["answer"]
        tasks.append(
            Task(
                task_id=f"{name}-{split}-{len(tasks)}",
                prompt=({"role": "user", "content": question},),
                reward_model={
                    "style": "reasoning_gym",
                    "dataset": name,
                    "config": text,
                    "seed": seed,
                    "size": size,
                    "index": index,
                    **({} if truth is None else {"ground_truth": str(truth)}),
                },
            )
        )
        if len(tasks) == count:
            break
    return tasks


@lru_cache(maxsize=32)
def _dataset(name: str, config: str, seed: int, size: int) -> Any:
    """A data set; errors of its configuration name the keys it has."""
    import dataclasses

    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # shown when its files are first compiled
        from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        raise UnknownNameError(f"reasoning-gym has no data set '{name}'. {did_you_mean(name, DATASETS)}")
    guard_of(name, DATASETS[name][0])
    try:
        return create_dataset(name, **read_json(config), seed=seed, size=size)
    except (TypeError, ValueError, AssertionError, AttributeError, LookupError) as error:
        keys = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in ("seed", "size")]
        raise ConfigError(
            f"reasoning_gym:{name} cannot be made with {config}: {error}. The keys of env.arguments: {', '.join(keys)}"
        ) from error


@reward_functions.register("reasoning_gym")
def reasoning_gym_score(task: Task, episode: Episode) -> RewardValue:
    """The score that the task's data set gives the answer: the last `<answer>`, or the whole answer without one."""
    row = task.reward_model
    try:
        key = (str(row["dataset"]), str(row["config"]), int(row["seed"]), int(row["size"]))
        index = int(row["index"])
    except (KeyError, TypeError, ValueError):
        raise DataError(
            f"task '{task.task_id}' is no row of reasoning-gym: its reward_model has no dataset, config, seed, size "
            "and index. Rows of your own need a reward of their own: reward.function=..."
        ) from None
    require_installed("reasoning_gym", "reasoning-gym", "reasoning-gym", "the reward 'reasoning_gym'")
    data = _dataset(*key)
    entry = data[index]
    if str(entry["question"]) != task.prompt[-1]["content"]:
        raise DataError(
            f"task '{task.task_id}' has another question than reasoning-gym makes for it: its rows are of another "
            "version. Start the run again, so that they are made again"
        )
    text = strip_thinking(episode.answer)
    tagged = _ANSWER.findall(text)
    answer = (tagged[-1] if tagged else text).strip()
    kind: Any = type(data)
    guard = guard_of(key[0], kind)
    is_scored = bool(answer) and (answer == entry["answer"] or guard(answer))
    score = float(data.score_answer(answer, entry)) if is_scored else 0.0
    return {"score": score, "success": float(score >= 1.0), "answer": answer}
