"""Run folders with tokens and credit for the tests of the viewer's page, and the command that serves them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1.codec import write_json
from agent_r1.runs import write_credit, write_trajectories
from agent_r1.types import (
    Action,
    FailedAttempt,
    Group,
    Observation,
    Step,
    StepCredit,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    TrajectoryCredit,
)

ROOT = Path(__file__).parents[2]
ITEMS = ("egg", "tea", "honey", "salt")


class Words:
    """A vocabulary that grows with what is written: each piece of text is a token."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, *pieces: str) -> tuple[int, ...]:
        """The ids of pieces of text."""
        return tuple(self.ids.setdefault(piece, len(self.ids)) for piece in pieces)

    def save(self, folder: Path) -> None:
        """Write it as a tokenizer.json."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": self.ids}, "added_tokens": []}))


class MadeRun:
    """A run folder that is written step by step."""

    def __init__(self, folder: Path, *, seed: int = 0, **settings: Any) -> None:
        self.folder = folder
        self.words = Words()
        (folder / "trajectories").mkdir(parents=True)
        config = {"trainer": {"steps": 20, "seed": seed}, "model": {"path": "tiny"}, "algorithm": {"preset": "grpo"}}
        (folder / "config.yaml").write_text(json.dumps(config | settings | {"run": {"name": folder.name}}))

    def log(self, step: int, **values: float) -> None:
        """Write one line of metrics."""
        shown = {"step": step, "reward/success": min(1.0, step / 10), "reward/outcome": min(1.0, step / 10)}
        shown |= {"policy/entropy": 1.0 / (1 + step), "episode/tool_calls": 2.0, "time/step": 30.0}
        line = shown | {name.replace("__", "/"): value for name, value in values.items()}
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(write_json(line) + "\n")

    def roll_out(self, step: int, *, groups: int = 2, members: int = 4) -> None:
        """Write the trajectories of a step: each member is right when its number is less than the step."""
        made = [self.group(step, number, members) for number in range(groups)]
        self.write(step, made)

    def write(self, step: int, groups: Sequence[Group]) -> None:
        """Write the trajectories of a step, and the tokens they need."""
        self.words.save(self.folder / "hf")
        write_trajectories(self.folder / "trajectories" / f"{step}.jsonl", groups, policy_step=step)

    def learn(self, step: int, groups: Sequence[Group]) -> None:
        """Write what a learner made of these groups: the first token of an action is bad, the others are good."""
        (self.folder / "credit").mkdir(exist_ok=True)
        credits = [
            TrajectoryCredit(
                group_id=rollout.group_id,
                member=rollout.member,
                steps=tuple(credit_of(len(taken.action_ids)) for taken in rollout.steps),
            )
            for group in groups
            for rollout in group
        ]
        write_credit(self.folder / "credit" / f"{step}.jsonl", credits)

    def group(self, step: int, number: int, members: int) -> Group:
        """The rollouts of one task."""
        item = ITEMS[number % len(ITEMS)]
        prompt = ({"role": "user", "content": f"What do {step} {item} cost?"},)
        task = Task(task_id=f"task-{number}", prompt=prompt)
        rollouts = [self.trajectory(task, number, member, item, is_right=member < step) for member in range(members)]
        return Group(task=task, group_id=number, trajectories=tuple(rollouts))

    def trajectory(self, task: Task, group: int, member: int, item: str, *, is_right: bool) -> Trajectory:
        """A call of a tool, and an answer."""
        call = f'{{"name": "price", "arguments": {{"item": "{item}"}}}}'
        first = self.step(
            task.prompt,
            ("<tool_call>", call, "</tool_call>"),
            calls=(ToolCall(name="price", arguments={"item": item}),),
        )
        first = replace(first, reward=0.1)
        answer = "12" if is_right else f"{member}"
        history = (*task.prompt, first.action.as_message(), {"role": "tool", "name": "price", "content": "4"})
        last = replace(self.step(history, (answer, "<end>"), before=first), done=True)
        return Trajectory(
            task_id=task.task_id,
            group_id=group,
            member=member,
            steps=(first, last),
            outcome_reward=float(is_right),
            stop_reason=StopReason.DONE,
            vote=answer,
        )

    def step(
        self,
        messages: Sequence[Any],
        pieces: Sequence[str],
        *,
        before: Step | None = None,
        calls: tuple[ToolCall, ...] = (),
        **action: Any,
    ) -> Step:
        """One step: the prompt is one token per message, the action one per piece."""
        known = before.prompt_ids + before.action_ids if before else ()
        new = messages[-1:] if before else messages
        prompt = known + self.words.encode(*(str(message["content"]) for message in new), "<model>")
        ids = self.words.encode(*pieces)
        text = "".join(pieces)
        return Step(
            observation=Observation(messages=tuple(messages)),
            prompt_ids=prompt,
            action=Action(text=text, content=text, token_ids=ids, tool_calls=calls, **action),
            action_ids=ids,
            rollout_logprobs=tuple(-0.5 * (i + 1) for i in range(len(ids))),
            reward=0.0,
            done=False,
            policy_versions=(0,) * len(ids),
            timings={"generate": 0.25},
        )

    def finish(self, warnings: Sequence[str] = ()) -> None:
        """Write the summary."""
        (self.folder / "summary.json").write_text(json.dumps({"warnings": list(warnings)}))


def credit_of(length: int) -> StepCredit:
    """The credit of a step: advantages from -1 up, a ratio of 1 for the first token and more for the others."""
    return StepCredit(
        reward=0.5,
        observed_return=1.5,
        advantages=tuple(i - 1.0 for i in range(length)),
        values=(),
        old_logprobs=(-1.0,) * length,
        logprobs=tuple(-1.0 + 0.1 * i for i in range(length)),
        entropies=tuple(0.5 * (i + 1) for i in range(length)),
    )


def failed_trajectory(trajectory: Trajectory, traceback: str) -> Trajectory:
    """The same rollout, had it failed after its first step."""
    return replace(
        trajectory,
        steps=trajectory.steps[:1],
        outcome_reward=0.0,
        stop_reason=StopReason.ENV_ERROR,
        error=traceback,
        num_retries=1,
        failed_attempts=(FailedAttempt(stop_reason=StopReason.TOOL_ERROR, error="first " + traceback, num_steps=1),),
    )


def made_run(folder: Path, *, steps: int = 6, **settings: Any) -> MadeRun:
    """A finished run in which everything goes well."""
    run = MadeRun(folder, **settings)
    for step in range(1, steps + 1):
        run.log(step)
        run.roll_out(step)
    run.finish()
    return run


@contextmanager
def served(*folders: Path) -> Iterator[str]:
    """The address of `agent-r1 view` on these folders, in a process of its own."""
    command = [sys.executable, "-m", "agent_r1.cli", "view", *map(str, folders), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        announced = process.stdout.readline()
        found = re.search(r"http://\S+", announced)
        assert found, f"agent-r1 view announced no address: {announced!r}"
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
