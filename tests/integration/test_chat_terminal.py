"""`agent-r1 chat` as people use it: in a real terminal, with keys pressed, and in pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.runs import read_trajectories
from tests.helpers.forks import forks, run_python
from tests.helpers.talking_recipe import write_recipe

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""The most that a test waits for any one thing."""


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        fdpexpect = pytest.importorskip("pexpect.fdpexpect")
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, 120))
        command = ["agent-r1", "chat", *arguments]
        self.process = forks().start(command, folder, environment(folder), terminal=theirs)
        os.close(theirs)
        self.child = fdpexpect.fdspawn(ours, encoding="utf-8", timeout=SECONDS)
        self.wait("/help lists the commands")
        self.prompt()

    def wait(self, text: str) -> str:
        """Wait for this text; returns all that came before it."""
        self.child.expect_exact(text)
        return self.child.before

    def prompt(self) -> str:
        """Wait for the prompt; returns all that came before it."""
        self.child.expect(re.compile(r"\r\n(\x1b\[\?2004h)?(\x1b\[1m)?> "))
        return self.child.before

    def type(self, line: str) -> None:
        self.child.sendline(line)

    def press_ctrl(self, key: str) -> None:
        self.child.send(chr(ord(key) - ord("@")))

    def ask(self, line: str) -> str:
        """Type a line; returns what is shown until the next prompt, without colours."""
        self.type(line)
        return plain(self.prompt())


def plain(text: str) -> str:
    """Text without the colours and the bracketed-paste marks that the chat itself writes."""
    return re.sub(r"\x1b\[[0-9;]*m|\x1b\[\?2004[hl]", "", text).replace("\r\n", "\n")


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "AGENT_R1_CACHE": str(folder / "cache"),
        "TERM": "xterm-256color",
    }


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


@pytest.fixture
def terminal(model_folder: Path, recipe: Path, tmp_path: Path) -> Iterator[Terminal]:
    running = Terminal([str(model_folder), "--recipe", str(recipe)], tmp_path)
    yield running
    running.process.close()
    running.child.close()


