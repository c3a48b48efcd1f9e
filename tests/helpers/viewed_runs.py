"""Run folders for the tests of the viewer, written by the code that writes those of real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agent_r1.config import load_config, to_yaml
from agent_r1.runs import RunFolder, write_trajectories
from agent_r1.runs.tracking import JsonlTracker
from agent_r1.types import Action, FailedAttempt, Group, Observation, Step, StopReason, Task, ToolCall, Trajectory

HOSTILE = (
    "<script>alert(1)</script> </script><!-- \x1b[31m \u202e \x00 \ud800 ' \" \\ & \u2028 <img src=x onerror=alert(2)>"
)
"""What a model may write: markup, terminal codes, right-to-left marks, NUL, half a character, line separators."""


def make_step(
    text: str,
    *,
    question: str = "What does an egg cost?",
    before: Sequence[Step] = (),
    tool: str | None = None,
    result: str | None = None,
    ids: Sequence[int] = (7, 8, 9),
    reward: float = 0.0,
    **action: Any,
) -> Step:
    """A step after others: the history, `result` as what a tool said to the last call, and an action."""
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": question}]
    for step in before:
        messages = [*(step.observation.messages or ()), step.action.as_message()]
    if before and result is not None:
        messages.append({"role": "tool", "name": "price", "tool_call_id": "c0", "content": result})
    prompt = (*before[-1].prompt_ids, *before[-1].action_ids, 2, 3) if before else (0, 1)
    calls = (ToolCall(name=tool, arguments={"item": "egg"}, call_id="c0"),) if tool else ()
    return Step(
        observation=Observation(messages=tuple(messages), tools=({"type": "function", "function": {"name": "price"}},)),
        prompt_ids=prompt,
        action=Action(text=text, content=text, token_ids=tuple(ids), tool_calls=calls, **action),
        action_ids=tuple(ids),
        rollout_logprobs=tuple(-0.1 * (i + 1) for i in range(len(ids))),
        reward=reward,
        done=tool is None,
        policy_versions=(4,) * len(ids),
        info={"metrics": {"tool/price/calls": 1}},
        timings={"generate": 0.5, "env": 0.1},
    )


def make_trajectory(
    *texts: str,
    group: int = 0,
    member: int = 0,
    task: str = "task-0",
    reward: float = 0.0,
    tool: str | None = "price",
    stop_reason: StopReason = StopReason.DONE,
    question: str = "What does an egg cost?",
    result: str = "3",
    **fields: Any,
) -> Trajectory:
    """One trajectory: every text but the last calls the tool."""
    steps: list[Step] = []
    for index, text in enumerate(texts):
        called = tool if index + 1 < len(texts) else None
        steps.append(make_step(text, question=question, before=steps, tool=called, result=result))
    return Trajectory(
        task_id=task,
        group_id=group,
        member=member,
        steps=tuple(steps),
        outcome_reward=reward,
        stop_reason=stop_reason,
        **fields,
    )


def make_group(group: int, trajectories: Sequence[Trajectory], question: str = "What does an egg cost?") -> Group:
    """The group of some trajectories."""
    task = Task(task_id=trajectories[0].task_id, prompt=({"role": "user", "content": question},))
    return Group(task=task, group_id=group, trajectories=tuple(trajectories))


@cache
def config_text(overrides: tuple[str, ...]) -> str:
    """A configuration of these overrides, as a run writes it."""
    return to_yaml(load_config(None, ["model.path=org/base", *overrides]))


class WrittenRun:
    """A run folder that grows."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.path = folder
        self.folder = RunFolder(folder)
        folder.mkdir(parents=True)
        self.folder.config.write_text(config_text(overrides))
        self.folder.metrics.touch()

    def log(self, step: int, **metrics: float) -> None:
        """Append a line of metrics; `reward__outcome=1` is `reward/outcome`."""
        tracker = JsonlTracker(self.folder.metrics)
        tracker.log(step, {name.replace("__", "/"): value for name, value in metrics.items()})
        tracker.close()

    def write(self, step: int | str, *groups: Group) -> Path:
        """Write the rollouts of a training step, or of the evaluation of this name."""
        is_step = isinstance(step, int)
        path = self.folder.step_trajectories(step) if is_step else self.folder.eval_trajectories(str(step))
        write_trajectories(path, groups, policy_step=step - 1 if is_step else 0)
        return path


def shop_run(folder: Path, *overrides: str) -> WrittenRun:
    """A run with three steps and an evaluation: all tools, rewards and stop reasons that the tests filter by."""
    run = WrittenRun(folder, *overrides)
    run.log(0, **{"eval/all/greedy": 0.25, "eval/all/rows": 4.0})
    for step in (1, 2, 3):
        run.log(step, reward__outcome=0.1 * step, time__step=30.0)
        groups = []
        for group in (0, 1):
            question = f"What do {group + 2} eggs cost?"
            members = [
                make_trajectory(
                    "let me look",
                    f"the price is {member}",
                    group=group,
                    member=member,
                    task=f"task-{group}",
                    reward=float(member == 1),
                    tool="price" if member < 2 else "calculate",
                    stop_reason=StopReason.MAX_STEPS if member == 2 else StopReason.DONE,
                    question=question,
                )
                for member in range(3)
            ]
            groups.append(make_group(group, members, question))
        run.write(step, *groups)
    run.write("before", make_group(0, [make_trajectory("four", task="held-out", tool=None)]))
    failed = make_trajectory(
        task="task-9",
        stop_reason=StopReason.ENV_ERROR,
        error="Traceback: the shop burnt down",
        num_retries=1,
        failed_attempts=(FailedAttempt(stop_reason=StopReason.ENV_ERROR, error="Traceback: smoke", num_steps=1),),
    )
    run.write(4, make_group(0, [failed]))
    run.log(4, reward__outcome=0.4, time__step=30.0)
    return run
