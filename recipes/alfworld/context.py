"""Context policies of alfworld: one short prompt per step instead of the whole conversation.

    env.context={name: alfworld_recent, turns: 4}       the task and the last steps
    env.context={name: alfworld_notes, turns: 2}        the same, and notes of what was seen where

Both are made of what the model was shown, by rule.
"""

from __future__ import annotations

from agent_r1.constraints import Count
from agent_r1.envs import ContextPolicy, History, Messages, context_policies

from .memory import Memory
from .prompts import COMMANDS_MARK, read_command


@context_policies.register("alfworld_recent")
class Recent(ContextPolicy):
    """The task and the last `turns` steps, in one message; commands are shown of the last answer only."""

    def __init__(self, turns: Count = 4) -> None:
        self.turns = turns

    def show(self, history: History) -> Messages:
        """The task with the last steps."""
        if not history.turns:
            return history.task
        *before, task = history.task
        parts = [_plain(str(task["content"])), *self.notes(history)]
        steps = [(read_command(str(said["content"])), str(answer["content"])) for said, answer in history.turns]
        left = len(steps) - self.turns
        parts.append(f"Your last steps{f', after {left} others' if left > 0 else ''}:")
        parts += [f"> {command}\n{_plain(answer)}" for command, answer in steps[-self.turns : -1]]
        parts.append(f"> {steps[-1][0]}\n{steps[-1][1]}")
        return (*before, {**task, "content": "\n".join(parts)})

    def notes(self, history: History) -> list[str]:
        """Lines between the task and the last steps."""
        return []


@context_policies.register("alfworld_notes")
class Notes(Recent):
    """`alfworld_recent` with notes: what is held, what was seen in each place, which places were not seen inside."""

    def __init__(self, turns: Count = 2) -> None:
        super().__init__(turns)

    def show(self, history: History) -> Messages:
        """The task, the notes and the last steps. The notes name the room's places instead of its description."""
        shown = super().show(history)
        if not history.turns:
            return shown
        *before, last = shown
        content = str(last["content"])
        return (*before, {**last, "content": content[content.index("Your task is to:") :]})

    def notes(self, history: History) -> list[str]:
        """What was seen.

        Seen: desk 1: pen 1, mug 2; shelf 1: nothing
        Not seen: bed 1, drawer 1 (closed)
        You hold: nothing
        """
        memory = Memory(str(history.task[-1]["content"]))
        for said, answer in history.turns:
            memory.update(read_command(str(said["content"])), _plain(str(answer["content"])))
        seen = [f"{place}: {', '.join(things) or 'nothing'}" for place, things in memory.seen.items()]
        unseen = [f"{place} (closed)" if place in memory.closed else place for place in memory.unseen()]
        return [
            f"Seen: {'; '.join(seen) or 'nothing'}",
            f"Not seen: {', '.join(unseen) or 'nothing'}",
            f"You hold: {memory.held or 'nothing'}",
        ]


def _plain(text: str) -> str:
    return text.partition(COMMANDS_MARK)[0]
