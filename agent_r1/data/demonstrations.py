"""Demonstrations as rows of tokens, built exactly as a rollout builds them.

A demonstration is a whole conversation in OpenAI form (`messages`, optional `tools`). Every assistant message becomes
an action after the prompt that a flow would have shown, with the same bridge between turns: the warm start trains on
the very tokens that reinforcement learning sees later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_r1.chat import ChatRenderer, Prompt
from agent_r1.codec import read_json
from agent_r1.constraints import unusable_parts
from agent_r1.data.row_images import has_images, row_images, with_row_images, with_stored_images, without_images
from agent_r1.data.tasks import checked_messages, read_rows, wants_control_tokens, write_rows
from agent_r1.errors import DataError, report_problems
from agent_r1.types import Action, Message, Observation, TokenIds

if TYPE_CHECKING:
    from agent_r1.data.demonstration_workers import DemonstrationWorkers

_NOTHING_TO_LEARN = "no assistant message to learn from"


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstrationRow:
    """One row of tokens to imitate."""

    token_ids: TokenIds
    """The conversation, as far as the bridge reaches."""
    actions: TokenIds
    """Positions of the tokens that the assistant says, its end-of-turn tokens included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawDemonstration:
    """A row of a file, as it was read."""

    where: str
    """The file and the number of the row, for messages."""
    content: Any
    """The row, or the error that it is instead of one."""
    folder: Path
    """Where the paths of its images begin."""

    def checked(self) -> CheckedDemonstration:
        """The conversation in it; a ValueError says what is wrong with it."""
        messages, tools = _read_parts(self.content, self.folder)
        return CheckedDemonstration(messages=messages, tools=tools, control_tokens=wants_control_tokens(self.content))


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedDemonstration:
    """A conversation that can be rendered, with its images read."""

    messages: list[Message]
    tools: list[Mapping[str, Any]]
    control_tokens: bool
    """Whether control tokens in the messages count."""

    def tokenised(self, renderer: ChatRenderer) -> list[DemonstrationRow]:
        """The rows of tokens of the conversation; a ValueError says why there are none."""
        return tokenise_conversation(renderer, self.messages, self.tools, control_tokens=self.control_tokens)


Tracked = Callable[[Sequence[int]], Iterable[int]]
"""Passes indices on, one when the last is done."""


def load_demonstrations(
    paths: Sequence[str | Path],
    renderer: ChatRenderer,
    *,
    choose: Callable[[int], Iterable[int]] = range,
    tracked: Tracked = lambda indices: indices,
    workers: DemonstrationWorkers | None = None,
) -> list[list[DemonstrationRow]]:
    """The rows of each conversation in the files. All are checked; of their number, `choose` gives the indices of those
    to tokenise, and the others are empty. `tracked` passes these indices on, one when the last is done."""
    rows = [
        RawDemonstration(where=f"{path}, row {number}", content=content, folder=path.parent)
        for path in map(Path, paths)
        for number, content in enumerate(read_rows(path))
    ]
    tokenised: dict[int, list[DemonstrationRow]] = {}
    if workers is not None:
        tokenised = workers.tokenise(rows, sorted(set(choose(len(rows)))), renderer, tracked)
    checked: list[tuple[int, CheckedDemonstration | None]] = []
    problems: dict[str, str] = {}
    for index, row in enumerate(rows):
        try:
            checked.append((index, None if index in tokenised else row.checked()))
        except ValueError as error:
            problems[row.where] = f"{row.where}: {error}"
    if not rows:
        problems[""] = f"no rows in {', '.join(map(str, paths)) or 'sft.data, which is empty'}"
    conversations = [tokenised.get(index, []) for index, _ in checked]
    for number in tracked([number for number in sorted(set(choose(len(checked)))) if not conversations[number]]):
        index, demonstration = checked[number]
        try:
            conversations[number] = (demonstration or rows[index].checked()).tokenised(renderer)
        except ValueError as error:
            problems[rows[index].where] = f"{rows[index].where}: {error}"
    report_problems(list(problems.values())[:10], DataError, "the demonstrations cannot be used:")
    return conversations


