"""A run folder with pictures for the tests of the viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from agent_r1.images import Picture, image_token_ids, read_picture
from agent_r1.types import Action, Group, Observation, Step, StopReason, Task, ToolCall, Trajectory
from tests.helpers.view_runs import MadeRun


def drawn(red: int, size: tuple[int, int] = (48, 32)) -> Picture:
    """A picture with a shade of red."""
    return read_picture(Image.new("RGB", size, (red, 40, 80)))


SCENE, CROP = drawn(200, (448, 320)), drawn(90)


def picture_run(folder: Path) -> MadeRun:
    """A run with one trajectory: the model reads a scene, zooms, and answers after a crop of 16 tokens."""
    run = MadeRun(folder)
    run.log(1)
    prompt = ({"role": "user", "content": [part(SCENE), {"type": "text", "text": "What color is the dot?"}]},)
    words = run.words.encode("<user>", "What color is the dot?", "<model>", "<tool>", "<end>")
    first_ids = (words[0], *image_token_ids(SCENE.content_hash, 64), words[1], words[2])
    first = step(prompt, first_ids, run.words.encode("<zoom>"), "<zoom>", (ToolCall(name="zoom", arguments={"x": 1}),))
    history = (*prompt, first.action.as_message(), {"role": "tool", "name": "zoom", "content": [part(CROP)]})
    second_ids = (*first_ids, *first.action_ids, words[3], *image_token_ids(CROP.content_hash, 16), words[2])
    last = step(history, second_ids, run.words.encode("red"), "red")
    task = Task(task_id="dot", prompt=prompt)
    rollouts = [
        Trajectory(
            task_id="dot",
            group_id=0,
            member=member,
            steps=(first, last),
            outcome_reward=1.0,
            stop_reason=StopReason.DONE,
        )
        for member in range(2)
    ]
    run.write(1, [Group(task=task, group_id=0, trajectories=tuple(rollouts))])
    run.finish()
    return run


def part(picture: Picture) -> dict[str, Any]:
    """A picture in a message."""
    return {"type": "image", "image": picture}


def step(
    messages: Any, prompt_ids: tuple[int, ...], action_ids: tuple[int, ...], text: str, calls: tuple[ToolCall, ...] = ()
) -> Step:
    """A step with these ids."""
    return Step(
        observation=Observation(messages=tuple(messages)),
        prompt_ids=prompt_ids,
        action=Action(text=text, content=text, token_ids=action_ids, tool_calls=calls),
        action_ids=action_ids,
        rollout_logprobs=(-0.5,) * len(action_ids),
        reward=0.0,
        done=not calls,
        policy_versions=(0,) * len(action_ids),
    )
