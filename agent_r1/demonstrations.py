"""Demonstrations as token rows, built exactly as a rollout would build them.

A demonstration is a whole conversation in OpenAI form (`messages`, optional `tools`). Every assistant message becomes
an action after the prompt that a flow would have shown; between turns the same bridge is used, so what the warm start
teaches is what reinforcement learning later sees, token for token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.chat import ChatRenderer, Prompt
from agent_r1.data import read_rows
from agent_r1.errors import DataError, report_problems
from agent_r1.types import Action, Message, Observation, TokenIds


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstrationRow:
    """One row of tokens to imitate."""

    token_ids: TokenIds
    """The conversation, as far as the bridge reaches."""
    actions: TokenIds
    """Positions of the tokens that the assistant says, its end-of-turn tokens included."""


def load_demonstrations(paths: Sequence[str | Path], renderer: ChatRenderer) -> list[list[DemonstrationRow]]:
    """The rows of each conversation in the files."""
    conversations: list[list[DemonstrationRow]] = []
    problems: list[str] = []
    for path in map(Path, paths):
        for number, row in enumerate(read_rows(path)):
            try:
                conversations.append(tokenise_conversation(renderer, *_checked(row)))
            except ValueError as error:
                problems.append(f"{path}, row {number}: {error}")
    if not conversations and not problems:
        problems.append(f"no rows in {', '.join(map(str, paths)) or 'sft.data, which is empty'}")
    report_problems(problems[:10], DataError, "the demonstrations cannot be used:")
    return conversations


def tokenise_conversation(
    renderer: ChatRenderer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
) -> list[DemonstrationRow]:
    """A conversation as rows: one row, or several where the template would rewrite what came before.

    user "2+2?" / assistant "4" becomes one row whose actions are the tokens of "4" and of the end of turn.
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
        prompt = renderer.render(observation) if turn is None else renderer.next_prompt(*turn, observation)
        if not prompt.bridged and actions:
            rows.append(DemonstrationRow(token_ids=ids, actions=tuple(actions)))
            actions = []
        action = renderer.parse(renderer.encode_turn(prompt, message), truncated=False)
        turn = prompt, action
        ids = prompt.token_ids + action.token_ids
        actions.extend(range(len(prompt.token_ids), len(ids)))
        history.append(action.as_message())
    if not actions:
        raise ValueError("no assistant message to learn from")
    return [*rows, DemonstrationRow(token_ids=ids, actions=tuple(actions))]


def _checked(row: Any) -> tuple[list[Message], list[Mapping[str, Any]]]:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
        found = ", ".join(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"a demonstration needs 'messages', a list; found: {found}")
    for index, message in enumerate(row["messages"]):
        if not isinstance(message, dict) or "role" not in message:
            raise ValueError(f"message {index} needs a 'role', found {message!r:.80}")
    tools = row.get("tools") or []
    return row["messages"], json.loads(tools) if isinstance(tools, str) else tools
