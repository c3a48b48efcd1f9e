"""What the delta cache of chat templates saves: the time to render a tool turn with it and without it.

    python -m benchmarks.speed.delta_cache

Episodes of TURNS tool calls are rendered turn by turn, with the templates of tests/unit/chat and tool answers of 4 and
of 110 characters. `whole`: the template renders the whole conversation each turn. `short`: it renders the first prompt
and the last turn. `cached`: short, and where the template copies tool answers unchanged it is not rendered at all. A
figure is microseconds of processor time per turn, the mean over an episode's turns of the best of ROUNDS.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from agent_r1.chat import ChatRenderer
from agent_r1.chat.bridge import DeltaFinder, Rendered, RenderedPrefix, Template, TurnDelta, find_delta
from agent_r1.chat.chatml import CHATML_WITH_TOOLS
from agent_r1.chat.delta_cache import DeltaCache
from agent_r1.models import train_tokenizer
from agent_r1.models.tiny import CHAT_TEMPLATE
from agent_r1.types import Action, Message, Observation
from recipes.quickstart.shop import demonstration, draw_basket
from tests.unit.chat.test_chat import CALL_TEXT, CHATML, QUESTION, TOOL, after, said
from tests.unit.chat.test_strict_templates import BEGINS_THINKING, STRICT_AND_FORGETFUL

TURNS, ROUNDS = 8, 200
ANSWERS = {"short": "{}.{}", "long": "Shop {}: the price is {}. " * 4}
TEMPLATES = {
    "quickstart": CHAT_TEMPLATE,
    "chatml": CHATML,
    "chatml with tools": CHATML_WITH_TOOLS,
    "begins thinking": BEGINS_THINKING,
    "strict": STRICT_AND_FORGETFUL,
}


class WholeConversation(DeltaFinder):
    """Renders the whole conversation for each delta."""

    def find(
        self, template: Template, so_far: Rendered, before: RenderedPrefix, action: Action, answers: Sequence[Message]
    ) -> TurnDelta | None:
        """The delta after `action`."""
        return find_delta(template, so_far, action, answers, self._ends)


class NoCache(DeltaCache):
    """Knows nothing and learns nothing."""

    def text(self, *arguments: Any) -> None:
        """Nothing is known."""

    def learn(self, *arguments: Any) -> None:
        """Nothing is learned."""


def microseconds_per_turn(renderers: Sequence[ChatRenderer], answer: str) -> list[float]:
    """The processor time of `next_prompt` in each renderer. No two answers are the same, so each is tokenised."""
    fastest = [[math.inf] * TURNS for _ in renderers]
    for number in range(ROUNDS):
        for renderer, seconds in zip(renderers, fastest, strict=True):
            action, observation = said(renderer, CALL_TEXT), Observation(messages=(QUESTION,), tools=(TOOL,))
            prompt = renderer.render(observation)
            for turn in range(TURNS):
                observation = after(observation, action, answer.format(*[number, turn] * 4))
                started = time.process_time()
                prompt = renderer.next_prompt(prompt, action, observation)
                seconds[turn] = min(seconds[turn], time.process_time() - started)
    return [sum(seconds) / TURNS * 1e6 for seconds in fastest]


def main() -> None:
    """Print a line for each template."""
    rng = random.Random(0)
    tokenizer: Any = train_tokenizer([demonstration(draw_basket(rng), rng) for _ in range(300)])
    print(f"{'template':20} {'answer':>6} {'whole':>8} {'short':>8} {'cached':>8}  whole/cached  short/cached")
    for (name, template), (length, answer) in itertools.product(TEMPLATES.items(), ANSWERS.items()):
        own = copy.deepcopy(tokenizer)
        own.chat_template = template
        with patch("agent_r1.chat.renderer.DeltaFinder", WholeConversation):
            always_whole = ChatRenderer(own)
        with patch("agent_r1.chat.bridge.DeltaCache", NoCache):
            uncached = ChatRenderer(own)
        whole, short, cached = microseconds_per_turn([always_whole, uncached, ChatRenderer(own)], answer)
        ratios = f"{whole / cached:12.1f}  {short / cached:12.1f}"
        print(f"{name:20} {length:>6} {whole:8.0f} {short:8.0f} {cached:8.0f}  {ratios}")


if __name__ == "__main__":
    main()
