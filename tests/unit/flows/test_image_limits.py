"""Limits of images: in one prompt, and in an episode whose prompts leave earlier images out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv
from agent_r1.errors import ConfigError
from agent_r1.flows import AgentEnvLoop, FlowContext
from agent_r1.types import Action, Episode, Observation, SamplingParams, StepResult, StopReason, Task
from tests.helpers.seeing import drawn, part, seeing_renderer


class Screen(AgentEnv):
    """Shows pictures by their shades of red, and forgets those before: every prompt is a new conversation."""

    def __init__(self, *screens: tuple[int, ...]) -> None:
        self._screens = list(screens)

    def _shown(self) -> Observation:
        content = [{"type": "text", "text": "Now:"}, *(part(drawn(red)) for red in self._screens.pop(0))]
        return Observation(messages=({"role": "user", "content": content},))

    async def reset(self, task: Task) -> Observation:
        return self._shown()

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=self._shown(), reward=0.0)


def played(*screens: tuple[int, ...], **limits: Any) -> Episode:
    renderer = seeing_renderer()
    context = FlowContext(
        engine=ScriptedEngine([[5, renderer.stop_ids[0]]] * len(screens)),
        renderer=renderer,
        sampling=SamplingParams(max_tokens=4),
        make_env=lambda task: Screen(*screens),
        max_steps=len(screens) - 1,
        **limits,
    )
    return asyncio.run(AgentEnvLoop(context).run(Task(task_id="screen", prompt=())))


@pytest.mark.parametrize(
    ("screens", "limits", "num_steps"),
    [
        (((1,), (2,), (3,), (4,)), {"max_images": 1}, 3),
        (((1,), (2,), (3,), (4,)), {"max_episode_images": 3}, 3),
        (((1,), (2,), (3,), (4,)), {"max_episode_images": 2}, 2),
        (((1, 2), (2, 3), (1, 3), (4,)), {"max_episode_images": 3}, 3),  # pictures that come again count once
        (((1,), (1, 1), (1,), (1,)), {"max_episode_images": 1}, 1),  # but twice in one prompt is two
        (((1,), (1, 2), (1, 2), ()), {"max_images": 1, "max_episode_images": 9}, 1),
    ],
)
def test_an_episode_that_needs_more_images_ends_as_one_whose_context_is_full(
    screens: tuple[tuple[int, ...], ...], limits: dict[str, int], num_steps: int
) -> None:
    episode = played(*screens, **limits)
    assert len(episode.steps) == num_steps
    expected = StopReason.MAX_STEPS if num_steps == len(screens) - 1 else StopReason.CONTEXT_FULL
    assert episode.stop_reason is expected


def test_a_first_prompt_with_too_many_images_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"more images than rollout\.max_images and rollout\.max_episode_images"):
        played((1, 2), (3,), max_episode_images=1)
