"""Console output of a run: progress bars, one line per step, tables and single trajectories."""

from __future__ import annotations

import html
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from rich.console import Console
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from agent_r1.findings import Finding
from agent_r1.metric_names import ACTION_TOKENS, COMPILE_SECONDS, ENTROPY, OUTCOME, PROCESS, SUCCESS, TOOL_CALLS
from agent_r1.types import Trajectory, common_prefix, content_text, printable

Item = TypeVar("Item")

_LINE = (
    ("reward", OUTCOME),
    ("process", PROCESS),
    ("success", SUCCESS),
    ("calls", TOOL_CALLS),
    ("tokens", ACTION_TOKENS),
    ("entropy", ENTROPY),
)

_logger = logging.getLogger("agent_r1")
"""Receives every line and warning of a run, also of a quiet one."""

_SECONDS_BETWEEN_LINES = 60.0
"""Between lines of a log, where there is no terminal for a progress bar."""

_SECONDS_BETWEEN_UPDATES = 0.2
_MENTIONED_SHARE = 0.1
"""Of a step's seconds: compiling for longer is said, since later steps do not."""
_NOTEBOOK_WIDTH = 110
"""Characters per line of tables in the output of a notebook's cell."""

if "ipykernel" in sys.modules:
    # tqdm, which transformers imports, asks for widgets that nothing here needs.
    warnings.filterwarnings("ignore", message="IProgress not found")

_CHECK_WORDS = {
    "ok": ("ok", "green"),
    "warning": ("warning", "bold yellow"),
    "problem": ("problem", "bold red"),
    "skipped": ("skipped", "dim"),
}


