"""Context policies and limits: the model sees exactly what they show, and what it samples is what is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent_r1.chat import ChatRenderer
from agent_r1.config import load_config
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import (
    AgentEnv,
    ContextPolicy,
    Conversation,
    History,
    ObservationLimit,
    StepLimit,
    TimeLimit,
    ToolEnv,
    make_env,
    make_policy,
    wrap_env,
)
from agent_r1.envs.context import Summarise, context_policies, num_characters, strip_thinking
from agent_r1.errors import ConfigError, EpisodeError, UnknownNameError
from agent_r1.flows import AgentEnvLoop
from agent_r1.images import read_picture
from agent_r1.runs.trajectories import read_trajectories, write_trajectories
from agent_r1.tools import FunctionTool
from agent_r1.types import Action, Episode, Group, Observation, StepResult, StopReason, Task, ToolCall, Trajectory
from tests.unit.flows.test_flows import DONE, ListEnv, call_text, context_of, going_on, reply, script

TASK = Task(
    task_id="t",
    prompt=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What do 3 apple cost?"}),
)


def echo(word: str) -> str:
    """Say it again."""
    return f"heard {word}"


ECHO = FunctionTool(echo)


def play(renderer: ChatRenderer, env: AgentEnv, *texts: str, **more: Any) -> tuple[Episode, ScriptedEngine]:
    engine = script(renderer, *texts)
    episode = asyncio.run(AgentEnvLoop(context_of(renderer, engine, env, **more)).run(TASK))
    return episode, engine


def call(word: str, thought: str = "") -> str:
    return (f"<think>{thought}</think>" if thought else "") + call_text("echo", word=word)


def turn(word: str, content: str = "") -> tuple[Any, Any]:
    """The messages of one call of `echo` and its answer."""
    function = {"name": "echo", "arguments": {"word": word}}
    return (
        {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
        },
        {"role": "tool", "name": "echo", "tool_call_id": "call00000", "content": f"heard {word}"},
    )


def exact(episode: Episode, engine: ScriptedEngine, renderer: ChatRenderer, texts: list[str]) -> None:
    """Every prompt that was sent is recorded, and every step has the ids that were sampled."""
    assert [step.prompt_ids for step in episode.steps] == [prompt for prompt, _ in engine.requests]
    assert [step.action_ids for step in episode.steps] == [reply(renderer, text) for text in texts]
    assert [len(step.rollout_logprobs) for step in episode.steps] == [len(step.action_ids) for step in episode.steps]


def test_append_is_the_default_and_shows_everything(renderer: ChatRenderer) -> None:
    texts = [call("a"), call("b"), "21"]
    plain, _ = play(renderer, ToolEnv([ECHO]), *texts)
    named, engine = play(renderer, ToolEnv([ECHO], context="append"), *texts)
    exact(named, engine, renderer, texts)
    assert [step.prompt_ids for step in plain.steps] == [step.prompt_ids for step in named.steps]
    assert named.steps[2].observation.messages == (*TASK.prompt, *turn("a"), *turn("b"))


def test_window_keeps_the_task_and_the_last_whole_turns(renderer: ChatRenderer) -> None:
    texts = [call("a"), call("b"), call("c"), "21"]
    env = ToolEnv([ECHO], context={"name": "window", "turns": 2})
    episode, engine = play(renderer, env, *texts)
    exact(episode, engine, renderer, texts)
    assert [step.observation.messages for step in episode.steps] == [
        TASK.prompt,
        (*TASK.prompt, *turn("a")),
        (*TASK.prompt, *turn("a"), *turn("b")),
        (*TASK.prompt, *turn("b"), *turn("c")),
    ]
    last = episode.steps[-1]
    assert last.prompt_ids == renderer.render(last.observation).token_ids
    second = episode.steps[1]
    assert second.prompt_ids[: len(episode.steps[0].prompt_ids + episode.steps[0].action_ids)] == (
        episode.steps[0].prompt_ids + episode.steps[0].action_ids
    )


def test_drop_thinking_removes_it_from_earlier_turns_and_keeps_it_in_what_is_trained(renderer: ChatRenderer) -> None:
    texts = [call("a", "first"), call("b", "second"), "<think>third</think>21"]
    episode, engine = play(renderer, ToolEnv([ECHO], context="drop_thinking"), *texts)
    exact(episode, engine, renderer, texts)
    assert episode.steps[2].observation.messages == (*TASK.prompt, *turn("a"), *turn("b"))
    shown = renderer.tokenizer.decode(list(episode.steps[2].prompt_ids), skip_special_tokens=False)
    assert "first" not in shown
    assert "second" not in shown


def test_drop_thinking_may_keep_the_latest() -> None:
    conversation = Conversation(make_policy({"name": "drop_thinking", "keep": 1}), TASK.prompt)
    for word in ("a", "b"):
        conversation.add({"role": "assistant", "content": f"<think>{word}</think>{word}"})
    assert [message["content"] for message in conversation.messages[2:]] == ["a", "<think>b</think>b"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("no thought", "no thought"),
        ("<think>a</think>\n\nb", "b"),
        ("a</think>b", "b"),
        ("b <think>cut", "b "),
        ("<think>a</think>b<think>c</think>d", "bd"),
    ],
)
def test_thoughts_are_found_however_they_are_written(text: str, left: str) -> None:
    assert strip_thinking(text) == left


def test_summary_is_a_step_of_its_own_and_replaces_the_history(renderer: ChatRenderer) -> None:
    summary = "<think>hm</think>a and b were heard"
    texts = [call("a"), call("b"), summary, call("c"), "21"]
    policy = {"name": "summarise", "characters": 170, "instruction": "Summarise.", "afterwards": "Go on."}
    episode, engine = play(renderer, ToolEnv([ECHO], context=policy), *texts)
    exact(episode, engine, renderer, texts)
    told = (
        *TASK.prompt,
        {"role": "assistant", "content": "a and b were heard"},
        {"role": "user", "content": "Go on."},
    )
    assert [step.observation.messages for step in episode.steps] == [
        TASK.prompt,
        (*TASK.prompt, *turn("a")),
        (*TASK.prompt, *turn("a"), *turn("b"), {"role": "user", "content": "Summarise."}),
        told,
        (*told, *turn("c")),
    ]
    asked, afterwards = episode.steps[2], episode.steps[3]
    before = episode.steps[1].prompt_ids + episode.steps[1].action_ids
    assert asked.prompt_ids[: len(before)] == before
    assert afterwards.prompt_ids == renderer.render(afterwards.observation).token_ids
    assert (asked.done, asked.reward, asked.info["metrics"]) == (False, 0.0, {"episode/summaries": 1.0})
    assert episode.stop_reason is StopReason.DONE
    assert episode.metrics["episode/summaries"] == 1.0


def test_a_summary_too_long_for_the_budget_is_not_asked_for_again_at_once() -> None:
    policy = make_policy({"name": "summarise", "characters": 5})
    conversation = Conversation(policy, TASK.prompt)
    assert len(conversation.messages) == 2
    conversation.add({"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"})
    assert conversation.messages[-1]["role"] == "user"
    assert conversation.takes(Action(text="longer than five characters"))
    assert not conversation.takes(Action(text="what comes next is for the environment"))
    assert len(conversation.messages) == 4


def test_a_call_in_place_of_a_summary_runs_no_tool(renderer: ChatRenderer) -> None:
    policy = {"name": "summarise", "characters": 90}
    texts = [call("a"), call("b"), "21"]
    episode, _ = play(renderer, ToolEnv([ECHO], context=policy), *texts)
    assert episode.metrics["tool/echo/calls"] == 1.0


def test_rewritten_history_is_recorded_and_read_back_exactly(renderer: ChatRenderer, tmp_path: Path) -> None:
    env = ToolEnv([ECHO], context={"name": "window", "turns": 1})
    episode, _ = play(renderer, env, call("a"), call("b"), call("c"), "21")
    trajectory = Trajectory(
        task_id="t", group_id=0, member=0, steps=episode.steps, outcome_reward=1.0, stop_reason=episode.stop_reason
    )
    group = Group(task=TASK, group_id=0, trajectories=(trajectory,))
    write_trajectories(tmp_path / "t.jsonl", [group], policy_step=0)
    [read] = read_trajectories(tmp_path / "t.jsonl")
    assert [(s.prompt_ids, s.action_ids, s.observation) for s in read.steps] == [
        (s.prompt_ids, s.action_ids, s.observation) for s in episode.steps
    ]


def test_a_policy_of_ones_own_is_found_by_name() -> None:
    @context_policies.register("tests_last_only")
    class LastOnly(ContextPolicy):
        def show(self, history: History) -> tuple[Any, ...]:
            return history.messages[-1:]

    assert isinstance(make_policy("tests_last_only"), LastOnly)
    policy = LastOnly()
    assert make_policy(policy) is policy


def test_wrong_policies_and_arguments_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'window'"):
        ToolEnv([ECHO], context="windw")
    with pytest.raises(ConfigError, match="Did you mean 'turns'"):
        make_policy({"name": "window", "turn": 3})
    for choice in ({"name": "window", "turns": 0}, {"name": "summarise", "characters": 0}):
        with pytest.raises(ConfigError, match="must be at least 1"):
            make_policy(choice)


# Limits


def act(env: AgentEnv, *actions: str) -> list[StepResult]:
    async def run() -> list[Any]:
        await env.reset(TASK)
        return [await env.step(Action(text=text, content=text)) for text in actions]

    return asyncio.run(run())


class Slow(ListEnv):
    async def step(self, action: Action) -> Any:
        await asyncio.sleep(30)


def test_a_step_that_takes_too_long_is_an_env_error_that_says_so(renderer: ChatRenderer) -> None:
    env = Slow([])
    with pytest.raises(EpisodeError, match=r"step of Slow took more than 0\.05 s; it was cancelled") as caught:
        play(renderer, TimeLimit(StepLimit(env, steps=3), seconds=0.05), "a")
    assert caught.value.reason is StopReason.ENV_ERROR
    assert env.num_closed == 1


def test_a_timeout_of_the_environments_own_is_not_taken_for_the_limit() -> None:
    with pytest.raises(TimeoutError, match="its own"):
        act(TimeLimit(ListEnv([TimeoutError("its own")]), seconds=5), "a")


def test_step_limit_truncates_and_keeps_the_state_to_bootstrap_from(renderer: ChatRenderer) -> None:
    env = StepLimit(ListEnv([going_on("1"), going_on("2"), DONE]), steps=2)
    episode, _ = play(renderer, env, "a", "b")
    assert (episode.stop_reason, len(episode.steps)) == (StopReason.MAX_STEPS, 2)
    assert [step.done for step in episode.steps] == [False, False]
    following = Observation(messages=({"role": "user", "content": "2"},))
    assert episode.next_prompt_ids == renderer.render(following).token_ids


def test_a_limit_that_is_part_of_the_task_ends_the_episode(renderer: ChatRenderer) -> None:
    """Nothing comes after it, so nothing is bootstrapped; and an action that calls, or was cut, is no answer."""
    env = StepLimit(ListEnv([going_on("1"), going_on("2"), DONE]), steps=2, ends=True)
    episode, _ = play(renderer, env, "a", "b")
    assert (episode.stop_reason, episode.next_prompt_ids, len(episode.steps)) == (StopReason.DONE, None, 2)
    assert episode.steps[-1].done
    assert episode.answer == "b"
    cut = replace(episode, stop_reason=StopReason.MAX_STEPS)
    assert cut.answer == ""
    calling = replace(episode.steps[-1].action, tool_calls=(ToolCall(name="f", arguments={}),))
    assert replace(episode, steps=(replace(episode.steps[-1], action=calling),)).answer == ""


def test_an_end_on_the_last_allowed_step_is_done(renderer: ChatRenderer) -> None:
    episode, _ = play(renderer, StepLimit(ListEnv([DONE]), steps=1), "a")
    assert (episode.stop_reason, episode.next_prompt_ids) == (StopReason.DONE, None)


def test_truncation_without_an_observation_bootstraps_from_the_turns_own_end(renderer: ChatRenderer) -> None:
    episode, _ = play(renderer, ListEnv([StepResult(observation=None, truncated=True)]), "a")
    [step] = episode.steps
    assert episode.stop_reason is StopReason.MAX_STEPS
    assert episode.next_prompt_ids == step.prompt_ids + step.action_ids


def test_long_answers_are_cut_in_the_middle_and_the_task_and_the_model_never(renderer: ChatRenderer) -> None:
    env = ObservationLimit(ToolEnv([ECHO]), characters=10)
    texts = [call("abcdefghijklmn"), call("b"), "21"]
    episode, engine = play(renderer, env, *texts)
    exact(episode, engine, renderer, texts)
    shown = episode.steps[2].observation.messages or ()
    assert shown[:3] == (*TASK.prompt, turn("abcdefghijklmn")[0])
    assert shown[3]["content"] == "heard\n[... 10 of 20 characters left out ...]\njklmn"
    assert shown[5]["content"] == "heard b"
    before = episode.steps[1].prompt_ids + episode.steps[1].action_ids
    assert episode.steps[2].prompt_ids[: len(before)] == before


def test_long_text_is_cut_too() -> None:
    env = ObservationLimit(ListEnv([StepResult(observation=Observation(text="0123456789"))]), characters=4)
    [result] = act(env, "a")
    assert result.observation == Observation(text="01\n[... 6 of 10 characters left out ...]\n89")


def test_limits_are_configured_as_a_list_the_first_innermost() -> None:
    config = load_config(None, ["env.limits=[{name: steps, steps: 3},{name: time, seconds: 5}]", "model.path=x"])
    env = make_env(TASK, {**config.env, "tools": [ECHO]})
    assert isinstance(env, TimeLimit)
    assert isinstance(env.env, StepLimit)
    assert isinstance(env.env.env, ToolEnv)
    assert env.preview(TASK).tools == (ECHO.tool_schema,)


def test_wrong_limits_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'time'"):
        wrap_env(ListEnv([]), [{"name": "tim"}])
    with pytest.raises(ConfigError, match="takes no argument 'second'"):
        wrap_env(ListEnv([]), [{"name": "time", "second": 3}])
    with pytest.raises(ConfigError, match="must be at least 1"):
        StepLimit(ListEnv([]), steps=0)
    with pytest.raises(ConfigError, match="found 3"):
        wrap_env(ListEnv([]), [3])
    with pytest.raises(ConfigError, match="found 3"):
        make_policy(3)  # type: ignore[arg-type]
    assert isinstance(wrap_env(ListEnv([]), ["time"]), TimeLimit)


def test_an_image_counts_by_its_size_and_not_by_its_bytes() -> None:
    def counted(image: Any) -> int:
        return num_characters([{"role": "tool", "content": [{"type": "image", "image": image}]}])

    assert [counted(b"x" * 10_000), counted(read_picture(Image.new("RGB", (8, 8))))] == [256, 256]
    assert counted(read_picture(Image.new("RGB", (448, 448)))) == 4 * 16 * 16
    assert (
        num_characters([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x" * 999}}]}]) == 256
    )


def test_a_long_history_of_images_is_summarised() -> None:
    image = {"type": "image", "image": read_picture(Image.new("RGB", (448, 448)))}
    policy = Summarise(characters=2000)
    turns = tuple(({"role": "assistant", "content": ""}, {"role": "tool", "content": [image]}) for _ in range(2))
    assert policy.question(History(task=(), turns=turns[:1])) is None
    assert policy.question(History(task=(), turns=turns)) is not None


def test_the_limit_of_observations_cuts_text_beside_images_and_no_image() -> None:
    parts = [{"type": "text", "text": "x" * 50}, {"type": "image", "image": read_picture(Image.new("RGB", (8, 8)))}]
    env = ObservationLimit(ListEnv([]), characters=10)
    cut = env._cut(Observation(messages=({"role": "tool", "content": parts},)))
    assert cut.messages is not None
    text, image = cut.messages[0]["content"]
    assert "40 of 50 characters left out" in text["text"]
    assert image is parts[1]
