"""Running a page of docs/tutorials as its reader would: its files are written, its commands run, its output compared.

A page is read from top to bottom. A block after a line that begins with a file name in backquotes is that file. In a
`console` block a line with `$ ` is a command and the lines under it are what it prints: word for word, where `...` is
any number of lines (or the rest of a line); under `console about` a figure may be a quarter off, or 0.25. Every block
is one of the two.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers.forks import Forked, forks
from tests.helpers.ports import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
SHOWN_PORT = "8700"

_BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n?```(?P<info>[^\n]*)\n(?P<body>.*?)```", re.DOTALL)
_FILE = re.compile(r"^`(?P<name>[\w./]+)`")
_NUMBER = re.compile(r"(?<![\w/.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w/])")  # 3/8 is a place, not a figure


@dataclass
class Command:
    """One command of a page."""

    text: str
    about: bool
    expected: list[str] = field(default_factory=list)


def steps_of(text: str) -> list[tuple[str, str] | Command]:
    """The files (name, content) and commands of a page, in order."""
    found: list[tuple[str, str] | Command] = []
    for block in _BLOCK.finditer(text):
        kind, _, how = block["info"].partition(" ")
        name = _FILE.match(block["before"])
        if kind == "console":
            for line in block["body"].splitlines():
                if line.startswith("$ "):
                    found.append(Command(line[2:], how == "about"))
                else:
                    last = found[-1]
                    assert isinstance(last, Command)
                    last.expected.append(line)
        else:
            assert name is not None, f"a block that is neither a file nor a console: {block['body'][:80]}"
            found.append((name["name"], block["body"]))
    return found


def page(name: str) -> str:
    return (FOLDER / name).read_text()


def differences(expected: list[str], printed: str, *, about: bool) -> str:
    """What is wrong; nothing when the output is as the page shows it."""
    lines = [line.rstrip() for line in printed.rstrip("\n").splitlines()]
    if _follows(expected, lines, about=about):
        return ""
    shown = "\n".join(expected)
    return f"the page shows\n{shown}\n\nand this was printed:\n{printed}"


def _follows(expected: list[str], lines: list[str], *, about: bool) -> bool:
    if not expected:
        return not lines
    if expected[0] == "...":
        return any(_follows(expected[1:], lines[at:], about=about) for at in range(len(lines) + 1))
    return bool(lines) and _alike(expected[0], lines[0], about=about) and _follows(expected[1:], lines[1:], about=about)


def _alike(shown: str, printed: str, *, about: bool) -> bool:
    open_end = shown.endswith(" ...")
    shown = shown.removesuffix("...")
    figures, found = (_NUMBER.findall(text) if about else [] for text in (shown, printed))
    words, said = (_NUMBER.sub("#", text) if about else text for text in (shown, printed))
    return (said.startswith(words) if open_end else said == words) and _close(figures, found[: len(figures)])


def _close(shown: list[str], printed: list[str]) -> bool:
    return all(
        abs(float(one) - float(other)) <= max(0.25, 0.25 * abs(float(one)))
        for one, other in zip(shown, printed, strict=True)
    )


class Reader:
    """Somebody who follows a page in a folder of his own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output: dict[str, str] = {}
        self._background: Forked | None = None
        self._port = str(free_port())

    def follow(self, text: str) -> None:
        """Do all that the page says."""
        try:
            for step in steps_of(text.replace(SHOWN_PORT, self._port)):
                if isinstance(step, Command):
                    self._run(step)
                else:
                    (self.folder / step[0]).write_text(step[1])
        finally:
            self._stop_background()

    def _run(self, command: Command) -> None:
        made = re.fullmatch(r"mkdir (\w+) && cd \1", command.text)
        if made:
            self.folder = self.folder / made[1]
            self.folder.mkdir()
            return
        if command.text == "kill %1":
            self._stop_background()
            return
        printed = self._printed(command.text)
        self.output[command.text.replace(self._port, SHOWN_PORT)] = printed
        problem = differences(command.expected, printed, about=command.about)
        assert not problem, f"$ {command.text}\n{problem}"

    def _printed(self, text: str) -> str:
        if not text.startswith(("python ", "agent-r1 ")):
            result = subprocess.run(["bash", "-c", text], cwd=self.folder, capture_output=True, text=True, check=False)
            return result.stdout + result.stderr
        arguments = shlex.split(text.removesuffix("&"))
        if text.endswith("&"):
            self._background = forks().start(arguments, self.folder)
            return self._background.stdout.readline()
        done = forks().run(arguments, self.folder, merged=True)
        return done.stdout

    def _stop_background(self) -> None:
        if self._background is not None:
            self._background.send_signal(signal.SIGTERM)
            self._background.wait(60)
            self._background.close()
            self._background = None
