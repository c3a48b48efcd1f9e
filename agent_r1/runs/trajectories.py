"""Write trajectories without losing anything about a rollout, and read them back.

One JSON object per line and trajectory. A step's prompt mostly repeats the step before, so only the difference is
written: `shared` leading ids are those of the previous step's prompt and action, `prompt_ids` is the rest. Messages,
raw text and images are written the same way. `form` says which of messages, text and token ids the environment gave.

A picture is a file `images/<content hash>.png` beside the file of trajectories, written once, and a line refers to it:
`{"picture": <content hash>, "width", "height"}`. It is read when it is needed. The tokens of an image are one entry of
their prompt (`agent_r1/images/compact.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any, Self

from agent_r1.codec import (
    image_from_json,
    image_to_json,
    messages_to_json,
    observation_to_json,
    write_json_line,
)
from agent_r1.errors import AgentR1Error, DataError
from agent_r1.files import PreparedFile
from agent_r1.images import (
    Picture,
    PictureFolder,
    compact_ids,
    has_image_ids,
    picture_numbers,
    pictures_in,
)
from agent_r1.runs.trajectory_lines.observation_deltas import NOTHING_SEEN, observation_delta
from agent_r1.runs.trajectory_lines.reading import prompt_from_json, trajectory_from_json
from agent_r1.types import FailedAttempt, Group, Message, Step, Trajectory, common_prefix

_MAX_DEPTH, _MAX_BITS = 100, 10_000
"""Of what is recorded where JSON, or Python's limit of digits, refuses the whole."""
RESTS = 2.0
"""Time in which the encoding thread rests, in units of the time in which it works."""


def write_trajectories(path: Path, groups: Iterable[Group], *, policy_step: int) -> None:
    """Write all trajectories of a batch to one file, and their pictures beside it."""
    _Batch(groups, policy_step).prepare(path).publish()


def picture_folder(path: Path) -> PictureFolder:
    """Where the pictures of a file of trajectories are."""
    return PictureFolder(path.parent / "images")


class _Batch:
    """The lines of a batch, which refer to its pictures, and these."""

    def __init__(
        self, groups: Iterable[Group], policy_step: int, rest: Callable[[float], object] | None = None
    ) -> None:
        self._pictures: dict[str, Picture] = {}
        self._lines = trajectory_lines(groups, policy_step=policy_step, write_image=self._refer, rest=rest)

    def _refer(self, image: Any) -> Any:
        if not isinstance(image, Picture):
            return image_to_json(image)
        self._pictures[image.content_hash] = image
        return {"picture": image.content_hash, "width": image.width, "height": image.height}

    def prepare(self, path: Path) -> PreparedFile:
        """Write the file beside its place, after the pictures that are not there yet: no line refers to a missing
        one."""
        picture_folder(path).write(self._pictures.values())
        return PreparedFile(path, "".join(self._lines))


class PendingTrajectories:
    """The trajectories of a batch, encoded and written in a thread while others, such as the learner, work.

        with PendingTrajectories(groups, policy_step=3, path=path) as pending:
            ...                           # update the policy
            pending.publish()             # waits for the thread if it must

    The file is the one of `write_trajectories`. It is there from `publish` on; a batch that is never published leaves
    no trace but its pictures.

    Until `publish` is called, the thread rests after each trajectory: it would otherwise hold the interpreter's lock
    for milliseconds each time that the learner, which starts thousands of kernels, gives it up.
    """

    def __init__(self, groups: Sequence[Group], *, policy_step: int, path: Path) -> None:
        self._groups, self._policy_step, self._path = groups, policy_step, path
        self._is_awaited = Event()
        self._prepared = _recording_thread().submit(self._prepare)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_awaited.set()
        with suppress(Exception):  # what failed in the thread was raised by `publish`, or is not asked for
            self._prepared.result().discard()

    def publish(self) -> None:
        """Put the file in its place."""
        self._is_awaited.set()
        try:
            prepared = self._prepared.result()
        except Exception:  # noqa: BLE001 - what shares a record with this thread may change it; now nothing does
            prepared = self._prepare()
        prepared.publish()

    def _prepare(self) -> PreparedFile:
        batch = _Batch(self._groups, self._policy_step, rest=self._is_awaited.wait)
        return batch.prepare(self._path)


@cache
def _recording_thread() -> ThreadPoolExecutor:
    """One thread: batches are encoded in order."""
    return ThreadPoolExecutor(1, thread_name_prefix="record")


