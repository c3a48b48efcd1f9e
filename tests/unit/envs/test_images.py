"""Environments that show images: their own, those of Gymnasium, and those behind a service."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from agent_r1.algorithms.estimators.anchors import anchor_of
from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv, GymEnv, RemoteEnv, check_env
from agent_r1.envs.remote.server import EnvService, create_app
from agent_r1.errors import ConfigError, EnvServerError
from agent_r1.flows import AgentEnvLoop
from agent_r1.images import is_image_id, pictures_in, read_picture
from agent_r1.types import Action, Observation, StepResult, StopReason, Task
from agent_r1.web import listen, running_server
from tests.helpers.seeing import drawn, part, seeing_renderer
from tests.helpers.shop import reply
from tests.unit.envs.test_gym_env import play
from tests.unit.flows.test_flows import context_of

TASK = Task(task_id="t", prompt=({"role": "user", "content": [part(drawn(7)), {"type": "text", "text": "Play."}]},))
BLACK, WHITE = Image.new("RGB", (6, 4)), Image.new("RGB", (6, 4), "white")


class Draws(AgentEnv):
    """Shows a black image beside the task's messages, then a white one inside a message of its own."""

    async def reset(self, task: Task) -> Observation:
        self._messages = task.prompt
        return Observation(messages=task.prompt, images=(BLACK.copy(),))

    async def step(self, action: Action) -> StepResult:
        shown = {"role": "user", "content": [{"type": "image", "image": np.asarray(WHITE)}]}
        messages = (*self._messages, action.as_message(), shown)
        return StepResult(observation=Observation(messages=messages), done=action.text == "over")


def hashes(observation: Observation) -> list[str]:
    return [picture.content_hash for picture in pictures_in(observation.messages or ())]


def test_an_episode_sees_the_images_that_its_environment_shows() -> None:
    renderer = seeing_renderer()
    engine = ScriptedEngine([reply(renderer, "a"), reply(renderer, "over")], context_length=4096)
    context = context_of(renderer, engine, Draws())
    episode = asyncio.run(AgentEnvLoop(context).run(TASK))
    first, second = episode.steps
    seven, black, white = (read_picture(image).content_hash for image in (drawn(7), BLACK, WHITE))
    assert (hashes(first.observation), hashes(second.observation)) == ([seven, black], [seven, white])
    assert sum(map(is_image_id, first.prompt_ids)) == sum(map(is_image_id, second.prompt_ids)) > 0
    assert first.observation.images == ()


def test_a_broken_image_fails_the_episode_and_says_which_one() -> None:
    class Broken(Draws):
        async def reset(self, task: Task) -> Observation:
            return Observation(messages=({"role": "user", "content": [{"type": "image", "image": b"png"}]},))

    context = context_of(seeing_renderer(), ScriptedEngine([]), Broken())
    with pytest.raises(Exception, match=r"reset of Broken failed(?s:.*)message 0, part 0 is no image"):
        asyncio.run(AgentEnvLoop(context).run(TASK))


def test_check_env_compares_images_by_their_content() -> None:
    assert check_env(Draws, TASK, [Action(text="a"), Action(text="over")]) == []

    class Random(Draws):
        async def reset(self, task: Task) -> Observation:
            self._messages = task.prompt
            noise = np.random.default_rng().integers(0, 256, (8, 8, 3)).astype(np.uint8)
            return Observation(messages=task.prompt, images=(noise,))

    found = check_env(Random, TASK)
    assert [finding.rule for finding in found] == ["episodes do not leak into each other"]


# Gymnasium


