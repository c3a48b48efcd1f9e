"""A recipe for chats in a real terminal: an engine that streams what the user's message asks for, token by token.

`write_recipe(folder)` makes it. A reply waits at `<pause>` until the file `gate` is beside the recipe.
"""

from __future__ import annotations

import json
from pathlib import Path

_TALKER = '''
import asyncio
from pathlib import Path

from agent_r1.chat import load_renderer
from agent_r1.engines import ScriptedEngine, StreamedTokens, engine_factories
from agent_r1.tools import tool

GATE = Path(__file__).parent / "gate"
CALL = '<tool_call>{"name": "NAME", "arguments": ARGUMENTS}</tool_call>'
HOSTILE = "\\x1b[2J\\x1b]0;owned\\x07 \\u202eexe.gnp\\u202c \\x9b31m\\r end of it"


@tool
async def price(item: str) -> tuple[str, float]:
    """The price of one item."""
    return "7", 0.25


@tool(timeout=300)
async def wait(item: str) -> str:
    """Waits for a long time."""
    await asyncio.sleep(200)
    return "never"


def score(task, episode):
    return float(episode.answer == task.ground_truth)


def reply_to(text):
    """What the model says to the last message of a rendered conversation."""
    last = text.rpartition("<|user|>")[2].removesuffix("<|assistant|>").removesuffix("<|end|>")
    if last.startswith("<tool_response>"):
        return "It costs 7." if "cost" in text else "7"
    if "cost" in last or "task" in last:
        return "Let me look. " + CALL.replace("NAME", "price").replace("ARGUMENTS", '{"item": "apple"}')
    if "wait" in last:
        return CALL.replace("NAME", "wait").replace("ARGUMENTS", '{"item": "x"}')
    if "count" in last:
        return "one two three <pause> four five"
    if "hostile" in last:
        return HOSTILE
    return "You said: " + last.replace("<|", "").strip()


class Talker(ScriptedEngine):
    """Streams token by token, and waits for the gate where a reply says so."""

    def __init__(self, renderer, context_length):
        self._renderer = renderer
        super().__init__(self._ids, context_length=context_length)

    def _ids(self, prompt, sampling):
        text = self._renderer.tokenizer.decode(list(prompt), skip_special_tokens=False)
        said = reply_to(text)
        before, pause, after = said.partition("<pause>")
        self._pause_at = len(self._encode(before)) if pause else None
        return [*self._encode(before), *self._encode(after), self._renderer.stop_ids[0]]

    def _encode(self, text):
        return self._renderer.tokenizer.encode(text, add_special_tokens=False)

    async def stream(self, prompt_ids, sampling):
        completion = await self.generate(prompt_ids, sampling)
        for index, token in enumerate(completion.token_ids):
            while index == self._pause_at and not GATE.exists():
                await asyncio.sleep(0.01)
            is_last = index == len(completion.token_ids) - 1
            yield StreamedTokens(
                token_ids=(token,), logprobs=(-0.5,), policy_versions=(0,), completion=completion if is_last else None
            )


@engine_factories.register("talker")
def make_talker(config, policy, context_length):
    return Talker(load_renderer(config.model.path), context_length)
'''

_SETTINGS = """
defaults: [agent_r1, {algorithm: grpo}, _self_]
imports: [talker]
model: {path: none}
engine: {name: talker}
env: {name: tool, tools: [price, wait]}
reward: {function: "talker:score"}
data: {train: [ROWS]}
"""


def write_recipe(folder: Path) -> Path:
    """The recipe, in `folder/talk`; its two tasks have the answers 7 and 8."""
    recipe = folder / "talk"
    recipe.mkdir(parents=True)
    (recipe / "talker.py").write_text(_TALKER)
    rows = [{"question": f"task {number}", "answer": str(7 + number)} for number in range(2)]
    (recipe / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (recipe / "base.yaml").write_text(_SETTINGS.replace("ROWS", str(recipe / "rows.jsonl")))
    return recipe
