"""The slash commands of a chat."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_r1.errors import ConfigError, DataError, did_you_mean
from agent_r1.images import Picture, pictures_in, read_picture
from agent_r1.inference.session import ChatSession
from agent_r1.inference.terminal.display import last_steps, show_messages, show_tokens, show_tools
from agent_r1.runs import write_trajectories
from agent_r1.types import Group, SamplingParams, Task, one_line, printable

_RANGES: dict[str, tuple[type, Callable[[Any], bool], str]] = {
    "temperature": (float, lambda value: 0 <= value <= 1000, "a number from 0 (greedy)"),
    "top_p": (float, lambda value: 0 < value <= 1, "a number above 0, at most 1"),
    "top_k": (int, lambda value: value >= 0, "a whole number from 0 (all tokens)"),
    "max_tokens": (int, lambda value: value >= 1, "a whole number from 1"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What the loop has to do after a command."""

    say: str | None = None
    """Send this message to the agent."""
    images: tuple[Picture, ...] = ()
    """Images of this message."""
    run: Task | None = None
    """Run this task."""
    reset: bool = False
    """Begin a new conversation."""
    leave: bool = False
    """End the chat."""


class Commands:
    """Carries out slash commands of one session."""

    def __init__(self, session: ChatSession, console: Console) -> None:
        self._session = session
        self._console = console
        self._next_task = 0
        self.raw = False
        """Whether calls are shown as the model wrote them."""
        self.images: list[Picture] = []
        """What is attached to the next message."""

    def __call__(self, line: str) -> Reply:
        """Carry out one line that begins with a slash. Raises `AgentR1Error` for one that cannot be."""
        name, _, rest = line[1:].strip().partition(" ")
        command = _COMMANDS.get(name)
        if command is None:
            raise ConfigError(f"there is no command /{one_line(name, 40)}. {did_you_mean(name, _COMMANDS)}")
        return command(self, rest.strip()) or Reply()

    def help(self, rest: str) -> None:
        """/help: this list."""
        table = Table(box=None, show_header=False, pad_edge=False)
        for command in _COMMANDS.values():
            name, _, text = (command.__doc__ or "").partition(": ")
            table.add_row(Text(name, style="cyan"), " ".join(text.split()))
        self._console.print(table)
        self._console.print(
            'A message of several lines stands between lines of """. Ctrl-C stops a reply, Ctrl-D leaves.'
        )

    def reset(self, rest: str) -> Reply:
        """/reset: begin a new conversation; the system message and the sampling stay"""
        self._tell("The conversation begins again.")
        return Reply(reset=True)

    def undo(self, rest: str) -> None:
        """/undo: take back your last message and the reply to it"""
        if not self._session.exchanges:
            raise ConfigError("there is nothing to undo")
        self._session.undo()
        num = len(self._session.exchanges)
        self._tell(f"Taken back; {num} {'reply' if num == 1 else 'replies'} left.")

    def retry(self, rest: str) -> Reply:
        """/retry: take back the last reply and sample another one"""
        if not self._session.exchanges:
            raise ConfigError("there is nothing to retry")
        task = self._session.exchanges[-1].task
        if self._session.exchanges[-1].is_scored:
            return Reply(run=task)
        self._session.undo()
        last = task.prompt[-1]
        content = last["content"]
        texts = [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
        return Reply(say="".join(texts), images=tuple(pictures_in([last])))

    def image(self, rest: str) -> None:
        """/image [FILE ...]: attach image files to your next message; without one, take back what is attached"""
        names = _words(rest)
        attached = [read_image_file(name) for name in names]
        self.images = [*self.images, *attached] if attached else []
        self._tell("  ".join(f"{image.width} x {image.height}" for image in self.images) or "Nothing is attached.")

    def take_images(self) -> tuple[Picture, ...]:
        """What is attached; nothing is afterwards."""
        images, self.images = tuple(self.images), []
        return images

    def save(self, rest: str) -> None:
        """/save FILE: write the replies with their exact tokens (.jsonl, for agent_r1.load_trajectories)"""
        names = _words(rest)
        if len(names) != 1:
            raise ConfigError("name one file: /save chat.jsonl")
        if not self._session.exchanges:
            raise ConfigError("there is nothing to save yet")
        path = Path(names[0]).expanduser()
        if path.is_dir():
            raise ConfigError(f"{path} is a folder; name a file: /save {path / 'chat.jsonl'}")
        write_trajectories(path, saved_groups(self._session), policy_step=policy_step(self._session))
        self._tell(f"{len(self._session.exchanges)} replies in {path}")

    def tokens(self, rest: str) -> None:
        """/tokens [all]: the sampled tokens of the last turn (of all its turns) with ids and log-probs"""
        steps = last_steps(self._session.exchanges)
        if not steps:
            raise ConfigError("there is no reply yet")
        if not any(step.action_ids for step in steps):
            raise ConfigError("the server does not tell the tokens")
        tokenizer = self._session.agent.renderer.tokenizer
        chosen = steps if rest == "all" else steps[-1:]
        show_tokens(self._console, chosen, lambda token: str(tokenizer.decode([token], skip_special_tokens=False)))

    def sampling(self, rest: str) -> None:
        """/sampling [KEY=VALUE ...]: show or set temperature, top_p, top_k, max_tokens"""
        self._session.sampling = changed_sampling(self._session.sampling, _words(rest))
        now = self._session.sampling
        self._tell("  ".join(f"{name}={getattr(now, name):g}" for name in _RANGES))

    def task(self, rest: str) -> Reply:
        """/task [N|ID]: run a task of the recipe's data and show its reward; without a number the next one"""
        task = find_task(self._session.agent.tasks(), rest or str(self._next_task))
        self._next_task = self._session.agent.tasks().index(task) + 1
        self._tell(f"task {task.task_id}")
        show_messages(self._console, task.prompt)
        return Reply(run=task)

    def answer(self, rest: str) -> None:
        """/answer: the ground truth of the task that was run"""
        truth = self._session.exchanges[0].task.ground_truth if self._session.exchanges else None
        self._tell("there is none" if truth is None else str(truth))

    def system(self, rest: str) -> Reply:
        """/system [TEXT]: show the system message; or set it, which begins a new conversation; - removes it"""
        if not rest:
            self._tell(self._session.system or "there is no system message")
            return Reply()
        self._session.exchanges.clear()
        self._session.system = None if rest == "-" else rest
        self._tell("The conversation begins again with this system message.")
        return Reply(reset=True)

    def tools(self, rest: str) -> None:
        """/tools: the tools that the model may call"""
        agent = self._session.agent
        task = self._session.exchanges[-1].task if self._session.exchanges else agent.question(({"role": "user"},))
        if task.agent_name == "single_step":
            show_tools(self._console, ())
        else:
            show_tools(self._console, agent.make_env(task).preview(task).tools)

    def show_raw(self, rest: str) -> None:
        """/raw: show calls as the model writes them, or again as they are parsed"""
        self.raw = not self.raw
        self._tell("Calls are shown as the model writes them." if self.raw else "Calls are shown parsed.")

    def quit(self, rest: str) -> Reply:
        """/quit: leave (Ctrl-D does too)"""
        return Reply(leave=True)

    def _tell(self, text: str) -> None:
        self._console.print(Text(printable(text), style="dim"), soft_wrap=True)


_COMMANDS: dict[str, Callable[[Commands, str], Reply | None]] = {
    "help": Commands.help,
    "reset": Commands.reset,
    "undo": Commands.undo,
    "retry": Commands.retry,
    "image": Commands.image,
    "save": Commands.save,
    "tokens": Commands.tokens,
    "sampling": Commands.sampling,
    "task": Commands.task,
    "answer": Commands.answer,
    "system": Commands.system,
    "tools": Commands.tools,
    "raw": Commands.show_raw,
    "quit": Commands.quit,
}


def saved_groups(session: ChatSession) -> list[Group]:
    """The replies of a session, in the form of a run's trajectories."""
    return [
        Group(task=exchange.task, group_id=number, trajectories=(replace(exchange.trajectory, group_id=number),))
        for number, exchange in enumerate(session.exchanges)
    ]


def policy_step(session: ChatSession) -> int:
    """The training step of the session's weights."""
    checkpoint = session.agent.source.checkpoint
    return 0 if checkpoint is None else checkpoint[0]


def read_image_file(name: str) -> Picture:
    """The image in a file that the user names; `ImageError` says what is wrong with it."""
    path = Path(name).expanduser()
    return read_picture(path.name, folder=path.parent, where=f"the image {one_line(name, 200)}")


def changed_sampling(sampling: SamplingParams, changes: list[str]) -> SamplingParams:
    """Sampling with changes such as `temperature=0.7`; one error lists all that is wrong."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for change in changes:
        name, _, text = change.partition("=")
        if name not in _RANGES:
            problems.append(f"unknown key '{one_line(name, 40)}'. {did_you_mean(name, _RANGES)}")
            continue
        kind, is_valid, expected = _RANGES[name]
        try:
            values[name] = kind(text)
        except ValueError:
            values[name] = None
        if values[name] is None or not is_valid(values[name]):
            problems.append(f"{name}={one_line(text, 40)} is not {expected}")
    if problems:
        raise ConfigError("; ".join(problems))
    return replace(sampling, **values)


def find_task(tasks: list[Task], name: str) -> Task:
    """The task of this id, else the one at this index."""
    by_id = {task.task_id: task for task in tasks}
    if name in by_id:
        return by_id[name]
    if name.isdecimal() and int(name) < len(tasks):
        return tasks[int(name)]
    raise DataError(
        f"there is no task {one_line(name, 60)}: there are {len(tasks)}, from 0 (id {tasks[0].task_id}) to "
        f"{len(tasks) - 1} (id {tasks[-1].task_id})"
    )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{one_line(text, 60)}: {error}") from error
