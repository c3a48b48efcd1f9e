"""`env=verifiers:NAME`: an installed environment of the library `verifiers`, with its data set, tools and rubric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_r1.constraints import Count, CountOrZero
from agent_r1.envs.ready.base import ReadyEnv, env_kinds
from agent_r1.envs.ready.verifiers_env import load_verifiers, prompt_of
from agent_r1.errors import ConfigError
from agent_r1.types import Task

_MAX_HELD_OUT = 0.2
"""The largest share of the training examples that is held out when there is no data set for evaluation."""


@env_kinds.register("verifiers")
def verifiers(
    name: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    tasks: Count | None = None,
    eval_tasks: CountOrZero = 100,
) -> ReadyEnv:
    """The environment that `load_environment(**arguments)` of the module NAME returns.

    `tasks` takes the first examples of its data set; without it all are used. Held-out tasks come from its data set for
    evaluation, or else from the end of the other one.
    """
    load_arguments = dict(arguments or {})
    env = load_verifiers(name, load_arguments)
    if env.build_dataset() is None:
        raise ConfigError(f"verifiers:{name} has no data set to train on, only one for evaluation")
    examples = list(env.get_dataset())
    eval_dataset = env.build_eval_dataset()
    num_held_out = min(eval_tasks, int(len(examples) * _MAX_HELD_OUT)) if eval_dataset is None else 0
    last = len(examples) - num_held_out
    train = [_row(name, "train", index, examples[index]) for index in range(min(last, tasks or last))]
    if eval_dataset is None:
        held_out = [_row(name, "train", index, examples[index]) for index in range(last, len(examples))]
    else:
        held_out = [_row(name, "eval", index, example) for index, example in enumerate(eval_dataset)]
    train_prompts = {str(task.prompt) for task in train}
    held_out = [task for task in held_out if str(task.prompt) not in train_prompts][:eval_tasks]
    return ReadyEnv(
        env={"name": "verifiers", "environment": name, **({"arguments": load_arguments} if load_arguments else {})},
        train=train,
        eval=held_out,
        reward="verifiers",
    )


def _row(name: str, split: str, index: int, example: Mapping[str, Any]) -> Task:
    truth = example.get("answer")
    return Task(
        task_id=f"{name}-{split}-{index}",
        prompt=prompt_of(example),
        reward_model={"style": "verifiers", **({} if truth is None else {"ground_truth": truth})},
        env_kwargs={"split": split, "index": index},
        data_source=name,
    )