def chat(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return run_python("-m", "agent_r1.cli", "chat", *arguments, cwd=folder, env=environment(folder), text=text)


def test_a_reply_streams_is_stopped_by_ctrl_c_and_the_session_continues(
    terminal: Terminal, recipe: Path, tmp_path: Path
) -> None:
    terminal.type("count")
    terminal.wait("one two three")  # visible while the rest is not sampled yet
    terminal.press_ctrl("C")
    terminal.wait("[stopped; /undo takes it back]")
    terminal.prompt()
    assert "You said: still here" in terminal.ask("still here")
    (recipe / "gate").touch()
    assert "one two three" in terminal.ask("count again")
    assert "four five" in plain(terminal.child.before)
    shown = terminal.ask("What does it cost?")
    assert 'Let me look. \n-> price(item="apple")\n<- price: 7\n   step reward +0.25\nIt costs 7.' in shown
    assert "<tool_call>" not in shown
    assert "Taken back; 3 replies left." in terminal.ask("/undo")
    assert "Taken back; 2 replies left." in terminal.ask("/undo")
    assert "2 replies in" in terminal.ask("/save chat.jsonl")
    stopped, after = read_trajectories(tmp_path / "chat.jsonl")
    [cut] = stopped.steps
    assert cut.action.text.startswith("one two three")
    assert "four" not in cut.action.text
    [said] = after.steps
    assert said.prompt_ids[: len(cut.prompt_ids + cut.action_ids)] == cut.prompt_ids + cut.action_ids
    assert [message["content"] for message in said.observation.messages][-1] == "still here"
    terminal.press_ctrl("D")
    terminal.child.expect(eof())
    assert terminal.process.wait(SECONDS) == 0


def eof() -> Any:
    import pexpect

    return pexpect.EOF


def test_tasks_have_rewards_tokens_log_probs_and_hostile_output_is_harmless(terminal: Terminal) -> None:
    shown = terminal.ask("/task 0")
    assert "task rows-0\nuser: task 0" in shown
    assert "reward 1, process 0.25" in shown
    assert "reward 0, process 0.25" in terminal.ask("/task")
    terminal.type("/tokens")
    coloured = terminal.prompt()
    assert "-0.500" in coloured
    assert "\x1b[33m" in coloured, "a probability of 61 % is yellow"
    assert "price(item)" in terminal.ask("/tools")
    terminal.ask("/reset")
    terminal.type("hostile")
    raw = terminal.prompt()
    shown = plain(raw)
    assert "␛[2J␛]0;owned␇ <U+202E>exe.gnp<U+202C> <U+009B>31m␍ end of it" in shown
    assert not set(shown) & set("\x1b\x07\x9b\u202e\b")
    assert "\x1b[2J" not in raw
    assert "\x1b]0" not in raw


def test_a_tool_that_hangs_is_stopped_and_ctrl_c_at_the_prompt_only_clears_the_line(terminal: Terminal) -> None:
    terminal.type("please wait")
    terminal.wait('wait(item="x")')
    terminal.press_ctrl("C")
    terminal.wait("[stopped")
    terminal.prompt()
    terminal.child.send("half a line")
    terminal.wait("half a line")
    terminal.press_ctrl("C")
    terminal.prompt()
    assert "You said: whole" in terminal.ask("whole")
    terminal.type("/quit")
    terminal.child.expect(eof())
    assert terminal.process.wait(SECONDS) == 0


def test_one_question_prints_the_answer_alone(model_folder: Path, recipe: Path, tmp_path: Path) -> None:
    model = [str(model_folder), "--recipe", str(recipe)]
    asked = chat(tmp_path, *model, "--question", "-", "--verbose", text="What does it cost?\n")
    assert (asked.returncode, asked.stdout) == (0, "It costs 7.\n")
    assert '-> price(item="apple")' in asked.stderr
    record = chat(tmp_path, *model, "--task", "rows-1", "--json")
    assert record.returncode == 0, record.stderr
    trajectory = json.loads(record.stdout)
    assert (trajectory["task_id"], trajectory["outcome_reward"], len(trajectory["steps"])) == ("rows-1", 0.0, 2)
    assert trajectory["steps"][0]["action_ids"]


def test_a_question_with_interactive_is_asked_first_and_the_chat_continues(
    model_folder: Path, recipe: Path, tmp_path: Path
) -> None:
    model = [str(model_folder), "--recipe", str(recipe), "--interactive"]
    asked = chat(tmp_path, *model, "--question", "/help hello", text="again\n/undo\n")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout == "You said: /help hello\nYou said: again\nTaken back; 1 reply left.\n"


@pytest.mark.parametrize("words", [["--question", "-"], ["--question", "hi", "--json"], ["--image", "x.png"]])
def test_what_a_chat_cannot_do_with_its_first_question_is_refused(tmp_path: Path, words: list[str]) -> None:
    refused = CliRunner().invoke(app, ["chat", str(tmp_path), "--interactive", *words])
    assert refused.exit_code == 2
    assert "error: --" in refused.output


def test_a_pipe_is_a_chat_line_by_line_and_mistakes_are_one_message(
    model_folder: Path, recipe: Path, tmp_path: Path
) -> None:
    piped = chat(tmp_path, str(model_folder), "--recipe", str(recipe), text="hello\n/undo\n/bogus\nagain\n")
    assert piped.returncode == 0, piped.stderr
    assert "You said: hello\nTaken back; 0 replies left.\nthere is no command /bogus." in piped.stdout
    assert piped.stdout.endswith("You said: again\n")
    assert "\x1b" not in piped.stdout
    gone = chat(tmp_path, "tiny", "--server", "http://127.0.0.1:9", "--question", "hi")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.startswith("failed (engine_error): the server http://127.0.0.1:9/v1 cannot be reached")
    wrong = chat(tmp_path, str(tmp_path / "nothing"))
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: ")
    assert "Traceback" not in wrong.stderr


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_chat_works_in_tmux(model_folder: Path, recipe: Path, tmp_path: Path) -> None:
    socket = ["tmux", "-S", str(tmp_path / "tmux")]

    def screen() -> str:
        return subprocess.run([*socket, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout

    def wait_for(text: str) -> None:
        subprocess.run(
            ["bash", "-c", f'until {" ".join(socket)} capture-pane -p | grep -qF -- "$0"; do sleep 0.05; done', text],
            check=True,
            timeout=SECONDS,
        )

    command = [sys.executable, "-m", "agent_r1.cli", "chat", str(model_folder), "--recipe", str(recipe)]
    size = ["-x", "100", "-y", "30"]
    subprocess.run([*socket, "new-session", "-d", *size, *command], check=True, cwd=tmp_path, env=environment(tmp_path))
    try:
        wait_for("/help lists the commands")
        subprocess.run([*socket, "send-keys", "hostile", "Enter"], check=True)
        wait_for("end of it")
        lines = screen().splitlines()
        assert any("talk" in line or "/help lists" in line for line in lines), "the screen was not cleared"
        assert any(line.startswith("> hostile") for line in lines)
    finally:
        subprocess.run([*socket, "kill-server"], check=False)
