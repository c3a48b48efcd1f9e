"""The chat in a pipe: what its commands do and what it prints, without a terminal."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agent_r1.chat import ChatRenderer
from agent_r1.errors import ConfigError, DataError
from agent_r1.flows import ActionParsed, AgentFlowBase, PromptRendered, TokensSampled, Turn
from agent_r1.inference import Agent
from agent_r1.inference.terminal import TerminalChat, ask_once
from agent_r1.inference.terminal.commands import changed_sampling, find_task
from agent_r1.inference.terminal.display import EpisodeDisplay, opening_of_calls, shade
from agent_r1.runs import read_trajectories
from agent_r1.tools import BaseTool, FunctionTool, ToolResponse
from agent_r1.types import (
    Completion,
    Episode,
    Observation,
    SamplingParams,
    Step,
    StopReason,
    Task,
    one_line,
    printable,
)
from tests.helpers.scripted_agents import CALL, scripted_agent
from tests.helpers.shop import TASK

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe\u202c\x9b31m\r\b\x7f\u2028\ufeff"


def type_lines(agent: Agent, monkeypatch: pytest.MonkeyPatch, *lines: str) -> tuple[str, TerminalChat]:
    """What a chat prints for these lines of input."""
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    output = io.StringIO()
    chat = TerminalChat(agent, Console(file=output, width=200, highlight=False, markup=False))
    chat.run(start=TASK)
    return output.getvalue(), chat


def test_a_reply_shows_text_calls_results_and_rewards_and_not_the_raw_call(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = scripted_agent(renderer, f"Let me look. {CALL}", "It costs 7.")
    shown, _ = type_lines(agent, monkeypatch, "an apple?")
    assert shown.splitlines() == [
        "Let me look. ",
        '-> look_up(item="apple")',
        "<- look_up: 7",
        "   step reward +0.25",
        "It costs 7.",
    ]


def test_a_malformed_call_is_shown_as_it_was_written_with_what_was_wrong(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = scripted_agent(renderer, "<tool_call>{apple", "sorry")
    shown, _ = type_lines(agent, monkeypatch, "an apple?")
    assert "<tool_call>{apple\nmalformed: " in shown
    assert shown.endswith("sorry\n")


def test_undo_takes_back_and_save_writes_what_is_read_back_token_for_token(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = scripted_agent(renderer, "one", "two", CALL, "three")
    file = tmp_path / "chat.jsonl"
    shown, chat = type_lines(agent, monkeypatch, "first", "second", "/undo", "third", f"/save {file}")
    assert "Taken back; 1 reply left." in shown
    assert [message["content"] for message in chat.session.messages if message["role"] == "user"] == ["first", "third"]
    saved = list(read_trajectories(file))
    for trajectory, exchange in zip(saved, chat.session.exchanges, strict=True):
        for step, said in zip(trajectory.steps, exchange.trajectory.steps, strict=True):
            assert (step.prompt_ids, step.action_ids, step.action) == (said.prompt_ids, said.action_ids, said.action)
            assert step.rollout_logprobs == said.rollout_logprobs
            assert step.observation == said.observation
    assert [trajectory.group_id for trajectory in saved] == [0, 1]


def test_a_task_is_shown_with_its_reward_and_its_answer(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def correct(task: Task, episode: Episode) -> dict[str, float]:
        return {"score": float(episode.answer == task.ground_truth), "length": 2.0}

    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "one?", "answer": "1"}\n{"question": "two?", "answer": "2"}\n')
    agent = scripted_agent(renderer, "2", "3", reward=correct, overrides=[f"data.train=[{rows}]"])
    shown, _ = type_lines(agent, monkeypatch, "/task 1", "/answer", "/task rows-0", "/task 7")
    assert "task rows-1\nuser: two?\n2\nreward 1, length 2\n2\ntask rows-0\n" in shown
    assert "reward 0, length 2" in shown
    assert "there is no task 7: there are 2, from 0 (id rows-0) to 1 (id rows-1)" in shown


def test_tokens_shows_ids_and_log_probs_of_the_last_turn(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = scripted_agent(renderer, CALL, "seven")
    shown, chat = type_lines(agent, monkeypatch, "/tokens", "an apple?", "/tokens", "/tokens all")
    first, last = chat.session.exchanges[0].trajectory.steps
    assert shown.startswith("there is no reply yet\n")
    assert shown.count(f"step 1: {len(last.action_ids)} tokens") == 1
    assert f"step 1: {len(first.action_ids)} tokens" in shown
    for token in last.action_ids:
        assert f"{token:>3}    -0.500  60.7%" in shown


def test_sampling_is_shown_changed_and_used(renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = scripted_agent(renderer, "one")
    shown, _ = type_lines(agent, monkeypatch, "/sampling temperature=0.5 top_k=3", "/sampling top_p=2 x=1", "hi")
    assert "temperature=0.5  top_p=1  top_k=3  max_tokens=256" in shown
    assert "top_p=2 is not a number above 0, at most 1; unknown key 'x'" in shown
    engine: Any = agent.engine
    [(_, used)] = engine.requests
    assert (used.temperature, used.top_k) == (0.5, 3)


def test_every_command_of_the_help_is_one_and_others_are_refused(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = scripted_agent(renderer, "one", "another")
    lines = ["/help", "/undoo", "/tools", "/system Be brief.", "/system", "hi", "/retry", "/quit", "never said"]
    shown, chat = type_lines(agent, monkeypatch, *lines)
    for command in ("/reset", "/undo", "/save FILE", "/tokens", "/sampling", "/task", "/system", "/tools", "/quit"):
        assert f"\n{command}" in f"\n{shown}"
    assert "there is no command /undoo. Did you mean 'undo'?" in shown
    assert "look_up(item)  The price of one item." in shown
    assert chat.session.messages[0]["content"] == "Be brief."
    assert [message["content"] for message in chat.session.messages[1:]] == ["hi", "another"]


@AgentFlowBase.register("tests_own_calls")
class OwnCalls(AgentFlowBase):
    """Calls the engine in a way of its own, and makes its steps itself."""

    async def run(self, task: Task) -> Episode:
        prompt = self.render(Observation(messages=task.prompt))
        completion = await self.context.engine.generate(prompt.token_ids, SamplingParams(stop=(2,)))
        step = Step(
            observation=prompt.observation,
            prompt_ids=prompt.token_ids,
            action=self.context.renderer.parse(completion.token_ids, truncated=False),
            action_ids=completion.token_ids,
            rollout_logprobs=completion.logprobs,
            reward=0.5,
            done=True,
            policy_versions=completion.policy_versions,
        )
        return Episode(steps=(step,), stop_reason=StopReason.DONE)


def test_a_flow_that_calls_the_model_in_its_own_way_is_shown_and_continued(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = scripted_agent(renderer, "one", "two", overrides=["data.agent_name=tests_own_calls"])
    monkeypatch.setattr("sys.stdin", io.StringIO("first\nsecond\n"))
    output = io.StringIO()
    chat = TerminalChat(agent, Console(file=output, width=200, highlight=False, markup=False))
    chat.run()
    assert output.getvalue().splitlines() == ["one", "   step reward +0.5", "two", "   step reward +0.5"]
    assert [message["content"] for message in chat.session.messages] == ["first", "one", "second", "two"]


def test_an_empty_reply_is_said_to_be_empty(renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = scripted_agent(renderer, "")
    assert type_lines(agent, monkeypatch, "hi")[0] == "[the reply is empty]\n"


def test_a_block_of_several_lines_is_one_message(renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = scripted_agent(renderer, "one")
    _, chat = type_lines(agent, monkeypatch, '"""', "a", "/b", '"""')
    assert chat.session.messages[0]["content"] == "a\n/b"


def test_a_reply_that_fails_is_reported_and_the_chat_continues(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = scripted_agent(renderer, "one")
    shown, chat = type_lines(agent, monkeypatch, "first", "second", "/undo")
    assert "failed (engine_error): " in shown
    assert "the script has 1 replies" in shown
    assert chat.session.messages == ()


def test_hostile_output_of_model_and_tools_reaches_no_terminal(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = scripted_agent(renderer, HOSTILE + CALL.replace("apple", "\\u001b[2J\\u202e"), f"bye{HOSTILE}")
    shown, _ = type_lines(agent, monkeypatch, "an apple?", "/tokens all", f"/save {tmp_path}/\x1b[2J")
    assert not [character for character in shown if character not in "\n\t" and character != printable(character)]
    assert "␛[2J" in shown
    assert "<U+202E>gnp.exe" in shown


@given(st.text())
def test_printable_text_has_no_control_character_and_parts_add_up(text: str) -> None:
    safe = printable(text)
    assert printable(safe) == safe
    assert "".join(map(printable, text)) == safe
    assert not set(safe) & set(HOSTILE.replace("owned", "").replace("gnp.exe", "")) - set("[2J]0;31m")
    assert "\n" not in one_line(text)


def test_ordinary_text_is_printed_as_it_is() -> None:
    text = "naïve 日本語 👩‍🚀 \t tab\nline — ✓ ‌میخواهم"
    assert printable(text) == text


def test_a_call_is_held_back_from_its_first_character_on(renderer: ChatRenderer) -> None:
    output = io.StringIO()
    show = EpisodeDisplay(Console(file=output, width=80), renderer=renderer)
    prompt = renderer.render(Observation(messages=({"role": "user", "content": "hi"},)))
    show(PromptRendered(prompt=prompt))
    seen = []
    for part in ("a < b ", "<", "tool", "_call>", "{}"):
        show(TokensSampled(text=part, token_ids=(), logprobs=()))
        seen.append(output.getvalue())
    assert seen == ["a < b "] * 5
    completion = Completion(token_ids=(), logprobs=(), finish_reason="stop", policy_versions=())
    action = renderer.parse(renderer.encode_rendered("a < b <tool_call>{}"), truncated=False)
    show(ActionParsed(turn=Turn(prompt=prompt, completion=completion, action=action, context_cut=False, seconds=0.0)))
    assert output.getvalue().startswith("a < b <tool_call>{}\nmalformed: ")
    assert opening_of_calls(renderer) == "<tool_call>"


def test_a_question_is_answered_once_and_a_task_with_its_record(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, CALL, "7")
    trajectory, record = ask_once(agent, question="an apple?", task=TASK)
    assert trajectory.steps[-1].action.text == "7"
    assert record.count("\n") == 1
    assert '"rollout_logprobs"' in record


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["temperature=-1"], "temperature=-1 is not a number from 0"),
        (["temperature=nan"], "temperature=nan is not"),
        (["top_k=1.5"], "top_k=1.5 is not a whole number"),
        (["max_tokens=0"], "max_tokens=0 is not a whole number from 1"),
        (["temprature=1"], "Did you mean 'temperature'"),
        (["temperature"], "temperature= is not"),
    ],
)
def test_wrong_sampling_is_refused(changes: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        changed_sampling(SamplingParams(), changes)


def test_a_task_is_found_by_its_id_before_its_number() -> None:
    tasks = [Task(task_id=name, prompt=()) for name in ("1", "x")]
    assert find_task(tasks, "1") is tasks[0]
    assert find_task(tasks, "0") is tasks[0]
    with pytest.raises(DataError, match="there is no task ²"):
        find_task(tasks, "²")


def test_shades_go_from_red_to_green() -> None:
    assert [shade(logprob) for logprob in (-10.0, -1.0, -0.2, -0.05, 0.0)] == [
        "bold red",
        "red",
        "yellow",
        "green",
        "bright_green",
    ]


def test_an_agent_closes_its_engine_when_the_chat_ends(renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = scripted_agent(renderer, "one")
    closed = asyncio.Event()

    async def close() -> None:
        closed.set()

    agent.engine.close = close
    type_lines(agent, monkeypatch, "hi")
    assert closed.is_set()


def submit(answer: str) -> ToolResponse:
    """Give the answer, which ends the episode."""
    return ToolResponse(text=answer, ends_episode=True)


def test_a_call_that_ends_the_episode_ends_the_conversation_until_it_is_taken_back(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = FunctionTool(submit, name="tests_end")
    BaseTool.registry.add(made.name, made, replaceable=True)
    call = '<tool_call>{"name": "tests_end", "arguments": {"answer": "7"}}</tool_call>'
    agent = scripted_agent(renderer, call, "again", overrides=[f"env.tools=[{made.name}]"])
    shown, chat = type_lines(agent, monkeypatch, "an apple?", "and now?", "/undo", "hello")
    lines = shown.splitlines()
    assert lines[:2] == ['-> tests_end(answer="7")', "[the call ended the episode with the answer: 7]"]
    assert "a tool call has ended the episode" in lines[2]
    assert lines[-1] == "again"
    assert [message["role"] for message in chat.session.messages] == ["user", "assistant"]