def tokenise_conversation(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    control_tokens: bool = False,
) -> list[DemonstrationRow]:
    """A conversation as rows: one row, or several where the template would rewrite what came before.

    user "2+2?" / assistant "4" becomes one row whose actions are the tokens of "4" and of the end of turn. Control
    tokens in the messages are ordinary characters unless `control_tokens` is set.
    """
    rows: list[DemonstrationRow] = []
    turn: tuple[Prompt, Action] | None = None
    history: list[Message] = []
    actions: list[int] = []
    ids: TokenIds = ()
    for message in messages:
        if message["role"] != "assistant":
            history.append(message)
            continue
        observation = Observation(messages=tuple(history), tools=tuple(tools))
        trusted = (*history, message) if control_tokens else ()
        prompt = (
            renderer.render(observation, trusted=trusted)
            if turn is None
            else renderer.next_prompt(*turn, observation, trusted=trusted)
        )
        if not prompt.bridged and actions:
            rows.append(DemonstrationRow(token_ids=ids, actions=tuple(actions)))
            actions = []
        action = renderer.parse(renderer.encode_turn(prompt, message, trusted=trusted), truncated=False)
        turn = prompt, action
        ids = prompt.token_ids + action.token_ids
        actions.extend(range(len(prompt.token_ids), len(ids)))
        history.append(action.as_message())
    if not actions:
        raise ValueError(_NOTHING_TO_LEARN)
    return [*rows, DemonstrationRow(token_ids=ids, actions=tuple(actions))]


def write_demonstrations(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows with `messages` and optional `tools`. Parquet gives a column one type, and the arguments of calls have
    many: there, both columns are JSON text."""
    if path.suffix == ".parquet":
        rows = [_with_columns_as_text(with_stored_images(row, path.parent)) for row in rows]
    write_rows(path, rows)


def _with_columns_as_text(row: Mapping[str, Any]) -> dict[str, Any]:
    columns = {column: row[column] for column in ("messages", "tools") if not isinstance(row.get(column, ""), str)}
    return {**row, **{column: json.dumps(value, ensure_ascii=False) for column, value in columns.items()}}


def check_demonstration(row: Any, *, folder: Path | None = None) -> None:
    """Raise a `ValueError` that says why a row is not a demonstration, or why it cannot be written as JSON. Paths of
    images are relative to `folder`."""
    _read_parts(row, folder or Path())
    wants_control_tokens(row)
    problem = next(unusable_parts(without_images(row), "the row"), None)
    if problem is not None:
        raise ValueError(problem)


def _read_parts(row: Any, folder: Path) -> tuple[list[Message], list[Mapping[str, Any]]]:
    if isinstance(row, ValueError):
        raise row
    message_list = row.get("messages") if isinstance(row, dict) else None
    message_list = read_json(message_list) if isinstance(message_list, str) else message_list
    if not isinstance(message_list, list):
        columns = ", ".join(sorted(map(str, row))) if isinstance(row, dict) else type(row).__name__
        found = columns if message_list is None else f"'messages' as {type(message_list).__name__}"
        raise ValueError(f"a demonstration needs 'messages', a list; found: {found}")
    tools = row.get("tools") or []
    tools = read_json(tools) if isinstance(tools, str) else tools
    for column, value in (("messages", without_images(message_list)), ("tools", tools)):
        problem = next(unusable_parts(value, f"'{column}'"), None)
        if problem is not None:
            raise ValueError(problem)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"'tools' must be a list of schemas, which are objects; found {tools!r:.80}")
    messages = checked_messages(message_list, "'messages'")
    if not any(message["role"] == "assistant" for message in messages):
        raise ValueError(_NOTHING_TO_LEARN)
    if has_images(row, messages):
        messages = with_row_images(messages, row_images(row), folder)
    return list(messages), tools
