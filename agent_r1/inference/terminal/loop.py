"""The chat in a terminal: read a line, reply, again. In a pipe the same, one message per line of the input."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from agent_r1.errors import AgentR1Error
from agent_r1.inference.agent import Agent
from agent_r1.inference.session import ChatSession
from agent_r1.inference.terminal.commands import Commands, Reply, find_task, policy_step, read_image_file, saved_groups
from agent_r1.inference.terminal.display import EpisodeDisplay, show_end
from agent_r1.paths import cache_dir
from agent_r1.runs import trajectory_lines
from agent_r1.types import Task, Trajectory, printable

_BLOCK = '"""'
_MAX_HISTORY = 1000


class TerminalChat:
    """A chat with an agent: its event loop runs only while the agent replies, so that Ctrl-C stops just the reply."""

    def __init__(self, agent: Agent, console: Console, *, system: str | None = None, seed: int = 0) -> None:
        self.console = console
        self.session = ChatSession(agent, system=agent.system_message() if system is None else system, seed=seed)
        self._commands = Commands(self.session, console)

    def run(self, *, start: Task | None = None, question: str | None = None, images: Sequence[str] = ()) -> None:
        """Chat until the input ends. `start` is a task in whose world the conversation takes place; `question`, with
        these files of images, is asked first."""
        is_interactive = sys.stdin.isatty()
        first = Reply(say=question, images=tuple(read_image_file(name) for name in images))
        with asyncio.Runner() as runner, _history(is_interactive):
            context = self.session.agent.opened()
            runner.run(context.__aenter__())
            try:
                if start is not None:
                    runner.run(self.session.enter(start))
                if is_interactive:
                    self._greet()
                if question is not None:
                    if is_interactive:
                        self.console.print(Text(f"> {printable(question)}", style="bold"), soft_wrap=True)
                    self._carry_out(runner, first)
                for line in _lines(is_interactive):
                    if not self._take(runner, line):
                        break
            finally:
                runner.run(self._close(context))

    async def _close(self, context: Any) -> None:
        await self.session.close()
        await context.__aexit__(None, None, None)

    def _greet(self) -> None:
        agent = self.session.agent
        tools = agent.config.env.get("tools") or ()
        named = [str(entry.get("name")) if isinstance(entry, dict) else str(entry) for entry in tools]
        with_tools = f", tools: {', '.join(named)}" if named and agent.flow != "single_step" else ""
        self.console.print(Text(f"{agent.source.label}{with_tools}. /help lists the commands.", style="dim"))

    def _take(self, runner: asyncio.Runner, line: str) -> bool:
        """Carry out one line; False when it ends the chat."""
        if not line.strip():
            return True
        try:
            reply = self._commands(line.strip()) if line.lstrip().startswith("/") else Reply(say=line)
            if reply.say is not None and not reply.images:
                reply = replace(reply, images=self._commands.take_images())
        except AgentR1Error as error:
            self._show_error(error)
            return True
        if not reply.leave:
            self._carry_out(runner, reply)
        return not reply.leave

    def _carry_out(self, runner: asyncio.Runner, reply: Reply) -> None:
        """Do what a command or a message asks for."""
        try:
            if reply.reset:
                runner.run(self.session.reset())
            if reply.run is not None or reply.say is not None:
                self._reply(runner, reply)
        except AgentR1Error as error:
            self._show_error(error)

    def _show_error(self, error: AgentR1Error) -> None:
        self.console.print(Text(printable(str(error)), style="red"), soft_wrap=True)

    def _reply(self, runner: asyncio.Runner, reply: Reply) -> None:
        show = EpisodeDisplay(self.console, renderer=self.session.agent.renderer, raw=self._commands.raw)
        try:
            if reply.run is not None:
                trajectory = runner.run(self.session.run_task(reply.run, observer=show))
            else:
                episode = self.session.say(reply.say or "", images=reply.images, observer=show)
                trajectory = runner.run(episode)
        except KeyboardInterrupt:
            show.end_line()
            self.console.print(Text("[stopped; /undo takes it back]", style="yellow"))
            return
        show.end_line()
        show_end(self.console, trajectory, is_scored=reply.run is not None)


def ask_once(
    agent: Agent,
    *,
    question: str | None,
    task: Task | None,
    system: str | None = None,
    verbose: Console | None = None,
    seed: int = 0,
    images: Sequence[str] = (),
) -> tuple[Trajectory, str]:
    """One reply to a question, or to a task when there is no question; and its record as a line of JSON.

    A question with a task is asked in the task's world. `verbose` gets the episode as it runs. `images` are files whose
    images come with the question.
    """

    pictures = [read_image_file(name) for name in images]

    async def run() -> tuple[Trajectory, str]:
        async with agent.opened():
            session = ChatSession(agent, system=agent.system_message() if system is None else system, seed=seed)
            show = None if verbose is None else EpisodeDisplay(verbose, renderer=agent.renderer)
            try:
                if question is None:
                    assert task is not None
                    trajectory = await session.run_task(task, observer=show)
                else:
                    if task is not None:
                        await session.enter(task)
                    trajectory = await session.say(question, images=pictures, observer=show)
            finally:
                await session.close()
            if show is not None and verbose is not None:
                show.end_line()
                show_end(verbose, trajectory, is_scored=question is None)
            lines = trajectory_lines(saved_groups(session), policy_step=policy_step(session))
            return trajectory, "".join(lines)

    return asyncio.run(run())


def task_named(agent: Agent, name: str | None) -> Task | None:
    """The task of this number or id; None for None."""
    return None if name is None else find_task(agent.tasks(), name)


def _lines(is_interactive: bool) -> Iterator[str]:
    """What the user enters; a block between lines of three quotes is one message."""
    while True:
        line = _read("\001\033[1m\002> \001\033[0m\002", is_interactive)
        if line is None:
            return
        if line.strip().startswith(_BLOCK):
            line = _rest_of_block(line.strip().removeprefix(_BLOCK), is_interactive)
        yield line


def _rest_of_block(first: str, is_interactive: bool) -> str:
    lines = [first] if first else []
    while not (lines and lines[-1].endswith(_BLOCK)):
        line = _read("... ", is_interactive)
        if line is None:
            break
        lines.append(line)
    return "\n".join(lines).removesuffix(_BLOCK).strip("\n")


def _read(prompt: str, is_interactive: bool) -> str | None:
    """One line; None at the end of the input. Ctrl-C clears the line."""
    while True:
        try:
            if is_interactive:
                return input(prompt)
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            if not is_interactive:
                raise
            print()
        except UnicodeDecodeError as error:
            print(f"that line is not {error.encoding} text", file=sys.stderr)


@contextmanager
def _history(is_interactive: bool) -> Iterator[None]:
    """Line editing, and the lines of earlier chats, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    file = cache_dir("chat_history")
    if is_interactive:
        readline.set_history_length(_MAX_HISTORY)
        with suppress(OSError):
            readline.read_history_file(str(file))
    try:
        yield
    finally:
        if is_interactive:
            with suppress(OSError):
                Path(file).parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(str(file))
