"""Images for a model that sees none, video and audio: each way to a prompt refuses them by name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import agent_r1
from agent_r1.chat import ChatRenderer
from agent_r1.data.demonstrations import load_demonstrations
from agent_r1.data.tasks import load_tasks
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv, check_env
from agent_r1.errors import DataError, UnsupportedMediaError
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.types import Action, Message, Observation, SamplingParams, StepResult, StopReason, Task, media_in

TEXT = {"type": "text", "text": "What is this?"}
PARTS: list[dict[str, Any]] = [
    {"type": "image", "image": b"png"},
    {"type": "image", "url": "http://x/y.png"},
    {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
    {"type": "input_image", "image_url": "http://x/y.png"},
    {"image": "y.png"},
    {"type": "video", "video": "y.mp4"},
    {"type": "input_audio", "input_audio": {"data": ""}},
]


def asked(part: dict[str, Any]) -> tuple[Message, ...]:
    return ({"role": "user", "content": [part, TEXT]},)


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_content_part_that_is_not_text_is_found(part: dict[str, Any]) -> None:
    assert len(media_in(asked(part))) == 1


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user", "content": "an image"}], [{"role": "user", "content": [TEXT, {**TEXT, "image": None}]}],
     [{"role": "tool", "content": None, "name": "image"}], [3, None]],
)  # fmt: skip
def test_text_about_images_is_text(messages: list[Any]) -> None:
    assert media_in(messages) == []


def test_a_message_may_hold_its_images_beside_its_text() -> None:
    assert media_in([{"role": "user", "content": "what?", "images": ["y.png"]}]) == ["image"]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_prompt_with_one_is_refused(renderer: ChatRenderer, part: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedMediaError, match=r"this model does not see|no model of Agent-R1 reads"):
        renderer.render(Observation(messages=asked(part)))


@pytest.mark.parametrize(
    "form", [{"messages": ({"role": "user", "content": "?"},)}, {"text": "?"}, {"token_ids": (1,)}]
)
def test_an_observation_with_images_is_refused(renderer: ChatRenderer, form: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedMediaError, match="the observation holds image content"):
        renderer.render(Observation(**form, images=(b"png",)))


def test_an_image_in_a_later_turn_is_refused_also_where_the_prompt_is_bridged(renderer: ChatRenderer) -> None:
    first = renderer.render(Observation(messages=({"role": "user", "content": "Go."},)))
    action = renderer.parse([*renderer.encode("Yes."), renderer.stop_ids[0]], truncated=False)
    messages = (*(first.observation.messages or ()), action.as_message(), *asked(PARTS[0]))
    with pytest.raises(UnsupportedMediaError):
        renderer.next_prompt(first, action, Observation(messages=messages))


def test_rows_with_video_or_audio_are_refused_all_at_once(tmp_path: Path) -> None:
    rows = [
        {"prompt": "text"},
        {"prompt": [{"role": "user", "content": [{"type": "video", "video": "y.mp4"}, TEXT]}]},
        {"prompt": "What is this?", "audio": {"path": "y.wav"}},
        {"prompt": "no video", "videos": []},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError) as refused:
        load_tasks([file])
    told = [line for line in str(refused.value).splitlines() if " content, which no model" in line]
    assert ["row 1: the row holds video" in told[0], "row 2: the row holds audio" in told[1], len(told)] == [
        True
    ] * 2 + [2]


def test_demonstrations_with_images_are_refused(tmp_path: Path, renderer: ChatRenderer) -> None:
    messages = [
        {"role": "user", "content": [{"type": "image", "image": "y.png"}]},
        {"role": "assistant", "content": "a dot"},
    ]
    Image.new("RGB", (2, 2)).save(tmp_path / "y.png")
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": messages}) + "\n")
    with pytest.raises(DataError, match="row 0: the observation holds image content"):
        load_demonstrations([file], renderer)


class Shows(AgentEnv):
    async def reset(self, task: Task) -> Observation:
        return Observation(messages=task.prompt, images=(Image.new("RGB", (2, 2)),))

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=None, done=True)


TASK = Task(task_id="t", prompt=({"role": "user", "content": "Go."},))


def test_an_environment_that_shows_an_image_fails_its_rollout_by_name(renderer: ChatRenderer) -> None:
    rollout = Rollout(
        engine=ScriptedEngine([]),
        renderer=renderer,
        reward=lambda task, episode: 1.0,
        make_env=lambda task: Shows(),
        limits=RolloutLimits(retries=0, group_refills=0),
    )
    running = rollout.run([TASK], group_size=1, sampling=SamplingParams(), seed=0, may_fail=True)
    [trajectory] = asyncio.run(running)[0].trajectories
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "the observation holds image content" in (trajectory.error or "")


def test_check_env_finds_images_that_cannot_be_read_and_media_that_no_model_reads() -> None:
    class Broken(Shows):
        async def reset(self, task: Task) -> Observation:
            return Observation(messages=task.prompt, images=(b"png",))

    class Plays(Shows):
        async def reset(self, task: Task) -> Observation:
            return Observation(messages=(*task.prompt, {"role": "user", "content": [{"type": "video", "video": "y"}]}))

    found = [[finding.rule for finding in check_env(make, TASK)] for make in (Shows, Broken, Plays)]
    assert found == [[], ["images can be read"], ["observations are text and images"]]


def test_the_error_is_part_of_the_tree() -> None:
    assert issubclass(UnsupportedMediaError, agent_r1.AgentR1Error)
