"""Shows an episode in a terminal while it runs: text as it is sampled, calls, results, rewards, the end."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_r1.chat import ChatRenderer
from agent_r1.flows import ActionParsed, FlowEvent, PromptRendered, StepRecorded, TokensSampled
from agent_r1.inference.session import Exchange
from agent_r1.types import (
    Action,
    Message,
    Step,
    StopReason,
    ToolCall,
    ToolSchema,
    Trajectory,
    content_text,
    one_line,
    printable,
)

_MAX_RESULT = 2000
"""Characters of a tool's result that are shown."""
_SHADES = ("bold red", "red", "yellow", "green", "bright_green")
"""Colours of tokens, from improbable to certain."""
_STOPPED = {
    StopReason.MAX_STEPS: "stopped at the maximum number of steps (rollout.max_steps)",
    StopReason.MAX_TOKENS: "cut at the maximum number of tokens (/sampling max_tokens=...)",
    StopReason.CONTEXT_FULL: "the context is full: /undo or /reset",
}


class EpisodeDisplay:
    """An observer that prints. Raw calls are held back, since they are shown parsed, unless they were malformed."""

    def __init__(self, console: Console, *, renderer: ChatRenderer | None = None, raw: bool = False) -> None:
        self._console = console
        self._opening = None if raw or renderer is None else opening_of_calls(renderer)
        self._text = ""
        self._num_shown = 0
        self._at_line_start = True
        self._is_action_shown = False

    def __call__(self, event: FlowEvent) -> None:
        """Print one event."""
        if isinstance(event, PromptRendered):
            self._text, self._num_shown = "", 0
        elif isinstance(event, TokensSampled):
            self._text += event.text
            self._show_until(self._end_of_plain_text())
        elif isinstance(event, ActionParsed):
            self._show_action(event.turn.action)
            self._is_action_shown = True
        elif isinstance(event, StepRecorded):
            if not self._is_action_shown:  # by a flow that calls the model in a way of its own
                self._text, self._num_shown = event.step.action.text, 0
                self._show_action(event.step.action)
            self._is_action_shown = False
            self._show_replies(event)

    def end_line(self) -> None:
        """Begin a new line, if the last one is not empty."""
        if not self._at_line_start:
            self._write("\n")

    def _end_of_plain_text(self) -> int:
        """Where the text ends that is surely no call: before the opening of one, or what may become one."""
        if self._opening is None:
            return len(self._text)
        start = self._text.find(self._opening)
        if start >= 0:
            return start
        tails = (
            length for length in range(len(self._opening) - 1, 0, -1) if self._text.endswith(self._opening[:length])
        )
        return len(self._text) - next(tails, 0)

    def _show_until(self, end: int) -> None:
        if end > self._num_shown:
            self._write(printable(self._text[self._num_shown : end]))
            self._num_shown = end

    def _show_action(self, action: Action) -> None:
        if action.parse_error is not None or not action.tool_calls:
            self._show_until(len(self._text))
        self.end_line()
        if action.parse_error is not None:
            self._line(f"malformed: {one_line(action.parse_error)}", "red")
        for call in action.tool_calls:
            self._line(f"-> {call_text(call)}", "cyan")
        for repair in action.repairs:
            self._line(f"   repaired: {one_line(repair)}", "yellow")

    def _show_replies(self, event: StepRecorded) -> None:
        self.end_line()
        for message in event.replies:
            self._line(f"<- {result_text(message)}", "magenta")
        if event.step.reward:
            self._line(f"   step reward {event.step.reward:+g}", "blue")

    def _line(self, text: str, style: str) -> None:
        self._write(f"{text}\n", style)

    def _write(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style, end=""), soft_wrap=True, end="")
        self._console.file.flush()
        self._at_line_start = text.endswith("\n")


def opening_of_calls(renderer: ChatRenderer) -> str | None:
    """The mark with which calls begin in the model's format, such as `<tool_call>`; None where they have none."""
    tool_format = getattr(renderer, "format", None)
    if tool_format is None:
        return None
    text = tool_format.call_text([ToolCall(name="code_interpreter", arguments={"code": "1"})], "")
    mark = re.match(r"\s*(<[^<>\s]+>|\[[A-Z_]+\])", text)
    return mark[1] if mark else None


def call_text(call: ToolCall) -> str:
    """A call as people write it: `price(item="tea")`."""
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return one_line(f"{call.name}({arguments})", 1000)