def trajectory_lines(
    groups: Iterable[Group],
    *,
    policy_step: int,
    write_image: Callable[[Any], Any] | None = None,
    rest: Callable[[float], object] | None = None,
) -> list[str]:
    """One line of JSON per trajectory, each with its line end. Pictures are in it as base64, unless `write_image` turns
    them into something else. `rest` is called after each line, with seconds."""
    lines: list[str] = []
    for group in groups:
        for trajectory in (*group, *filter(None, [group.greedy])):
            started = time.perf_counter()
            prompt = messages_to_json(group.task.prompt, write_image)
            entry = {"policy_step": policy_step, "prompt": prompt, **_as_json(trajectory, write_image)}
            lines.append(_line(entry))
            if rest is not None:
                rest(RESTS * (time.perf_counter() - started))
    return lines


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a file, with their exact tokens; `DataError` names the line that is none."""
    return (trajectory for _, trajectory in read_with_prompts(path))


def read_with_prompts(path: Path) -> Iterator[tuple[list[Message], Trajectory]]:
    """The trajectories of a file, each after the prompt of its task, in which pictures stay references."""
    pictures = picture_folder(path)

    def read_image(value: Any, where: str) -> Any:
        if isinstance(value, dict) and "picture" in value:
            return pictures.picture(value["picture"], value.get("width", 0), value.get("height", 0))
        return image_from_json(value, where)

    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                entry = json.loads(line)
                prompt, trajectory = prompt_from_json(entry), trajectory_from_json(entry, read_image)
            except AgentR1Error:  # it says what is wrong, such as a picture that is no content hash
                raise
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: not a trajectory ({type(error).__name__}: {error})") from error
            yield prompt, trajectory


def _line(entry: Mapping[str, Any]) -> str:
    """The entry as a line. What an environment notes may be nothing that JSON can hold, and must not end a run."""
    try:
        return write_json_line(entry, default=_in_words)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, a cycle, thousands of digits
        return write_json_line(_plain(entry), default=_in_words)


def _plain(value: Any, depth: int = 0) -> Any:
    """A value with text for keys, for integers of too many digits and for what is nested too deeply."""
    if isinstance(value, Mapping | list | tuple) and depth > _MAX_DEPTH:
        return f"<a {type(value).__name__} nested too deeply>"
    if isinstance(value, Mapping):
        return {_in_words(_plain_number(key)): _plain(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, depth + 1) for entry in value]
    return _plain_number(value)


def _plain_number(value: Any) -> Any:
    is_long = isinstance(value, int) and value.bit_length() > _MAX_BITS
    return f"<an integer of {value.bit_length():,} bits>" if is_long else value


def _as_json(trajectory: Trajectory, write_image: Callable[[Any], Any] | None) -> dict[str, Any]:
    ids_before: tuple[int, ...] = ()
    before = NOTHING_SEEN
    steps: list[dict[str, Any]] = []
    for step in trajectory.steps:
        shared = common_prefix(ids_before, step.prompt_ids)
        seen = observation_to_json(step.observation, write_image)
        steps.append(
            {
                "shared": shared,
                "prompt_ids": _new_ids(step, shared),
                **observation_delta(before, seen, step.prompt_ids),
                "text": step.action.text,
                "content": step.action.content,
                "tool_calls": [
                    {"name": call.name, "arguments": dict(call.arguments), "call_id": call.call_id}
                    for call in step.action.tool_calls
                ],
                "parse_error": step.action.parse_error,
                "repairs": step.action.repairs,
                "final_answer": step.action.final_answer,
                "history_text": step.action.history_text,
                "action_ids": step.action_ids,
                "rollout_logprobs": [round(value, 6) for value in step.rollout_logprobs],
                "reward": step.reward,
                "done": step.done,
                "policy_versions": step.policy_versions,
                "info": dict(step.info),
                "timings": {name: round(value, 6) for name, value in step.timings.items()},
                "parent": step.parent,
            }
        )
        ids_before, before = step.prompt_ids + step.action_ids, seen
    following = trajectory.next_prompt_ids
    return {
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "member": trajectory.member,
        "data_source": trajectory.data_source,
        "outcome_reward": trajectory.outcome_reward,
        "process_reward": trajectory.process_reward,
        "reward_parts": dict(trajectory.reward_parts),
        "vote": trajectory.vote,
        "stop_reason": str(trajectory.stop_reason),
        "next_prompt_ids": None if following is None else compact_ids(following),
        "next_privileged": trajectory.next_privileged,
        "error": trajectory.error,
        "num_retries": trajectory.num_retries,
        "failed_attempts": [_attempt_as_json(attempt) for attempt in trajectory.failed_attempts],
        "metrics": dict(trajectory.metrics),
        "given_answer": trajectory.given_answer,
        "posted_reward": trajectory.posted_reward,
        "steps": steps,
    }


def _attempt_as_json(attempt: FailedAttempt) -> dict[str, Any]:
    return {
        "stop_reason": str(attempt.stop_reason),
        "error": attempt.error,
        "num_steps": attempt.num_steps,
        "metrics": dict(attempt.metrics),
    }


def _new_ids(step: Step, shared: int) -> Sequence[Any]:
    """The ids of a prompt after the shared ones; runs of image tokens with the picture that they are."""
    new = step.prompt_ids[shared:]
    if not has_image_ids(new):
        return new
    hashes = (picture.content_hash for picture in pictures_in(step.observation.messages or ()))
    return compact_ids(new, picture_numbers(step.prompt_ids, hashes))


def _in_words(value: Any) -> str:
    """Text for a value that JSON cannot hold."""
    return f"<{len(value):,} bytes>" if isinstance(value, bytes) else str(value)
