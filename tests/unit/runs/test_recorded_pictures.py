"""Pictures in recorded trajectories: each is one file beside them, named by its content, and read when it is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent_r1 import load_trajectories
from agent_r1.codec import write_json
from agent_r1.errors import ImageError, StorageError
from agent_r1.images import Picture, image_token_ids, read_picture
from agent_r1.runs import PendingTrajectories, RunFolder, read_trajectories, trajectory_lines, write_trajectories
from agent_r1.runs import trajectories as recording
from agent_r1.types import Action, Group, Observation, Step, StopReason, Task, Trajectory


def picture_of(shade: int, size: int = 40) -> Picture:
    return read_picture(Image.radial_gradient("L").resize((size, size)).point(lambda value: (value + shade) % 256))


RED, BLUE = picture_of(10), picture_of(120)
RED_IDS, BLUE_IDS = image_token_ids(RED.content_hash, 64), image_token_ids(BLUE.content_hash, 64)


def part(picture: Picture) -> dict[str, Any]:
    return {"type": "image", "image": picture}


def step(messages: Sequence[Any], prompt_ids: tuple[int, ...], action_ids: tuple[int, ...] = (5,)) -> Step:
    return Step(
        observation=Observation(messages=tuple(messages)),
        prompt_ids=prompt_ids,
        action=Action(text="a", content="a", token_ids=action_ids),
        action_ids=action_ids,
        rollout_logprobs=(-0.5,) * len(action_ids),
        reward=0.0,
        done=False,
        policy_versions=(0,) * len(action_ids),
    )


def group_of(*pictures: Picture, members: int = 2) -> Group:
    """Members that look at the first picture, and then at each of the others."""
    ids = {RED.content_hash: RED_IDS, BLUE.content_hash: BLUE_IDS}
    asked = {"role": "user", "content": [part(pictures[0]), {"type": "text", "text": "What is this?"}]}
    messages: list[Any] = [asked]
    prompt = (1, *ids.get(pictures[0].content_hash, ()), 2)
    steps = [step(messages, prompt)]
    for picture in pictures[1:]:
        messages = [*messages, {"role": "assistant", "content": "a"}, {"role": "tool", "content": [part(picture)]}]
        prompt = (*prompt, 5, 3, *ids.get(picture.content_hash, ()), 4)
        steps.append(step(messages, prompt))
    rollouts = [
        Trajectory(
            task_id="t",
            group_id=0,
            member=member,
            steps=tuple(steps),
            outcome_reward=1.0,
            stop_reason=StopReason.MAX_STEPS,
            next_prompt_ids=(*prompt, 5, *RED_IDS),
        )
        for member in range(members)
    ]
    return Group(task=Task(task_id="t", prompt=(asked,)), group_id=0, trajectories=tuple(rollouts))


def files_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "images").iterdir()}


def test_each_picture_is_one_file_and_everything_reads_back(tmp_path: Path) -> None:
    group = group_of(RED, BLUE, RED)
    write_trajectories(tmp_path / "1.jsonl", [group], policy_step=0)
    assert files_in(tmp_path) == {f"{picture.content_hash}.png": picture.png() for picture in (RED, BLUE)}
    assert list(read_trajectories(tmp_path / "1.jsonl")) == list(group)
    assert [len(step.prompt_ids) for step in next(read_trajectories(tmp_path / "1.jsonl")).steps] == [66, 133, 200]


def test_image_tokens_cost_few_bytes_and_name_their_picture(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "1.jsonl", [group_of(RED, BLUE, members=1)], policy_step=0)
    line = json.loads((tmp_path / "1.jsonl").read_text())
    assert line["prompt"][0]["content"][0] == {
        "type": "image",
        "image": {"picture": RED.content_hash, "width": 40, "height": 40},
    }
    first, second = (entry["prompt_ids"] for entry in line["steps"])
    assert first == [1, {"image": RED_IDS[0], "tokens": 64, "picture": RED.content_hash}, 2]
    assert second == [3, {"image": BLUE_IDS[0], "tokens": 64, "picture": BLUE.content_hash}, 4]
    assert line["next_prompt_ids"][-1] == {"image": RED_IDS[0], "tokens": 64}


def test_a_picture_is_read_when_it_is_needed_and_not_before(tmp_path: Path) -> None:
    shown = picture_of(77)
    content, content_hash = shown.png(), shown.content_hash
    write_trajectories(tmp_path / "1.jsonl", [group_of(shown, members=1)], policy_step=0)
    del shown  # pictures with equal content share one object while one of them is alive
    file = tmp_path / "images" / f"{content_hash}.png"
    file.unlink()
    [read] = read_trajectories(tmp_path / "1.jsonl")
    found = read.steps[0].observation.messages[0]["content"][0]["image"]  # type: ignore[index]
    assert (found.content_hash, found.width, found.height) == (content_hash, 40, 40)
    with pytest.raises(ImageError, match=r"images.*\.png cannot be read: No such file"):
        found.pil()
    file.write_bytes(content[:100])
    with pytest.raises(ImageError, match="cannot be read"):
        found.pil()
    file.write_bytes(BLUE.png())
    with pytest.raises(ImageError, match="holds other pixels"):
        found.pil()
    file.write_bytes(content)
    assert found.pil().size == (40, 40)


def test_a_moved_run_finds_its_pictures(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    write_trajectories(folder.step_trajectories(1), [group_of(RED)], policy_step=0)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    read = load_trajectories(tmp_path / "moved", step=1)[0]
    assert read.steps[0].observation.messages[0]["content"][0]["image"].png() == RED.png()  # type: ignore[index]


def test_a_file_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "1.jsonl", [group_of(RED)], policy_step=0)
    [file] = (tmp_path / "images").iterdir()
    os.utime(file, (1, 1))
    write_trajectories(tmp_path / "2.jsonl", [group_of(RED, BLUE)], policy_step=0)
    assert file.stat().st_mtime == 1
    assert len(files_in(tmp_path)) == 2


def test_pictures_are_written_while_others_work(tmp_path: Path) -> None:
    pending = PendingTrajectories([group_of(RED, BLUE)], policy_step=0, path=tmp_path / "1.jsonl")
    pending._prepared.result()
    assert len(files_in(tmp_path)) == 2
    assert not (tmp_path / "1.jsonl").exists()
    pending.publish()
    assert list(read_trajectories(tmp_path / "1.jsonl")) == list(group_of(RED, BLUE))


def test_a_full_disk_is_one_storage_error_and_leaves_no_line_without_its_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if ".png" in self.name and "w" in mode:
            raise OSError(28, "No space left on device")
        return opened(self, mode, *more, **named)

    opened = Path.open
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        pending = PendingTrajectories([group_of(RED)], policy_step=0, path=tmp_path / "1.jsonl")
        with pytest.raises(StorageError, match=r"\.png.*No space left"):
            pending.publish()
    assert not (tmp_path / "1.jsonl").exists()
    pending.publish()
    assert list(read_trajectories(tmp_path / "1.jsonl")) == list(group_of(RED))


@pytest.mark.parametrize("reference", ["../../etc/passwd", "a" * 63, "A" * 64, 3, None, "a" * 64 + "\n"])
def test_a_reference_that_is_no_hash_reads_no_file(tmp_path: Path, reference: Any) -> None:
    write_trajectories(tmp_path / "1.jsonl", [group_of(RED, members=1)], policy_step=0)
    line = json.loads((tmp_path / "1.jsonl").read_text())
    line["steps"][0]["messages"][0]["content"][0]["image"]["picture"] = reference
    (tmp_path / "1.jsonl").write_text(json.dumps(line))
    with pytest.raises(ImageError, match="is not the content hash of a picture"):
        list(read_trajectories(tmp_path / "1.jsonl"))


def test_lines_for_other_places_have_their_pictures_inside(tmp_path: Path) -> None:
    [line] = trajectory_lines([group_of(RED, members=1)], policy_step=0)
    (tmp_path / "said.jsonl").write_text(line)
    assert list(read_trajectories(tmp_path / "said.jsonl")) == list(group_of(RED, members=1))
    assert not (tmp_path / "images").exists()


def test_records_of_earlier_versions_have_their_pictures_as_base64(tmp_path: Path) -> None:
    png = {"png": base64.b64encode(RED.png()).decode()}
    write_trajectories(tmp_path / "1.jsonl", [group_of(RED, members=1)], policy_step=0)
    line = json.loads((tmp_path / "1.jsonl").read_text())
    entry = line["steps"][0]
    entry["messages"][0]["content"][0]["image"] = png
    entry["prompt_ids"] = [1, *RED_IDS, 2]
    (tmp_path / "1.jsonl").write_text(write_json(line) + "\n")
    assert list(read_trajectories(tmp_path / "1.jsonl")) == list(group_of(RED, members=1))


def test_a_prompt_of_bare_ids_is_written_once(tmp_path: Path) -> None:
    ids = (1, *RED_IDS, 2)
    bare = Step(
        **{**{name: getattr(step([], ids), name) for name in Step.__slots__}, "observation": Observation(token_ids=ids)}
    )
    trajectory = Trajectory(
        task_id="t", group_id=0, member=0, steps=(bare,), outcome_reward=0.0, stop_reason=StopReason.DONE
    )
    group = Group(task=Task(task_id="t", prompt=()), group_id=0, trajectories=(trajectory,))
    write_trajectories(tmp_path / "1.jsonl", [group], policy_step=0)
    assert json.loads((tmp_path / "1.jsonl").read_text())["steps"][0]["token_ids"] is None
    assert list(read_trajectories(tmp_path / "1.jsonl")) == [trajectory]


def test_the_pictures_of_a_run_are_beside_its_trajectories() -> None:
    assert recording.picture_folder(RunFolder(Path("run")).step_trajectories(3)).path == Path("run/trajectories/images")
