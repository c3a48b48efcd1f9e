"""Environments of the library `verifiers`, through our loop. They are skipped where the extra is not installed."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers", reason="the extra `verifiers` is not installed")

import agent_r1
from agent_r1.envs import make_env, ready_env
from agent_r1.errors import AgentR1Error, DataError, EpisodeError
from agent_r1.flows import AgentEnvLoop, try_flow
from agent_r1.rewards import Score, reward_functions, score_episode
from agent_r1.types import Episode, StopReason, Task

MODULE = "tests.helpers.verifiers_envs"
# `datasets` and the clients that verifiers imports warn.
pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("default")]


def ready(kind: str, **more: Any) -> Any:
    return ready_env({"name": f"verifiers:{MODULE}", "arguments": {"kind": kind, **more}})


def play(kind: str, *replies: str, index: int = 3, max_steps: int = 8, **more: Any) -> tuple[Task, Episode]:
    """The episode of a task in which the model gives these replies."""
    made = ready(kind, **more)
    task = made.train[index]
    flow = try_flow(AgentEnvLoop, task, replies, make_env=lambda task: make_env(task, made.env), max_steps=max_steps)
    return task, flow


def score(task: Task, episode: Episode) -> Score:
    return asyncio.run(score_episode(reward_functions.get("verifiers"), task, episode))


def call(**arguments: int) -> str:
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"


def said(episode: Episode) -> list[str]:
    """What the last observation shows."""
    return [str(message["content"]) for message in episode.steps[-1].observation.messages or ()]


def test_a_single_turn_is_scored_by_the_rubric() -> None:
    task, episode = play("single", "3", reward="exact")
    result = score(task, episode)
    assert (episode.stop_reason, result.value, result.parts["success"]) == (StopReason.DONE, 1.0, 1.0)
    assert result.parts["exact"] == 1.0
    assert result.parts["length"] == 1.0
    assert score(*play("single", "4", reward="exact")).value == 0.0
    assert said(episode) == ["Answer.", "What is 3 + 0?"]


def test_tools_of_a_tool_env_run_and_the_history_keeps_the_models_own_text() -> None:
    task, episode = play("tools", call(a=1, b=2), "3", reward="exact")
    assert [tool["function"]["name"] for tool in episode.steps[0].observation.tools] == ["add"]
    last = episode.steps[-1].observation.messages or ()
    assert last[-1] | {"tool_call_id": ""} == {"role": "tool", "content": "3", "tool_call_id": ""}
    assert last[-2] == episode.steps[0].action.as_message()
    assert episode.steps[1].prompt_ids[: len(episode.steps[0].prompt_ids)] == episode.steps[0].prompt_ids
    assert score(task, episode).value == 1.0


def test_an_error_of_a_tool_is_read_by_the_model_and_a_malformed_call_is_text() -> None:
    _, episode = play("tools", call(a=1), "3")
    assert "missing 1 required positional argument" in said(episode)[-1]
    _, malformed = play("tools", "<tool_call>{</tool_call>")
    assert (malformed.stop_reason, len(malformed.steps)) == (StopReason.DONE, 1)


def test_a_multi_turn_env_answers_until_it_stops() -> None:
    task, episode = play("turns", "8", "9", "3", reward="exact")
    assert said(episode)[-1] == "No. Hint 2: it is not 9."
    assert (episode.stop_reason, score(task, episode).value) == (StopReason.DONE, 1.0)
    assert len(play("turns", *["8"] * 4)[1].steps) == 4  # max_turns
    assert len(play("turns", "8", "stop")[1].steps) == 2  # a last word of the environment


def test_an_episode_that_our_limit_cuts_is_scored_too() -> None:
    task, episode = play("turns", "8", max_steps=1)
    assert episode.stop_reason is StopReason.MAX_STEPS
    assert score(task, episode).parts["length"] == 1.0


def test_an_error_of_the_environment_is_an_environment_error() -> None:
    with pytest.raises(EpisodeError, match=r"(?s)step of VerifiersEnv failed \(env_error\).*the hints are gone"):
        play("turns", "boom")


def test_a_reward_function_that_raises_is_no_zero() -> None:
    with pytest.raises(EpisodeError, match=r"(?s)reward_error.*KeyError: 'score'"):
        score(*play("single", "3", reward="broken"))


def test_train_and_eval_tasks_are_disjoint() -> None:
    own = ready("single")
    assert [task.prompt[-1]["content"] for task in own.eval] == ["What is 3 + 4?"]  # the other is in `train`
    split = ready("tools")
    assert (len(split.train), len(split.eval)) == (8, 2)
    assert not {str(task.prompt) for task in split.train} & {str(task.prompt) for task in split.eval}
    assert ready("tools").train == split.train


def test_a_row_of_another_data_set_is_refused() -> None:
    task = ready("single").train[0]
    other = ready("single", seed=5)
    env = make_env(task, other.env)
    with pytest.raises(DataError, match="has another prompt than example 0"):
        asyncio.run(env.reset(task))
    with pytest.raises(DataError, match="needs split and index"):
        env.preview(Task(task_id="mine", prompt=task.prompt))


def test_the_state_is_not_recorded_and_does_not_leave_the_process() -> None:
    task, episode = play("single", "3")
    info = episode.steps[-1].info
    assert json.loads(json.dumps(info)) == {"metrics": {"episode/turns": 1.0}}
    copied = pickle.loads(pickle.dumps(info))
    assert type(copied) is dict
    with pytest.raises(EpisodeError, match=r"reward\.timeout=null"):
        score(task, Episode(steps=(), stop_reason=StopReason.DONE))


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("no_such_env", {}, "there is no module 'no_such_env'"),
        ("tests.helpers.tiny_gym", {}, "has no function load_environment"),
        (MODULE, {"kind": "group"}, "is a EnvGroup"),
        (MODULE, {"kind": "single", "reward": "together"}, "scores groups together"),
        (MODULE, {"kind": "nothing"}, f"env=verifiers:{MODULE} cannot be used.*no such kind: nothing"),
        (MODULE, {"colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(AgentR1Error, match=problem):
        ready_env({"name": f"verifiers:{name}", "arguments": arguments})


@pytest.mark.parametrize("kind", ["single", "tools", "turns"])
def test_each_class_is_trained(kind: str, tmp_path: Path, model_folder: Path) -> None:
    summary = agent_r1.train(
        env=f"verifiers:{MODULE}",
        model=model_folder,
        overrides=[
            f"env.arguments.kind={kind}",
            f"run.folder={tmp_path}",
            "run.name=vf",
            "rollout.groups_per_step=2",
            "rollout.group_size=3",
            "rollout.max_steps=3",
            "rollout.max_tokens=8",
            "trainer.steps=2",
        ],
        quiet=True,
    )
    assert summary is not None
    trajectories = agent_r1.load_trajectories(tmp_path / "vf")
    assert len(trajectories) == 12
    assert not any(trajectory.is_failure for trajectory in trajectories)
    assert {trajectory.outcome_reward for trajectory in trajectories} != {0.0}
    assert all(trajectory.reward_parts["letters"] == trajectory.outcome_reward for trajectory in trajectories)