class CheckedResult(Protocol):
    """The result of a check; see `agent_r1.checks`."""

    @property
    def title(self) -> str:
        """What the check is about."""
        ...

    @property
    def status(self) -> str:
        """ok, warning, problem or skipped."""
        ...

    @property
    def seen(self) -> str:
        """What the check observed."""
        ...

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The problems that the check reports."""
        ...


class RunConsole:
    """The console of one run. `quiet` prints nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._in_notebook = Console().is_jupyter
        # In a notebook lines are plain text of the cell, not one element of the page each.
        self.console = (
            Console(quiet=quiet, highlight=False, force_jupyter=False, force_terminal=False, width=_NOTEBOOK_WIDTH)
            if self._in_notebook
            else Console(quiet=quiet, highlight=False)
        )
        self._bars: Progress = (
            NotebookBars(quiet=quiet)
            if self._in_notebook
            else Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=self.console,
                transient=True,
                disable=quiet or not self.console.is_terminal,
            )
        )

    def info(self, text: str) -> None:
        """Print and log one plain line."""
        _logger.info(text)
        self.console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print and log a warning."""
        _logger.warning(text)
        self.console.print(Text(f"warning: {text}", style="bold yellow"), soft_wrap=True)

    @contextmanager
    def progress(self, title: str, total: int, *, done: int = 0, in_logs: bool = True) -> Iterator[ProgressBar]:
        """A progress bar that disappears when the block ends; bars may be nested. Without a terminal or a notebook a
        line per minute is logged instead, unless `in_logs=False`."""
        if not self._bars.tasks:
            self._bars.start()
        task = self._bars.add_task(title, total=total, completed=done, note="")
        log = self.info if in_logs and not self.console.is_terminal and not self._in_notebook else None
        try:
            yield ProgressBar(self._bars, task, log)
        finally:
            self._bars.remove_task(task)
            if not self._bars.tasks:
                self._bars.stop()

    def tracked(self, title: str, items: Sequence[Item]) -> Iterator[Item]:
        """The items one by one, under a progress bar of those that are done."""
        with self.progress(title, len(items)) as bar:
            for item in items:
                yield item
                bar.advance()

    def check_line(self, result: CheckedResult) -> None:
        """Print one check: its status, what was seen, and every finding below it."""
        word, style = _CHECK_WORDS[result.status]
        told = f"{result.title}: {result.seen}" if result.seen else result.title
        _logger.info(f"{word}: {told}")
        self.console.print(Text.assemble((f"{word:>8}", style), f"  {told}"), soft_wrap=True)
        for finding in result.findings:
            _logger.warning(str(finding))
            fix = (f"\n          -> {finding.fix}" if finding.fix else "", "bold")
            self.console.print(Text.assemble(f"          {finding.rule}: {finding.observed}", fix), soft_wrap=True)

    def step_line(self, step: int, total: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Print the main numbers of one training step."""
        numbers = "  ".join(f"{name} {metrics[key]:.3g}" for name, key in _LINE if key in metrics)
        compiling = metrics.get(COMPILE_SECONDS, 0.0)
        of_these = f", {compiling:.1f} of them compiling" if compiling > _MENTIONED_SHARE * seconds else ""
        self.info(f"step {step:>{len(str(total))}}/{total}  {numbers}  {seconds:.1f} s{of_these}")

    def before_after(self, before: Mapping[str, float] | None, after: Mapping[str, float]) -> None:
        """Print the evaluation before and after training, side by side."""
        table = Table(title="held-out tasks")
        table.add_column("metric")
        table.add_column("before", justify="right")
        table.add_column("after", justify="right")
        for name in sorted(after):
            old = "-" if before is None or name not in before else _figure(name, before[name])
            table.add_row(name.removeprefix("eval/"), old, _figure(name, after[name]))
        self.console.print(table)

    def evaluation(self, metrics: Mapping[str, float], intervals: Mapping[str, tuple[float, float]]) -> None:
        """Print the figures of an evaluation by data source, with their 95 % confidence intervals."""
        table = Table(title="held-out tasks")
        for column in ("source", "figure"):
            table.add_column(column)
        for column in ("value", "95 %"):
            table.add_column(column, justify="right")
        last = ""
        for name in sorted(metrics, key=_figure_order):
            source, figure = name.removeprefix("eval/").rsplit("/", 1)
            if last not in ("", source):
                table.add_section()
            low_high = "{:.3f} - {:.3f}".format(*intervals[name]) if name in intervals else ""
            table.add_row("" if source == last else source, figure, _figure(name, metrics[name]), low_high)
            last = source
        self.console.print(table)

    def rows(self, title: str, rows: Sequence[Sequence[str]]) -> None:
        """Print a table whose first row is its header; where it is wider than the terminal, a small one per row."""
        header, *body = rows
        table = Table(*header, title=title)
        for row in body:
            table.add_row(*map(Text, row))
        if self.console.measure(table, options=self.console.options.update(width=10_000)).maximum <= self.console.width:
            self.console.print(table)
            return
        for row in body:
            single = Table(show_header=False)
            for name, value in zip(header, row, strict=True):
                single.add_row(Text(name), Text(value))
            self.console.print(single)

    def trajectory(self, title: str, trajectory: Trajectory) -> None:
        """Print one episode as a conversation."""
        rewards = f"reward {trajectory.outcome_reward:g}, process {trajectory.process_reward:g}"
        heading = Text(printable(title))  # text that is no Text is read as markup
        ending = f"{rewards}, {trajectory.stop_reason}"
        self.console.print(Panel(_conversation(trajectory), title=heading, subtitle=ending, title_align="left"))


def _figure(name: str, value: float) -> str:
    """A figure as text; counts of rows are whole numbers."""
    return f"{value:.0f}" if name.endswith(("/rows", "/failed")) else f"{value:.3f}"


def _figure_order(name: str) -> tuple[bool, str, int, str]:
    """Sort by source, `all` last; within a source counts and success first."""
    source, figure = name.removeprefix("eval/").rsplit("/", 1)
    first = ("rows", "failed", "greedy", "mean", "best", "maj", "reward")
    kind = figure.partition("@")[0]
    return source == "all", source, first.index(kind) if kind in first else len(first), figure


class ProgressBar:
    """One bar of a progress display; with `log`, also a line per minute."""

    def __init__(self, bars: Progress, task: TaskID, log: Callable[[str], None] | None = None) -> None:
        self._bars = bars
        self._task = task
        self._log = log
        self._started = self._last_logged = time.monotonic()

    def advance(self, note: str = "") -> None:
        """Count one more as done."""
        self._bars.update(self._task, advance=1, note=note)
        now = time.monotonic()
        if self._log is not None and now - self._last_logged >= _SECONDS_BETWEEN_LINES:
            self._last_logged = now
            task = next(task for task in self._bars.tasks if task.id == self._task)
            progress = f"{task.description}: {task.completed:.0f} of {task.total:.0f}"
            elapsed = f"after {(now - self._started) / 60:.0f} min"
            self._log(f"{progress} {elapsed}, {note}" if note else f"{progress} {elapsed}")


