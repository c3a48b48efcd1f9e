"""`GymEnv`: Gymnasium environments, with observations as text or images and actions as text (`space_text.py`).

    env: {name: gym, make: my_envs:Maze, arguments: {size: 4}, observe: my_envs:describe, actions: [left, right]}
    env: {name: gym, make: CartPole-v1, arguments: {render_mode: rgb_array}, image: render, actions: [left, right]}

`env=gym:FrozenLake-v1` (`ready/gym.py`) also makes the tasks.

The row's messages come first, then the environment's observation as a user message. The model acts by writing an
action, alone or as `<action>left</action>`. Gymnasium's `terminated` is `done`, its `truncated` is `truncated`.
"""

from __future__ import annotations

import asyncio
import queue
import re
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from agent_r1.envs.base import AgentEnv
from agent_r1.envs.context import ContextChoice, Conversation, make_policy, strip_thinking
from agent_r1.envs.space_text import (
    NoTextFormError,
    describe_space,
    is_image,
    observation_text,
    parse_action,
    picture_text,
    split_images,
)
from agent_r1.errors import (
    INTERRUPTIONS,
    ConfigError,
    DataError,
    EpisodeError,
    boundary,
    described,
    did_you_mean,
    portable,
    require_installed,
)
from agent_r1.images import read_picture, with_images
from agent_r1.registry import load_function
from agent_r1.types import Action, Message, Observation, StepResult, StopReason, Task

_GRID_IDS = ("BabyAI-", "MiniGrid-")
"""Ids that Gymnasium knows once `minigrid` is imported."""
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)


