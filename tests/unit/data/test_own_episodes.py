"""Solved episodes as demonstrations: which become one, their rows, duplicates, functions of the user's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.data import (
    UnfitEpisodeError,
    conversation_key,
    episode_row,
    load_demonstrations,
    solved_episode,
    write_demonstrations,
)
from agent_r1.envs.context import Append, ContextPolicy, Conversation, DropThinking, Window
from agent_r1.errors import ConfigError, EpisodeError
from agent_r1.training.demonstrations import Choice, Rule, choose_rows, draw_tasks
from agent_r1.types import Action, Group, Message, Observation, Step, StopReason, Task, ToolCall, Trajectory

TASK = Task(task_id="tea", prompt=({"role": "user", "content": "What do 2 tea cost?"},))
SCHEMA = {"type": "function", "function": {"name": "price", "parameters": {"type": "object", "properties": {}}}}


def call(item: str, call_id: str = "a") -> Action:
    return Action(text=f"call {item}", tool_calls=(ToolCall(name="price", arguments={"item": item}, call_id=call_id),))


def say(text: str) -> Action:
    return Action(text=text, content=text)


def step(action: Action, observation: Observation) -> Step:
    """A step of as many tokens as its action has characters."""
    ids = tuple(range(len(action.text)))
    return Step(
        observation=observation,
        prompt_ids=(1,),
        action=action,
        action_ids=ids,
        rollout_logprobs=(0.0,) * len(ids),
        reward=0.0,
        done=False,
        policy_versions=(0,) * len(ids),
    )


def episode(*actions: Action, policy: ContextPolicy | None = None, **changes: Any) -> Trajectory:
    """An episode in which each action is answered with 4, as an environment shows it."""
    conversation = Conversation(policy or Append(), TASK.prompt)
    steps = []
    for action in actions:
        steps.append(step(action, Observation(messages=conversation.messages, tools=(SCHEMA,))))
        reply: Message = {"role": "tool", "content": "4", "tool_call_id": "a"}
        conversation.add(action.as_message(), reply)
    parts: dict[str, Any] = {"outcome_reward": 1.0, "stop_reason": StopReason.DONE, **changes}
    return Trajectory(task_id="tea", group_id=0, member=0, steps=tuple(steps), **parts)


def choose(*episodes: Trajectory, keep: int = 9, rule: Rule | None = None) -> Choice:
    group = Group(task=TASK, group_id=0, trajectories=episodes)
    return asyncio.run(choose_rows([group], keep, rule or Rule()))


def said(row: dict[str, Any]) -> str:
    return str(row["messages"][-1]["content"])


# --- one episode -----------------------------------------------------------------------------------------------------


def test_a_solved_episode_is_its_whole_conversation() -> None:
    row = solved_episode(TASK, episode(call("tea"), say("8")))
    assert row is not None
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert row["messages"][1]["tool_calls"][0]["function"] == {"name": "price", "arguments": {"item": "tea"}}
    assert (said(row), row["tools"], "control_tokens" in row) == ("8", [SCHEMA], False)


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome_reward": 0.9},
        {"reward_parts": {"success": 0.0}},
        {"stop_reason": StopReason.MAX_STEPS},
        {"stop_reason": StopReason.CONTEXT_FULL},
        {"stop_reason": StopReason.TOOL_ERROR},
    ],
)
def test_an_episode_that_is_not_solved_or_was_cut_is_none(changes: dict[str, Any]) -> None:
    assert solved_episode(TASK, episode(say("8"), **changes)) is None


def test_a_malformed_turn_makes_it_none() -> None:
    malformed = Action(text="<tool_call>", content="<tool_call>", parse_error="no JSON")
    assert solved_episode(TASK, episode(malformed, say("8"))) is None


def test_prompts_whose_control_tokens_count_say_so_in_their_row() -> None:
    assert episode_row(replace(TASK, control_tokens=True), episode(say("8")))["control_tokens"] is True


@pytest.mark.parametrize(
    ("policy", "num_turns", "fits"),
    [(Window(turns=1), 2, True), (Window(turns=1), 3, False), (DropThinking(), 2, False), (Append(), 3, True)],
)
def test_a_context_policy_that_cut_something_makes_it_unfit(policy: ContextPolicy, num_turns: int, fits: bool) -> None:
    thinking = replace(say("<think>a price</think>ask"), tool_calls=())
    found = episode(*[thinking] * (num_turns - 1), say("8"), policy=policy)
    if fits:
        assert len(episode_row(TASK, found)["messages"]) == 2 * num_turns
    else:
        with pytest.raises(UnfitEpisodeError, match=rf"step {num_turns} does not continue"):
            episode_row(TASK, found)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (Observation(text="What?"), "text or token ids"),
        (Observation(messages=TASK.prompt, images=("a.png",)), "images"),
        (Observation(messages=({"role": "user", "content": [{"type": "image", "image": "a.png"}]},)), "images"),
    ],
)
def test_prompts_that_no_row_can_hold_make_it_unfit(observation: Observation, message: str) -> None:
    found = replace(episode(say("8")), steps=(step(say("8"), observation),))
    with pytest.raises(UnfitEpisodeError, match=message):
        solved_episode(TASK, found)


def test_tools_that_change_within_an_episode_make_it_unfit() -> None:
    first, last = episode(call("tea"), say("8")).steps
    changed = replace(last, observation=replace(last.observation, tools=()))
    with pytest.raises(UnfitEpisodeError, match="step 2 has other tools"):
        episode_row(TASK, replace(episode(say("8")), steps=(first, changed)))


# --- several episodes ------------------------------------------------------------------------------------------------


def test_the_shortest_are_kept_and_none_twice() -> None:
    short, long, longest = say("8"), say("it is 8"), say("the answer is 8")
    again = episode(call("tea", "a"), short), episode(call("tea", "b"), short)
    found = choose(episode(longest), episode(long), *again, episode(short), episode(long))
    assert [said(row) for row in found.rows] == ["8", "it is 8", "8", "the answer is 8"]
    assert [len(row["messages"]) for row in found.rows] == [2, 2, 4, 2]
    assert choose(episode(longest), episode(long), *again, keep=1).rows == [episode_row(TASK, episode(long))]


def test_calls_with_other_arguments_are_other_conversations() -> None:
    found = choose(episode(call("tea"), say("8")), episode(call("egg"), say("8")), episode(call("tea"), say("8")))
    assert len(found.rows) == 2
    keys = [conversation_key(row) for row in found.rows]
    as_text = json.loads(json.dumps(found.rows[0]))
    function = as_text["messages"][1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    assert (len(set(keys)), conversation_key(as_text)) == (2, keys[0])


def test_what_is_not_one_conversation_is_counted_and_left_out() -> None:
    found = choose(episode(say("a"), say("b"), say("8"), policy=Window(turns=1)), episode(say("8")))
    assert ([said(row) for row in found.rows], len(found.unfit)) == (["8"], 1)


def test_failed_episodes_are_never_offered() -> None:
    offered: list[StopReason] = []
    rule = Rule(lambda task, trajectory: offered.append(trajectory.stop_reason))
    failed = episode(say("8"), stop_reason=StopReason.ENV_ERROR)
    empty = episode(stop_reason=StopReason.CONTEXT_FULL)
    assert choose(failed, empty, episode(say("8"), stop_reason=StopReason.MAX_STEPS), rule=rule).rows == []
    assert offered == [StopReason.MAX_STEPS]


# --- functions of the user's own -------------------------------------------------------------------------------------

OWN = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]}


async def later(task: Task, trajectory: Trajectory) -> Any:
    await asyncio.sleep(0)
    return OWN


def as_text(task: Task, trajectory: Trajectory) -> Any:
    return {"messages": json.dumps(OWN["messages"])}


@pytest.mark.parametrize("function", [lambda task, trajectory: OWN, later, as_text])
def test_a_function_may_be_sync_or_async(function: Callable[..., Any]) -> None:
    assert choose(episode(say("8"), outcome_reward=0.0), rule=Rule(function)).rows == [OWN]


def test_an_unfit_episode_of_a_function_that_only_adds_a_condition_is_counted_too() -> None:
    unfit = episode(say("a"), say("b"), say("8"), policy=Window(turns=1))
    found = choose(unfit, rule=Rule(lambda task, trajectory: solved_episode(task, trajectory) or None))
    assert (found.rows, len(found.unfit)) == ([], 1)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (5, "needs 'messages', a list; found: int"),
        (True, "found: bool"),
        ([OWN], "found: list"),
        ({"message": []}, "found: message"),
        ({"messages": 5}, "found: 'messages' as int"),
        ({"messages": [{"role": "user", "content": "?"}]}, "no assistant message"),
        ({"messages": ["?"]}, "message 0 of 'messages' needs 'role'"),
        ({**OWN, "tools": "price"}, "not JSON"),
        ({**OWN, "control_tokens": 1}, "must be true or false"),
        ({**OWN, "score": {"half": Decimal("0.5")}}, r"the row\.score\.half is a Decimal, which JSON does not have"),
    ],
)
def test_a_function_that_returns_something_else_is_named_with_the_task(returned: Any, message: str) -> None:
    rule = Rule(lambda task, trajectory: returned, "sft.from_episode=demos:own")
    with pytest.raises(ConfigError, match=rf"sft\.from_episode=demos:own on task 'tea' returned .*{message}"):
        asyncio.run(rule.row_of(TASK, episode(say("8"))))


def test_a_function_that_raises_is_named_with_the_task_and_its_traceback() -> None:
    rule = Rule(lambda task, trajectory: {}["no such key"], "demos:own")
    with pytest.raises(EpisodeError, match=r"(?s)demos:own on task 'tea' failed.*KeyError: 'no such key'"):
        asyncio.run(rule.row_of(TASK, episode(say("8"))))


def test_an_episode_on_which_the_function_fails_costs_no_other() -> None:
    def only_short(task: Task, trajectory: Trajectory) -> Any:
        return {1: OWN, 2: 5}[len(trajectory.steps)]

    longer = [episode(*[call("tea")] * turns, say("8")) for turns in (0, 1, 2)]
    choice = choose(*longer, rule=Rule(only_short, "demos:own"))
    assert choice.rows == [OWN]
    assert [type(error) for error in choice.broken] == [ConfigError, EpisodeError]


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_both_kinds_of_file_are_read_back_alike(tmp_path: Path, renderer: ChatRenderer, suffix: str) -> None:
    mixed = replace(call("tea"), tool_calls=(ToolCall(name="price", arguments={"item": 5, "much": None}),))
    empty = replace(call("tea"), tool_calls=(ToolCall(name="price", arguments={}),))
    rows = choose(episode(call("tea"), say("8")), episode(mixed, say("8")), episode(empty, say("8"))).rows
    assert len(rows) == 3
    (tmp_path / "plain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_demonstrations(tmp_path / f"own{suffix}", rows)
    read, plain = (load_demonstrations([tmp_path / name], renderer) for name in (f"own{suffix}", "plain.jsonl"))
    assert read == plain


def test_fewer_tasks_are_the_first_of_more() -> None:
    tasks = [replace(TASK, task_id=str(number)) for number in range(20)]
    drawn = draw_tasks(tasks, 99, seed=3)
    assert (len(drawn), drawn[:5]) == (20, draw_tasks(tasks, 5, seed=3))
    assert drawn != tasks
