"""The expert whose purchases are the demonstrations of the warm start.

It knows the instruction, and which product the goal was made of, so that it can choose it among the results; at times
it first opens better hits that turn out to lack the options. It searches with words of the instruction alone, in one of
three ways:

    whole   machine wash women's pants with elastic waist with color: navy, and size: large
    typed   machine wash women's pants elastic waist navy large
    short   women's pants elastic waist navy

`typed` leaves out what people left out who searched for WebShop's human goals (`FILLERS`), and `short` some more words
at random. Every action is run in the environment, and only episodes with a score of 1 are shown.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent_r1.console import progress_counter
from agent_r1.envs import AgentEnv
from agent_r1.types import Action, Task

from .goals import Goal
from .pages import BUY, NEXT, PREV
from .shop import PER_PAGE, Shop

MAX_ACTIONS = 11
"""Of a demonstration: one less than an episode may have."""

FILLERS = frozenset(
    [
        *("a", "also", "am", "an", "are", "be", "buy", "can", "choose", "find", "for", "get", "has", "i", "im", "is"),
        *("it", "like", "looking", "made", "me", "my", "need", "one", "pair", "should", "some", "that", "the", "to"),
        *("want", "would"),
    ]
)
"""Words of goals that fewer than one in five people type when they search (`measure_fillers`)."""
_CONNECTING = frozenset(["and", "with", "of", "in", "color", "size", "style"])
"""Words between the parts of synthetic instructions."""

_PRICE = re.compile(r",? and price lower than [\d.]+ dollars$")
_WORD = re.compile(r"[^\s,:]+")
_WRONG_FIRST, _LOOK, _NEXT_PAGE = 0.35, 0.1, 0.6
"""How often the expert first opens products that turn out to lack the options, reads a sub-page, and turns the page
instead of searching again."""


def queries(text: str, rng: random.Random) -> list[str]:
    """Ways to search for an instruction: one that is drawn of the three, and then the two with all its words.

    >>> queries("Find me gold plated hdmi cables with size: 3ft, and price lower than 30.00 dollars", random.Random(1))
    ['gold plated hdmi cables with size: 3ft', 'gold plated hdmi cables 3ft']
    """
    whole = whole_query(text)
    typed = [word for word in _WORD.findall(whole.lower()) if word not in FILLERS | _CONNECTING]
    kept = rng.sample(range(len(typed)), k=max(2, round(0.7 * len(typed)))) if len(typed) > 4 else range(len(typed))
    short = " ".join(typed[index] for index in sorted(kept))
    first = rng.choices([whole, " ".join(typed), short], weights=[5, 3, 2])[0]
    return list(dict.fromkeys([first, " ".join(typed), whole]))


def whole_query(text: str) -> str:
    """An instruction without its price and its "Find me"."""
    return _PRICE.sub("", text).removeprefix("Find me ").strip()


def measure_fillers(rows: Iterable[Mapping[str, Any]], *, least: int = 60, kept: float = 0.2) -> set[str]:
    """The words of goals that people leave out when they search. A row has a `goal` and `queries`; a word counts when
    it is in at least so many pairs of them."""
    seen: Counter[str] = Counter()
    typed: Counter[str] = Counter()
    for row in rows:
        words = set(re.findall(r"\w+", row["goal"].lower()))
        for query in row["queries"]:
            seen.update(words)
            typed.update(words & set(re.findall(r"\w+", query.lower())))
    return {word for word, count in seen.items() if count >= least and typed[word] < kept * count}


def plan(shop: Shop, goal: Goal, rng: random.Random) -> list[str] | None:
    """The expert's actions; None when its searches do not find the product."""
    actions: list[str] = []
    page = 0
    for query in queries(goal.text, rng):
        actions.append(f"search[{query}]")
        found = shop.search(query)
        page = found.index(goal.asin) // PER_PAGE if goal.asin in found else PER_PAGE
        # Where the product is on a later page, the expert turns pages, or searches with more words.
        if page == 0 or (page <= 2 and rng.random() < _NEXT_PAGE):
            break
    if page > 2:
        return None
    actions += [f"click[{NEXT}]"] * page
    shown = found[page * PER_PAGE : (page + 1) * PER_PAGE]
    wrong = _without_options(shop, goal, shown[: shown.index(goal.asin)])
    if wrong and rng.random() < _WRONG_FIRST:
        for asin in wrong[: rng.choice([1, 1, 2])]:
            actions += [f"click[{asin.lower()}]", f"click[{PREV}]"]
    actions.append(f"click[{goal.asin.lower()}]")
    if rng.random() < _LOOK:
        actions += [f"click[{rng.choice(['features', 'description'])}]", f"click[{PREV}]"]
    values = shop.product(goal.asin).options
    actions += [f"click[{goal.options[name]}]" for name in values if name in goal.options]
    actions.append(f"click[{BUY}]")
    return actions if len(actions) <= MAX_ACTIONS else None


def _without_options(shop: Shop, goal: Goal, asins: Sequence[str]) -> list[str]:
    """The products whose pages do not offer all that the goal names: their pages say that they are wrong."""
    wanted = set(goal.options.values())
    offered = {asin: {value for values in shop.product(asin).options.values() for value in values} for asin in asins}
    return [asin for asin in asins if wanted - offered[asin]]


def gold_plan(shop: Shop, goal: Goal) -> list[str] | None:
    """The shortest plan: search with the whole instruction, else with the title, open the product, choose, buy. None
    when it is not found."""
    query = whole_query(goal.text)
    found = shop.search(query)
    if goal.asin not in found:
        query = " ".join(shop.product(goal.asin).name.split()[:12])
        found = shop.search(query)
    if goal.asin not in found:
        return None
    turns = [f"click[{NEXT}]"] * (found.index(goal.asin) // PER_PAGE)
    values = [goal.options[name] for name in shop.product(goal.asin).options if name in goal.options]
    clicks = [goal.asin.lower(), *values, BUY]
    return [f"search[{query}]", *turns, *(f"click[{button}]" for button in clicks)]


async def play(env: AgentEnv, task: Task, actions: Sequence[str]) -> tuple[float, list[list[Mapping[str, Any]]]]:
    """Run actions in an environment: the score, and the conversations that the context policy showed.

    There is one conversation where the policy keeps the whole history, and one per step where it rewrites it.
    """
    rows: list[list[Mapping[str, Any]]] = []
    observation = await env.reset(task)
    score = 0.0
    try:
        for text in actions:
            assert observation is not None
            assert observation.messages is not None
            shown = [*observation.messages, {"role": "assistant", "content": text}]
            if rows and shown[: len(rows[-1])] == rows[-1]:
                rows.pop()
            rows.append(shown)
            result: Any = await env.step(Action(text=text, content=text))
            observation = result.observation
            if result.done:
                score = float(result.info.get("purchase", {}).get("score", 0.0))
                break
    finally:
        await env.close()
    return score, rows


async def demonstrations(
    env_of: Any, shop: Shop, tasks: Sequence[tuple[Task, Goal]]
) -> Iterator[tuple[Goal, list[list[Mapping[str, Any]]]]]:
    """The goals that the expert reaches, each with its conversations. `env_of()` makes an environment."""
    reached = []
    with progress_counter("goals", len(tasks)) as progress:
        for number, (task, goal) in enumerate(tasks):
            progress("demonstrating", number)
            actions = plan(shop, goal, random.Random(f"expert {goal.goal_id}"))
            if actions is None:
                continue
            score, rows = await play(env_of(), task, actions)
            if score == 1.0:
                reached.append((goal, rows))
    return iter(reached)