@AgentEnv.register("gym")
class GymEnv(AgentEnv):
    """An episode in a Gymnasium environment, which runs in its own thread.

    `make` is a Gymnasium id or `module:attribute`, called with `arguments`. `observe` (`module:function`) converts an
    observation to text, to an image, or to `(text, image)`; without it numbers are written as JSON, below the picture
    of a `render_mode: ansi`. `image` shows images to a model that sees: `observation` shows observations that are one
    (arrays of uint8, height x width x 3), alone or as entries of a dict, `render` what the environment draws
    (`render_mode: rgb_array`) after the observation. `actions` names the actions of a Discrete space, in order; without
    it the model writes their numbers, and JSON for spaces of several numbers. `act` (`module:function`) parses the
    action from the model's text instead, and raises ValueError with a message for the model.

    A row may give `env_kwargs["seed"]`, `env_kwargs["options"]` of the reset and `env_kwargs["arguments"]`, which are
    added to `arguments`; without a seed, all rollouts of a task share one derived from its id.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        observe: str | Callable[[Any], Any] | None = None,
        actions: Sequence[str] | None = None,
        act: str | Callable[[str], Any] | None = None,
        context: ContextChoice = "append",
        image: Literal["observation", "render"] | None = None,
    ) -> None:
        require_installed("gymnasium", "gymnasium", "gym", "env.name=gym")
        if image not in (None, "observation", "render"):
            raise ConfigError(f"env.image is {image!r:.60}; it is observation or render, or left out for text")
        self._image = image
        self._make = make
        if isinstance(make, str) and _is_code(make):
            load_function(make, kind="environment")  # raises before an episode when it cannot be called
        self._arguments = dict(arguments or {})
        self._observe = load_function(observe, kind="observation function") if isinstance(observe, str) else observe
        self._names = None if actions is None else [str(name) for name in actions]
        self._act = load_function(act, kind="action function") if isinstance(act, str) else act
        self._policy = make_policy(context)
        self._thread: _EnvThread | None = None
        self._env: Any = None
        self._made_with: Mapping[str, Any] = {}
        self._conversation: Conversation

    async def reset(self, task: Task) -> Observation:
        """Returns the row's messages and the first observation."""
        self._thread = self._thread or _EnvThread()
        seed, options, arguments = _row_settings(task)
        all_arguments = {**self._arguments, **arguments}
        if self._env is None or all_arguments != self._made_with:
            await self._thread.run(lambda: self._begin(all_arguments))
        observation, _ = await self._thread.run(lambda: self._env.reset(seed=seed, options=options))
        self._conversation = Conversation(self._policy, (*task.prompt, await self._message_of(observation)))
        return Observation(messages=self._conversation.messages)

    def preview(self, task: Task) -> Observation:
        """The row's messages; the first observation is known only after a reset."""
        _row_settings(task)
        return super().preview(task)

    async def step(self, action: Action) -> StepResult:
        """Step the environment; text that is no action gets an error message that lists the actions."""
        if self._thread is None:
            raise RuntimeError("step of a GymEnv before its reset, or after its close")
        if self._conversation.takes(action):
            return self._continue(0.0, {"episode/summaries": 1.0})
        try:
            chosen = self._parse_action(action)
        except ValueError as error:
            self._conversation.add(action.as_message(), {"role": "user", "content": f"Error: {error}"})
            return self._continue(0.0, {"episode/invalid_actions": 1.0})
        observation, reward, terminated, truncated, _ = await self._thread.run(lambda: self._env.step(chosen))
        self._conversation.add(action.as_message(), await self._message_of(observation))
        return StepResult(
            observation=Observation(messages=self._conversation.messages),
            reward=float(reward),
            done=bool(terminated),
            truncated=bool(truncated),
        )

    async def close(self) -> None:
        """Close the environment; if its thread hangs in a call, it is closed there after the call."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            if thread.busy:
                thread.begin(self._end)
            else:
                await thread.run(self._end)
        finally:
            thread.end()

    def _end(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        self._end()
        self._env, self._made_with = make_gym(self._make, arguments), arguments
        check_actions(str(self._make), self._env.action_space, self._names, self._act)

    def _parse_action(self, action: Action) -> Any:
        """The Gymnasium action that the text names; a ValueError is the message to the model."""
        text = strip_thinking(action.text)
        tagged = _ACTION.findall(text)
        name = (tagged[-1] if tagged else text).strip()
        if self._act is not None:
            return self._act(name)
        space = self._env.action_space
        return parse_action(space, name) if self._names is None else self._named_action(name, int(space.start))

    def _named_action(self, name: str, start: int) -> int:
        names = self._names or []
        matches = [index for index, other in enumerate(names) if other.casefold() == name.casefold()]
        if not matches:
            raise ValueError(f"'{name}' is no action here. {did_you_mean(name, names)}")
        return start + matches[0]

    async def _message_of(self, observation: Any) -> Message:
        """The observation as a message, below the picture that the environment draws in text, if it does."""
        assert self._thread is not None
        text, images = self._split(observation)
        if self._observe is None and getattr(self._env, "render_mode", None) == "ansi":
            picture = picture_text(str(await self._thread.run(self._env.render)))
            text = f"{picture}\n{text}"
        if self._image == "render":
            images = [*images, await self._thread.run(self._draw)]
        where = f"an image of {self._make}"
        return {"role": "user", "content": with_images(text, [read_picture(image, where=where) for image in images])}

    def _draw(self) -> Any:
        image = self._env.render()
        if not is_image(image):
            raise ConfigError(
                f"env.image=render needs an environment that draws: {self._make} rendered {type(image).__name__}; set "
                "env.arguments.render_mode=rgb_array"
            )
        return image

    def _split(self, observation: Any) -> tuple[str, list[Any]]:
        """An observation as text, and the images that it is or has."""
        if self._observe is not None:
            return _split_observed(self._observe(observation), str(self._make))
        images: list[Any] = []
        if self._image == "observation":
            observation, images = split_images(observation)
            if not images:
                raise ConfigError(
                    f"env.image=observation, but the observations of {self._make} have no image: an array of uint8 "
                    "with height x width x 3. Use env.image=render, or leave it out"
                )
            if observation is None:
                return "", images
        try:
            return observation_text(observation), images
        except NoTextFormError as error:
            raise ConfigError(
                f"an observation of {self._make} cannot be written as text ({error}): give "
                "env.observe=module:function that converts it, or env.image=observation to a model that sees images"
            ) from None

    def _continue(self, reward: float, metrics: Mapping[str, float]) -> StepResult:
        observation = Observation(messages=self._conversation.messages)
        return StepResult(observation=observation, reward=reward, info={"metrics": dict(metrics)})


def _split_observed(returned: Any, make: str) -> tuple[str, list[Any]]:
    """What a function of `env.observe` returned: text, an image, or both."""
    text, image = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if image is None and not isinstance(text, str):
        text, image = "", text
    if not isinstance(text, str) or not (image is None or is_image(image)):
        raise ConfigError(
            f"env.observe returned a {type(returned).__name__} for {make}; it must return text, an image or (text, "
            "image)"
        )
    return text, [] if image is None else [image]


def _row_settings(task: Task) -> tuple[int, Mapping[str, Any] | None, Mapping[str, Any]]:
    """The seed, options and arguments of a row, checked. The default seed is derived from the task's id."""
    seed = task.env_kwargs.get("seed", zlib.crc32(task.task_id.encode()))
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise DataError(f"task '{task.task_id}': env_kwargs.seed must be a whole number from 0, found {seed!r:.80}")
    options, arguments = task.env_kwargs.get("options"), task.env_kwargs.get("arguments")
    for name, value in (("options", options), ("arguments", arguments)):
        if value is not None and not isinstance(value, Mapping):
            raise DataError(f"task '{task.task_id}': env_kwargs.{name} must be an object, found {value!r:.80}")
    return seed, options, arguments or {}


