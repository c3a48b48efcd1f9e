"""How an episode of my_task runs: on pages with the question and the notes so far."""

from __future__ import annotations

from agent_r1.chat import Prompt
from agent_r1.flows import AgentFlowBase
from agent_r1.types import Episode, Observation, StopReason, Task

from .prompts import page


@AgentFlowBase.register("my_task")
class NotesFlow(AgentFlowBase):
    """`open WORD` adds an entry of the register to the notes. Anything else is the answer and ends the episode.

    Every step is written on a fresh page, so the prompt grows by one line per step, whatever the model said.
    """

    async def run(self, task: Task) -> Episode:
        """Open entries until the model answers or a limit is reached."""
        notes: dict[str, str] = {}
        prompt = self._page(task, notes)
        while self.fits(prompt) and len(self.steps) < self.context.max_steps:
            turn = await self.act(prompt)
            command, _, word = turn.action.text.strip().partition(" ")
            self.record(turn, reward=0.0, done=command != "open")
            if command != "open":
                return self.episode(StopReason.DONE)
            notes[word] = task.env_kwargs["register"].get(word, "no entry")
            prompt = self._page(task, notes)
        if self.fits(prompt):
            return self.episode(StopReason.MAX_STEPS, prompt.token_ids)
        return self.episode(StopReason.CONTEXT_FULL, self.steps[-1].prompt_ids + self.steps[-1].action_ids)

    def _page(self, task: Task, notes: dict[str, str]) -> Prompt:
        return self.render(Observation(messages=tuple(page(task.prompt, notes))))
