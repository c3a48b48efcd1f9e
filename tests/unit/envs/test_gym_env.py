"""Gymnasium environments through the adapter."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from agent_r1.chat import ChatRenderer
from agent_r1.envs import AgentEnv, GymEnv
from agent_r1.errors import ConfigError, MissingExtraError, UnknownNameError
from agent_r1.flows import AgentEnvLoop
from agent_r1.types import Action, StepResult, StopReason, Task
from tests.helpers.tiny_gym import GuessWord, Line
from tests.unit.flows.test_flows import context_of, script

TASK = Task(task_id="t", prompt=({"role": "system", "content": "Play."},))
WORD = Task(task_id="t", prompt=TASK.prompt, env_kwargs={"options": {"word": "b"}})


def walk(**more: Any) -> GymEnv:
    return GymEnv("tests.helpers.tiny_gym:Line", observe="tests.helpers.tiny_gym:describe", **more)


def play(env: GymEnv, *texts: str, task: Task = TASK) -> tuple[list[str], list[StepResult]]:
    """What the environment said, and its results."""

    async def run() -> list[Any]:
        try:
            first = await env.reset(task)
            return [first, *[await env.step(Action(text=text, content=text)) for text in texts]]
        finally:
            await env.close()

    first, *results = asyncio.run(run())
    seen = [first, *[result.observation for result in results]]
    return [observation.messages[-1]["content"] for observation in seen], results


def test_named_actions_and_described_observations() -> None:
    said, results = play(
        walk(actions=["left", "right"]), "right", " <think>?</think>LEFT\n", "I go <action>right</action>"
    )
    assert said == ["You stand at 0.", "You stand at 1.", "You stand at 0.", "You stand at 1."]
    assert [result.reward for result in results] == [0.5, 0.5, 0.5]
    assert not any(result.done or result.truncated for result in results)


def test_actions_without_names_are_numbers_from_the_start_of_the_space() -> None:
    said, results = play(walk(), "6", "6")
    assert said[-1] == "You stand at 2."
    assert results[-1].done


def test_history_is_the_task_and_all_turns() -> None:
    _, results = play(walk(actions=["left", "right"]), "right", "left")
    assert results[-1].observation is not None
    assert [(m["role"], m["content"]) for m in results[-1].observation.messages or ()] == [
        ("system", "Play."),
        ("user", "You stand at 0."),
        ("assistant", "right"),
        ("user", "You stand at 1."),
        ("assistant", "left"),
        ("user", "You stand at 0."),
    ]


def test_an_invalid_action_is_told_and_does_not_reach_the_environment() -> None:
    said, results = play(walk(actions=["left", "right"]), "rigt", "", "right")
    assert said[1] == "Error: 'rigt' is no action here. Did you mean 'right'? Known: left, right."
    assert said[2].startswith("Error: '' is no action here.")
    assert said[3] == "You stand at 1."
    assert results[0].info == {"metrics": {"episode/invalid_actions": 1.0}}
    assert (results[0].reward, results[0].done) == (0.0, False)


def test_text_actions_that_the_space_does_not_contain_are_told() -> None:
    said, _ = play(GymEnv("tests.helpers.tiny_gym:GuessWord"), "q", "ab")
    assert said[1] == "Error: 'q' is no action here; an action is text of 1 to 1 characters out of abcdez."
    assert said[2].startswith("Error: 'ab' is no action here")


SPACES = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "mode": spaces.Discrete(3)})


class Box(gymnasium.Env[Any, Any]):
    """Shows what it was told to show, and then each action."""

    def __init__(self, shown: Any, actions: Any = SPACES) -> None:
        self.shown, self.action_space = shown, actions
        self.observation_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return action, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (np.int64(5), "5"),
        (np.array([0.0273956, -0.5, 100000.0], np.float32), "[0.0274, -0.5, 100000.0]"),
        ((14, np.int8(10), False), "[14, 10, false]"),
        ({"a": np.array([[1, 0]]), "b": ("x", None)}, '{"a": [[1, 0]], "b": ["x", null]}'),
        (np.array([np.inf]), '["inf"]'),
        ("plain text", "plain text"),
    ],
)
def test_observations_of_every_space_have_a_text(shown: Any, text: str) -> None:
    assert play(GymEnv(lambda: Box(shown)))[0] == [text]


@pytest.mark.parametrize(
    ("space", "text", "shown"),
    [
        (SPACES, 'I go <action>{"move": [0.5, -1], "mode": 2}</action>', '{"mode": 2, "move": [0.5, -1.0]}'),
        (spaces.Box(-2, 2, (1,), np.float32), "1.5", "[1.5]"),
        (spaces.Box(-2, 2, (2,), np.float32), "1, -2", "[1.0, -2.0]"),
        (spaces.MultiDiscrete([2, 3]), "[1, 2]", "[1, 2]"),
        (spaces.MultiBinary(3), "0, 1, 1", "[0, 1, 1]"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Text(3))), '[1, "abc"]', '[1, "abc"]'),
    ],
)
def test_actions_of_every_space_are_read_as_json(space: Any, text: str, shown: str) -> None:
    assert play(GymEnv(lambda: Box(0, space)), text)[0] == ["0", shown]


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (SPACES, "left"),
        (SPACES, '{"move": [0.5, -1]}'),
        (SPACES, '{"move": [0.5, 3], "mode": 2}'),
        (SPACES, '{"move": [0.5], "mode": 2}'),
        (SPACES, '{"move": [0.5, NaN], "mode": 2}'),
        (spaces.Discrete(2), "true"),
        (spaces.Discrete(2), "9" * 400),
        (spaces.Discrete(2), "[" * 5000),
        (spaces.MultiDiscrete([2, 3]), "[0.5, 1]"),
        (spaces.MultiBinary(2), '["0", "1"]'),
        (spaces.Tuple((spaces.Discrete(2),)), "[1, 1]"),
    ],
)
def test_text_that_is_no_action_of_its_space_is_told_what_one_is(space: Any, text: str) -> None:
    said, results = play(GymEnv(lambda: Box(0, space)), text)
    assert said[1].startswith(f"Error: '{text:.200}' is no action here; an action is ")
    assert results[0].info == {"metrics": {"episode/invalid_actions": 1.0}}


def test_an_environment_that_draws_itself_in_text_is_shown_without_colors() -> None:
    env = GymEnv("FrozenLake-v1", arguments={"render_mode": "ansi", "is_slippery": False}, actions=list("ldru"))
    said, _ = play(env, "r")
    assert said == ["[S]FFF\nFHFH\nFFFH\nHFFG\n0", "  (Right)\nS[F]FF\nFHFH\nFFFH\nHFFG\n1"]


def test_an_action_function_reads_any_space_and_its_value_errors_are_told() -> None:
    said, _ = play(walk(act="tests.helpers.tiny_gym:signed"), "+2", "+1")
    assert said[1:] == ["Error: '+2' is neither +1 nor -1.", "You stand at 1."]


def test_termination_is_done_and_truncation_is_truncation(renderer: ChatRenderer) -> None:
    _, results = play(GymEnv("tests.helpers.tiny_gym:GuessWord"), "a", "b", task=WORD)
    assert [(result.done, result.truncated, result.reward) for result in results] == [
        (False, False, 0.0),
        (True, False, 1.0),
    ]
    cut = GymEnv("tests.helpers.tiny_gym:GuessWord", arguments={"max_guesses": 2})
    flow = AgentEnvLoop(context_of(renderer, script(renderer, "a", "c", "never"), cut))
    episode = asyncio.run(flow.run(WORD))
    assert (episode.stop_reason, len(episode.steps)) == (StopReason.MAX_STEPS, 2)
    assert episode.next_prompt_ids is not None


def test_tasks_have_seeds_of_their_own_and_rollouts_of_a_task_share_one() -> None:
    def first(task: Task) -> str:
        return play(GymEnv(GuessWord), task=task)[0][0]

    other = Task(task_id="other", prompt=TASK.prompt)
    seeded = [Task(task_id=name, prompt=TASK.prompt, env_kwargs={"seed": 7}) for name in ("a", "b")]
    assert first(TASK) == first(TASK)
    assert first(TASK) != first(other)
    assert first(seeded[0]) == first(seeded[1])


def test_a_registered_gymnasium_id_is_made() -> None:
    gymnasium.register("tests/Guess-v0", entry_point=GuessWord)
    env = GymEnv("tests/Guess-v0", arguments={"max_guesses": 5, "disable_env_checker": True})
    said, _ = play(env, "a", task=WORD)
    assert said[1] == "wrong"


def test_each_environment_lives_in_one_thread_of_its_own_which_ends() -> None:
    made: list[GuessWord] = []

    def make() -> GuessWord:
        made.append(GuessWord())
        return made[-1]

    for _ in range(2):
        play(GymEnv(make), "a", "b", task=WORD)
    assert [len(env.threads) for env in made] == [1, 1]
    assert threading.get_ident() not in made[0].threads | made[1].threads
    end = time.monotonic() + 5
    while any(thread.name == "gym-env" for thread in threading.enumerate()):
        assert time.monotonic() < end


def test_close_closes_the_environment_once() -> None:
    line = Line()

    async def run() -> None:
        env = GymEnv(lambda: line, observe="tests.helpers.tiny_gym:describe")
        await env.reset(TASK)
        await env.close()
        await env.close()
        with pytest.raises(RuntimeError, match="after its close"):
            await env.step(Action(text="5"))

    asyncio.run(run())
    assert line.num_closed == 1


def test_a_hanging_step_does_not_hang_the_episode_or_the_loop() -> None:
    release = threading.Event()

    class Hanging(Line):
        def step(self, action: Any) -> Any:
            release.wait(20)
            return super().step(action)

    made = Hanging()

    async def run() -> float:
        env = GymEnv(lambda: made, observe="tests.helpers.tiny_gym:describe")
        await env.reset(TASK)
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.step(Action(text="5")), 0.1)
        await env.close()
        return time.monotonic() - started

    assert asyncio.run(run()) < 10
    assert made.num_closed == 0
    release.set()


def test_an_error_of_the_environment_is_raised_as_it_is() -> None:
    with pytest.raises(OSError, match="the word is gone"):
        play(GymEnv("tests.helpers.tiny_gym:GuessWord"), "z")


def test_what_cannot_be_put_into_words_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"an array of 300 numbers is too long.*: give env\.observe"):
        play(GymEnv(lambda: Box(np.zeros(300))))
    with pytest.raises(ConfigError, match=r"env\.observe returned a int"):
        play(GymEnv(Line, observe=lambda seen: 3))
    with pytest.raises(ConfigError, match=r"are Sequence\(.*give env\.act=module:function"):
        play(GymEnv(lambda: Box(0, spaces.Sequence(spaces.Discrete(2)))))
    with pytest.raises(ConfigError, match=r"env\.actions has 3 names, but the actions of .*Line are Discrete\(2"):
        play(walk(actions=["left", "right", "up"]))
    with pytest.raises(UnknownNameError, match="Did you mean 'describe'"):
        GymEnv("tests.helpers.tiny_gym:Line", observe="tests.helpers.tiny_gym:descibe")
    assert AgentEnv.registry.get("gym") is GymEnv


def test_gymnasium_that_is_not_installed_is_asked_for_when_the_environment_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'agent-r1\[gym\]'"):
        GymEnv("tests.helpers.tiny_gym:Maze")