def make_gym(make: str | Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """The Gymnasium environment of an id, of `module:attribute` or of a function."""
    import gymnasium

    if not isinstance(make, str):
        return make(**arguments)
    if _is_code(make):
        return load_function(make, kind="environment")(**arguments)
    if make.startswith(_GRID_IDS):
        require_installed("minigrid", "minigrid", "minigrid", f"env=gym:{make}")
        make = f"minigrid:{make}"
    try:
        return gymnasium.make(make, **arguments)
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
        raise ConfigError(f"the Gymnasium environment '{make}' cannot be made: {error}") from error


def check_actions(make: str, space: Any, names: Sequence[str] | None, act: Callable[[str], Any] | None) -> None:
    """Refuse an action space that has no text form, and names that do not fit it."""
    from gymnasium import spaces

    if act is not None:
        return
    try:
        describe_space(space)
    except NoTextFormError:
        raise ConfigError(
            f"the actions of {make} are {space}: give env.act=module:function that makes one from text"
        ) from None
    if names is not None and (not isinstance(space, spaces.Discrete) or space.n != len(names)):
        raise ConfigError(f"env.actions has {len(names)} names, but the actions of {make} are {space}")


def _is_code(make: str) -> bool:
    """`my_envs:Maze` is code; in `my_envs:Maze-v0` Gymnasium imports the module first, which registers the id."""
    return make.partition(":")[2].isidentifier()


class _EnvThread:
    """Runs calls one after another in one daemon thread, so that a call that hangs does not keep the process alive."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_running = 0
        threading.Thread(target=self._work, name="gym-env", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a call is running or queued."""
        return self._num_running > 0

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run the call in the thread; returns or raises what it does."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def finish(result: Any, error: BaseException | None) -> None:
            self._num_running -= 1
            if answer.cancelled():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def work() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                with boundary(StopReason.ENV_ERROR, "the Gymnasium environment"):
                    result = call()
            except EpisodeError as error:
                failure = portable(error.__cause__ or error)
            except INTERRUPTIONS as error:  # only the environment's code can raise them in this thread
                failure = RuntimeError(described(error))
            with suppress(RuntimeError):  # the event loop may be closed before a hung call returns
                loop.call_soon_threadsafe(finish, result, failure)

        self._num_running += 1
        self._calls.put(work)
        return await answer

    def begin(self, call: Callable[[], Any]) -> None:
        """Queue the call without waiting for it."""

        def work() -> None:
            with suppress(EpisodeError), boundary(StopReason.ENV_ERROR, "the Gymnasium environment"):
                call()

        self._calls.put(work)

    def end(self) -> None:
        """Let the thread end after the queued calls."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