class Screen(gymnasium.Env):  # type: ignore[type-arg]
    """An image that gets brighter, alone or beside a number."""

    action_space = spaces.Discrete(2)

    def __init__(self, beside: bool = False, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._beside = beside
        self._shade = 0

    def render(self) -> Any:
        return None if self.render_mode is None else np.full((3, 5, 3), 255 - self._shade, dtype=np.uint8)

    def _seen(self) -> Any:
        image = np.full((4, 6, 3), self._shade, dtype=np.uint8)
        return {"screen": image, "score": self._shade} if self._beside else image

    def reset(self, **given: Any) -> Any:
        self._shade = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._shade += 10
        return self._seen(), 0.5, False, False, {}


def screen(**given: Any) -> GymEnv:
    return GymEnv(Screen, **given)


def shade(content: Any) -> Any:
    return content[-1]["image"].pil().getpixel((0, 0))


def test_an_observation_that_is_an_image_is_shown_as_one() -> None:
    said, _ = play(screen(image="observation"), "1", task=TASK)
    assert [[entry["type"] for entry in content] for content in said] == [["image"], ["image"]]
    assert [shade(content) for content in said] == [(0, 0, 0), (10, 10, 10)]


def test_an_image_among_other_things_follows_their_text() -> None:
    said, _ = play(screen(arguments={"beside": True}, image="observation"), "1", task=TASK)
    assert said[1][0] == {"type": "text", "text": '{"score": 10}'}
    assert shade(said[1]) == (10, 10, 10)


def test_what_an_environment_draws_is_shown_after_its_observation() -> None:
    env = screen(arguments={"render_mode": "rgb_array"}, image="render", observe=lambda seen: "a screen")
    said, _ = play(env, "1", task=TASK)
    assert said[1][0] == {"type": "text", "text": "a screen"}
    assert shade(said[1]) == (245, 245, 245)


def test_a_function_may_show_text_an_image_or_both() -> None:
    for observe, kinds in [
        (lambda seen: ("look", seen), ["text", "image"]),
        (lambda seen: Image.fromarray(seen), ["image"]),
        (lambda seen: read_picture(seen), ["image"]),
    ]:
        said, _ = play(screen(observe=observe), task=TASK)
        assert [entry["type"] for entry in said[0]] == kinds


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"image": "window"}, "env.image is 'window'; it is observation or render"),
        (
            {"image": "render", "observe": lambda seen: "x"},
            "Large.* rendered NoneType; set env.arguments.render_mode=rgb_array",
        ),
        ({"image": "observation", "make": "tests.helpers.tiny_gym:Line"}, "have no image: an array of uint8"),
        ({}, "env.image=observation to a model that sees images"),
        ({"observe": lambda seen: 3}, "must return text, an image or"),
        ({"observe": lambda seen: ("a", "b")}, "must return text, an image or"),
    ],
)
def test_what_cannot_be_shown_says_what_to_set(given: dict[str, Any], problem: str) -> None:
    class Large(Screen):
        def _seen(self) -> Any:
            return np.zeros((40, 60, 3), dtype=np.uint8)

    with pytest.raises(ConfigError, match=problem):
        play(GymEnv(given.pop("make", Large), **given), task=TASK)


# Services


def served(env: type[AgentEnv], *texts: str, task: Task = TASK) -> list[Observation]:
    """What a client of a service sees."""

    async def run() -> list[Observation]:
        service = EnvService(env, name="draws")
        async with running_server(create_app(service), listen("127.0.0.1", 0)) as url:
            remote = RemoteEnv(url)
            try:
                seen = [await remote.reset(task)]
                for text in texts:
                    result = await remote.step(Action(text=text, content=text))
                    assert result.observation is not None
                    seen.append(result.observation)
                return seen
            finally:
                await remote.close()

    return asyncio.run(run())


def test_a_service_carries_images_both_ways() -> None:
    class Shown(Draws):
        async def step(self, action: Action) -> StepResult:
            shown = {"role": "user", "content": [{"type": "image", "image": WHITE}]}
            return StepResult(observation=Observation(messages=(*self._messages, action.as_message(), shown)))

    first, second = served(Shown, "a")
    assert first.images == (read_picture(BLACK),)
    assert first.messages == TASK.prompt
    assert hashes(second) == [drawn(7).content_hash, read_picture(WHITE).content_hash]


def test_an_image_of_a_service_that_is_too_large_is_an_error_of_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    class Huge(Draws):
        async def reset(self, task: Task) -> Observation:
            return Observation(messages=task.prompt, images=(Image.new("1", (40_000, 1)),))

    with pytest.raises(EnvServerError, match="40000 x 1 pixels"):
        served(Huge)


# States


def test_states_with_different_pictures_differ_and_equal_ones_are_equal() -> None:
    def seen(shade: int) -> Observation:
        return Observation(messages=({"role": "user", "content": [part(drawn(shade)), {"type": "text", "text": "?"}]},))

    assert anchor_of(seen(1)) == anchor_of(seen(1))
    assert anchor_of(seen(1)) != anchor_of(seen(2))
    assert drawn(1).content_hash in anchor_of(seen(1))


def test_a_model_that_sees_none_fails_with_the_reason(renderer: ChatRenderer) -> None:
    context = context_of(renderer, ScriptedEngine([]), Draws())
    with pytest.raises(Exception, match="which this model does not see") as failed:
        asyncio.run(AgentEnvLoop(context).run(TASK))
    assert getattr(failed.value, "reason", None) is StopReason.ENV_ERROR
