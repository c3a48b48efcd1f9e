"""Running a page of docs/tutorials as its reader would: its files are written, its commands run, its output compared.

A page is read from top to bottom. A block after a line that begins with a file name in backquotes is that file. In a
`console` block a line with `$ ` is a command and the lines under it are what it prints: word for word, where `...` is
any number of lines (or the rest of a line); under `console about` a figure may be a quarter off, or 0.25. Every block
is one of the two.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
SHOWN_PORT = "8700"

_BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n?```(?P<info>[^\n]*)\n(?P<body>.*?)```", re.DOTALL)
_FILE = re.compile(r"^`(?P<name>[\w./]+)`")
_NUMBER = re.compile(r"(?<![\w/.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w/])")  # 3/8 is a place, not a figure

# A process that has imported everything and lends itself, by fork, to one command after the other: importing torch
# takes longer than most of them.
_ZYGOTE = """
import json, os, runpy, sys, traceback
import torch, transformers, agent_r1.api, agent_r1.cli, agent_r1.models.tiny
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
torch.set_num_threads(1)

def run(arguments, cwd):
    os.chdir(cwd)
    if arguments[0] == "agent-r1":
        sys.argv, sys.path[0] = arguments, os.path.dirname(sys.executable)
        agent_r1.cli.main()
        return
    sys.path[0] = cwd
    if arguments[1] == "-c":
        sys.argv = ["-c", *arguments[3:]]
        exec(compile(arguments[2], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments[1:]
        runpy.run_path(arguments[1], run_name="__main__")

for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    code = 0
    os.setpgid(0, 0)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1), os.dup2(output, 2), os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        run(order["arguments"], order["cwd"])
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    open(order["output"] + ".code", "w").write(str(code))
    os._exit(0)
"""


class Forks:
    """The process behind `python` and `agent-r1` of all pages."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, arguments: list[str], cwd: Path, output: Path) -> int:
        """Start a command; gives its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"arguments": arguments, "cwd": str(cwd), "output": str(output)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


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


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


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

    def __init__(self, folder: Path, forks: Forks) -> None:
        self.folder = folder
        self.output: dict[str, str] = {}
        self._forks = forks
        self._background: int | None = None
        self._port = free_port()
        self._num_commands = 0

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
        self._num_commands += 1
        output = self.folder.parent / f"output_{self._num_commands}"
        arguments = shlex.split(text.removesuffix("&"))
        pid = self._forks.start(arguments, self.folder, output)
        if text.endswith("&"):
            self._background = pid
            _wait(lambda: output.is_file() and "\n" in output.read_text())
        else:
            _wait(output.with_name(f"{output.name}.code").is_file)
        return output.read_text()

    def _stop_background(self) -> None:
        if self._background is not None:
            os.kill(self._background, 15)
            _wait(lambda: not _listens(self._port))
            self._background = None


def _listens(port: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(port))) == 0


def _wait(ready: Callable[[], bool], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "a command of the page did not come to its end"
        time.sleep(0.02)