class NotebookBars(Progress):
    """Progress bars in the output of a notebook's cell: one element of the page, which is replaced in place and empty
    at the end. It needs no widgets."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(disable=True)
        self._quiet = quiet
        self._handle: Any = None
        self._last_shown = 0.0

    def start(self) -> None:
        """Add the element to the cell."""
        if not self._quiet:
            from IPython.display import display

            self._handle = display(self._content(), raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Empty the element."""
        self._show()

    def add_task(self, *arguments: Any, **named: Any) -> TaskID:
        """Add a bar, and show it."""
        task = super().add_task(*arguments, **named)
        self._show()
        return task

    def update(self, *arguments: Any, **named: Any) -> None:
        """Change a bar; the element is replaced a few times per second at most."""
        super().update(*arguments, **named)
        if time.monotonic() - self._last_shown >= _SECONDS_BETWEEN_UPDATES:
            self._show()

    def _show(self) -> None:
        self._last_shown = time.monotonic()
        if self._handle is not None:
            self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        """The bars for a page, and as text for what shows no HTML."""
        lines, elements = [], []
        for task in self.tasks:
            note = str(task.fields.get("note", ""))
            line = f"{task.description} {task.completed:.0f}/{task.total or 0:.0f} {note}".strip()
            lines.append(line)
            value = f'value="{task.completed:.0f}" max="{task.total or 1:.0f}"'
            elements.append(f"<div><progress {value}></progress> {html.escape(line)}</div>")
        return {"text/plain": "\n".join(lines), "text/html": "".join(elements)}


@contextmanager
def progress_counter(what: str, total: int | None = None) -> Iterator[Callable[[str, int], None]]:
    """A progress bar on stderr; call it with the stage and how many `what` are done. In a log, a line per minute."""
    console, counted = Console(stderr=True), what if total is None else f"of {total} {what}"
    columns = ("[bold]{task.description}", BarColumn(24), "{task.completed:.0f} " + counted, TimeElapsedColumn())
    started = last_shown = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int) -> None:
            nonlocal last_shown
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)
            if not console.is_terminal and time.monotonic() - last_shown >= _SECONDS_BETWEEN_LINES:
                last_shown = time.monotonic()
                print(f"{stage}: {done} {counted} after {(last_shown - started) / 60:.0f} min", file=sys.stderr)

        yield show


def _conversation(trajectory: Trajectory) -> Text:
    """Messages and actions in order, each message once; a branch begins with what its prompt adds to the step that it
    continues, or with all of it."""
    text, steps = Text(), trajectory.steps
    for index, (step, parent) in enumerate(zip(steps, trajectory.parents, strict=True)):
        messages = step.observation.messages or ()
        before = steps[parent].observation.messages or () if parent >= 0 else ()
        num_shown = common_prefix(before, messages)
        num_shown += parent >= 0 and num_shown == len(before)  # the action of that step, which is shown already
        if index and parent != index - 1:
            text.append("--- another branch\n", style="dim")
        for message in messages[num_shown:]:
            text.append(f"{message['role']}: ", style="bold cyan")
            text.append(f"{printable(content_text(message.get('content')))}\n")
        text.append("agent: ", style="bold green").append(f"{printable(step.action.text.strip())}\n")
    if trajectory.given_answer is not None:
        text.append("answer: ", style="bold green").append(f"{printable(trajectory.given_answer)}\n")
    return text


def pick_pair(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> tuple[Trajectory, Trajectory] | None:
    """The same task before and after training: one that is newly solved, if there is any."""
    solved = {trajectory.task_id: trajectory for trajectory in after if trajectory.success >= 1.0}
    for trajectory in before:
        if trajectory.success < 1.0 and not trajectory.is_failure and trajectory.task_id in solved:
            return trajectory, solved[trajectory.task_id]
    return (before[0], after[0]) if before and after else None