def result_text(message: Message) -> str:
    """What the environment replied, shortened."""
    text = content_text(message.get("content"))
    if len(text) > _MAX_RESULT:
        text = f"{text[:_MAX_RESULT]}\n[{len(text) - _MAX_RESULT} more characters]"
    name = message.get("name") if message.get("role") == "tool" else message.get("role")
    return printable(f"{name}: {text}" if name else text).replace("\n", "\n   ")


def show_end(console: Console, trajectory: Trajectory, *, is_scored: bool) -> None:
    """How an episode ended: its reward, the limit that cut it, or its failure."""
    if trajectory.is_failure:
        console.print(Text(failure_text(trajectory), style="red"), soft_wrap=True)
        return
    if trajectory.stop_reason in _STOPPED:
        console.print(Text(f"[{_STOPPED[trajectory.stop_reason]}]", style="yellow"), soft_wrap=True)
    elif trajectory.ended_by_call:
        answer = "" if trajectory.given_answer is None else f" with the answer: {printable(trajectory.given_answer)}"
        console.print(Text(f"[the call ended the episode{answer}]", style="yellow"), soft_wrap=True)
    elif not trajectory.steps[-1].action.text.strip():
        console.print(Text("[the reply is empty]", style="yellow"))
    if is_scored:
        parts = "".join(f", {one_line(name)} {value:g}" for name, value in trajectory.reward_parts.items())
        process = f", process {trajectory.process_reward:g}" if trajectory.process_reward else ""
        style = "bold green" if trajectory.success >= 1 else "bold yellow"
        console.print(Text(f"reward {trajectory.outcome_reward:g}{process}{parts}", style=style), soft_wrap=True)


def failure_text(trajectory: Trajectory) -> str:
    """Why a reply failed, in one line: the last of its traceback, without the kind of error where it is ours."""
    last = ((trajectory.error or "").strip().splitlines() or [""])[-1]
    return f"failed ({trajectory.stop_reason}): {one_line(re.sub(r'^agent_r1[.]errors[.][A-Za-z]+: ', '', last), 500)}"


def show_messages(console: Console, messages: Sequence[Message]) -> None:
    """Messages of a task, by role."""
    for message in messages:
        text = content_text(message.get("content"))
        line = Text(f"{one_line(str(message.get('role')))}: ", style="bold")
        console.print(line.append(printable(text), style="not bold default"), soft_wrap=True)


def show_tokens(console: Console, steps: Sequence[Step], decode: Callable[[int], str]) -> None:
    """The sampled tokens of steps: their text coloured by probability, then ids and log-probs."""
    for number, step in enumerate(steps, start=1):
        texts = [decode(token) for token in step.action_ids]
        line = Text()
        for text, logprob in zip(texts, step.rollout_logprobs, strict=True):
            line.append(printable(text), style=shade(logprob))
        table = Table(title=f"step {number}: {len(texts)} tokens", title_justify="left", box=None, pad_edge=False)
        for column in ("id", "log-prob", "prob", "token"):
            table.add_column(column, justify="left" if column == "token" else "right")
        for token, text, logprob in zip(step.action_ids, texts, step.rollout_logprobs, strict=True):
            shown = Text(one_line(json.dumps(text, ensure_ascii=False)), style=shade(logprob))
            table.add_row(str(token), f"{logprob:.3f}", f"{math.exp(logprob):.1%}", shown)
        console.print(line, soft_wrap=True)
        console.print(table)


def shade(logprob: float) -> str:
    """The colour of a token: red below 10 %, bright green above 99 %."""
    bounds = (0.1, 0.5, 0.9, 0.99)
    return _SHADES[sum(math.exp(min(logprob, 0.0)) >= bound for bound in bounds)]


def show_tools(console: Console, tools: Sequence[ToolSchema]) -> None:
    """Tools with their parameters."""
    for schema in tools:
        function = schema.get("function", {})
        parameters = (function.get("parameters") or {}).get("properties") or {}
        line = Text(f"{one_line(str(function.get('name')))}({', '.join(map(one_line, parameters))})", style="cyan")
        console.print(
            line.append(f"  {one_line(str(function.get('description', '')))}", style="not bold"), soft_wrap=True
        )
    if not tools:
        console.print("There are no tools: give a recipe (--recipe FOLDER), or chat with a run.")


def last_steps(exchanges: Sequence[Exchange]) -> tuple[Step, ...]:
    """The steps of the last reply."""
    return exchanges[-1].trajectory.steps if exchanges else ()
