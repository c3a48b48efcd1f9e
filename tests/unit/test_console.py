"""What people see of long work: bars on terminals, lines in logs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent_r1.console import RunConsole, progress_counter
from agent_r1.types import Action, Message, Observation, Step, StopReason, Trajectory


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, in a list of one."""
    now = [1000.0]
    monkeypatch.setattr("agent_r1.console.time.monotonic", lambda: now[0])
    return now


def test_a_log_hears_once_a_minute_how_far_long_work_is(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with RunConsole().progress("evaluating", 300) as bar:
        for _ in range(300):
            clock[0] += 0.5
            bar.advance()
    assert capsys.readouterr().out.splitlines() == [
        "evaluating: 120 of 300 after 1 min",
        "evaluating: 240 of 300 after 2 min",
    ]


def test_a_note_stands_behind_how_far_it_is(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with RunConsole().progress("warm start", 10, done=4) as bar:
        clock[0] += 300
        bar.advance("loss 0.310")
    assert capsys.readouterr().out == "warm start: 5 of 10 after 5 min, loss 0.310\n"


@pytest.mark.parametrize(("quiet", "in_logs"), [(True, True), (False, False)])
def test_quiet_work_and_work_with_lines_of_its_own_say_nothing(
    clock: list[float], capsys: pytest.CaptureFixture[str], quiet: bool, in_logs: bool
) -> None:
    with RunConsole(quiet=quiet).progress("training", 2, in_logs=in_logs) as bar:
        for _ in range(2):
            clock[0] += 100
            bar.advance()
    assert capsys.readouterr().out == ""


def test_a_step_that_compiled_for_long_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """From a tenth of its seconds on."""
    for compiling, expected in ((60.0, "74.2 s, 60.0 of them compiling"), (7.0, "74.2 s"), (0.0, "74.2 s")):
        RunConsole().step_line(1, 18, {"reward/outcome": 0.5, "time/compile": compiling}, 74.2)
        assert capsys.readouterr().out.strip().endswith(expected)


def test_work_of_less_than_a_minute_leaves_no_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with RunConsole().progress("rollout", 59) as bar:
        for _ in range(59):
            clock[0] += 1
            bar.advance()
    assert capsys.readouterr().out == ""


def test_items_that_are_tracked_come_in_order_and_count_when_they_are_done(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for item in RunConsole().tracked("tokenising demonstrations", "abc"):
        clock[0] += {"a": 30, "b": 40, "c": 10}[item]
    assert capsys.readouterr().out == "tokenising demonstrations: 2 of 3 after 1 min\n"


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def step(messages: Sequence[Message], action: str, parent: int | None = None) -> Step:
    return Step(
        observation=Observation(messages=tuple(messages)),
        prompt_ids=(1,),
        action=Action(text=action, content=action, token_ids=(2,)),
        action_ids=(2,),
        rollout_logprobs=(0.0,),
        reward=0.0,
        done=False,
        policy_versions=(0,),
        parent=parent,
    )


def printed(capsys: pytest.CaptureFixture[str], *steps: Step, answer: str | None = None) -> list[str]:
    """The lines of an episode, without its frame."""
    episode = Trajectory(
        task_id="a",
        group_id=0,
        member=0,
        steps=steps,
        outcome_reward=1.0,
        stop_reason=StopReason.DONE,
        given_answer=answer,
    )
    RunConsole().trajectory("an episode [/of] [red]a task", episode)
    first, *lines, _, _ = capsys.readouterr().out.splitlines()
    assert "an episode [/of] [red]a task" in first
    return [line.strip("│ \n") for line in lines]


def test_an_episode_shows_what_a_terminal_would_obey_and_the_answer_that_was_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, step([said("user", "\x1b[2J\x00red\u202e")], "\x1b]0;title\x07"), answer="\x1b[2J12")
    assert lines == ["user: ␛[2J␀red<U+202E>", "agent: ␛]0;title␇", "answer: ␛[2J12"]


def test_an_episode_shows_each_message_once(capsys: pytest.CaptureFixture[str]) -> None:
    first = [said("user", "2+2?")]
    second = [*first, said("assistant", "let me see"), said("tool", "4")]
    lines = printed(capsys, step(first, "let me see"), step(second, "it is 4"))
    assert lines == ["user: 2+2?", "agent: let me see", "tool: 4", "agent: it is 4"]


def test_an_episode_shows_the_whole_prompt_of_each_branch_and_what_a_rewritten_history_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two sub-agents, the second of which is asked once more, and a summary whose prompt begins as the last one did."""
    one, two = [said("system", "brief"), said("user", "one")], [said("system", "brief"), said("user", "two")]
    more = [*two, said("assistant", "2"), said("user", "sure?")]
    notes = [*two, said("assistant", "2"), said("user", "1 and 2, so?")]
    lines = printed(
        capsys, step(one, "1", parent=-1), step(two, "2", parent=-1), step(more, "yes"), step(notes, "3", parent=1)
    )
    assert lines == [
        *("system: brief", "user: one", "agent: 1"),
        *("--- another branch", "system: brief", "user: two", "agent: 2", "user: sure?", "agent: yes"),
        *("--- another branch", "user: 1 and 2, so?", "agent: 3"),
    ]
    rewritten = [said("system", "brief"), said("user", "notes: 1"), said("user", "continue")]
    lines = printed(capsys, step(one, "1"), step(rewritten, "2"))
    assert lines == ["system: brief", "user: one", "agent: 1", "user: notes: 1", "user: continue", "agent: 2"]


@pytest.mark.parametrize(("total", "counted"), [(None, "120 rows"), (300, "120 of 300 rows")])
def test_a_counter_leaves_a_line_per_minute_where_there_is_no_terminal(
    clock: list[float], capsys: pytest.CaptureFixture[str], total: int | None, counted: str
) -> None:
    """Making data takes minutes, in a log as on a terminal."""
    with progress_counter("rows", total) as progress:
        for number in range(1, 200):
            clock[0] += 0.5
            progress("drawing", number)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"drawing: {counted} after 1 min\n")
