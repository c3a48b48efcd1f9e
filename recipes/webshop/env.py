"""The environment of webshop: WebShop's text environment, as a conversation.

    env: {name: webshop, shop: runs/webshop_data}

The model writes `search[words]` or `click[button]` and reads the page it leads to. Buying ends the episode; the score
of the purchase is in the step's `info`, where the reward function finds it. The same class runs in the process of a run
and in a service (`agent-r1 env serve env:ShopEnv`).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from agent_r1.constraints import Count
from agent_r1.envs import AgentEnv, Conversation, make_policy
from agent_r1.envs.context import Append, ContextChoice
from agent_r1.registry import check_arguments
from agent_r1.types import Action, Observation, StepResult, Task

from . import context as _context  # noqa: F401 - registers the context policy `shop_page`
from .expert import gold_plan
from .goals import Goal
from .pages import FIXED, Page, PageText, buttons, follow, mention, search
from .prompts import read_action
from .shop import Shop, open_shop

DEFAULT_SHOP = "runs/webshop_data"


@AgentEnv.register("webshop")
class ShopEnv(AgentEnv):
    """One customer in the shop.

    Args:
        shop: The folder that the data script wrote.
        context: How much of its history the model sees.
        title_characters: Length of a title among the results.
        text_characters: Length of a description, of the features, of the reviews.
    """

    def __init__(
        self,
        shop: str = DEFAULT_SHOP,
        context: ContextChoice = "append",
        title_characters: Count = 100,
        text_characters: Count = 600,
    ) -> None:
        lengths = {"title_characters": title_characters, "text_characters": text_characters}
        check_arguments(ShopEnv, "env.", lengths, "environment 'webshop'")
        self._folder = shop
        self._policy = make_policy(context)
        self._text = PageText(**lengths)
        self._shop: Shop
        self._goal: Goal
        self._conversation: Conversation
        self._page = Page()
        self._written: set[Page] | None = None

    async def reset(self, task: Task) -> Observation:
        """Begin on the search page, with the row's messages."""
        self._shop = open_shop(self._folder)
        self._goal = Goal.from_json(task.env_kwargs.get("goal"))
        self._shop.product(self._goal.asin)  # an unknown product is found out before the model shops for it
        self._conversation = Conversation(self._policy, task.prompt)
        self._page = Page()
        # Where the model sees its whole history, a page that stands there is not written again.
        self._written = set() if isinstance(self._policy, Append) else None
        return self._observation()

    async def step(self, action: Action) -> StepResult:
        """Search, or click a button of the page. What is neither is explained, and the page stays."""
        if self._page.bought:
            raise RuntimeError("the episode is over: the product was bought")
        if self._conversation.takes(action):
            return StepResult(observation=self._observation(), info={"metrics": {"episode/summaries": 1.0}})
        problem = self._follow(action.text)
        if self._page.bought:
            return self._sale()
        reply = problem or self._write_page()
        self._conversation.add(action.as_message(), {"role": "user", "content": reply})
        metrics = {
            "webshop/mistakes": float(problem is not None),
            "webshop/searches": float(_searched(action, problem)),
        }
        return StepResult(observation=self._observation(), info={"metrics": metrics})

    def gold_actions(self, task: Task) -> list[str] | None:
        """The purchase of the product that the goal was made of."""
        return gold_plan(open_shop(self._folder), Goal.from_json(task.env_kwargs.get("goal")))

    def _write_page(self) -> str:
        page = replace(self._page, options=())
        if self._written is not None and page in self._written:
            return mention(self._shop, self._page)
        if self._written is not None:
            self._written.add(page)
        return self._text.write(self._shop, self._page)

    def _follow(self, text: str) -> str | None:
        """Go to the page that an action leads to; what is wrong when there is none."""
        action = read_action(text)
        if action is None:
            return "Error: write one action, search[words] or click[button], and nothing else."
        if action.verb == "search":
            self._page = search(action.argument)
            return None
        target = follow(self._shop, self._page, action.argument)
        if target is None:
            names = ", ".join(name for name in buttons(self._shop, self._page) if name in FIXED)
            advice = f"Click a product, a value or one of: {names}." if names else "Write search[words]."
            return f"Error: this page has no button [{action.argument:.80}]. {advice}"
        self._page = target
        return None

    def _sale(self) -> StepResult:
        options = dict(self._page.options)
        score = self._shop.score(self._goal, self._page.asin, options)
        info: dict[str, Any] = {"asin": self._page.asin, "options": options, "purchase": asdict(score)}
        return StepResult(observation=None, done=True, info={**info, "metrics": {"webshop/purchases": 1.0}})

    def _observation(self) -> Observation:
        return Observation(messages=self._conversation.messages, anchor=self._page.anchor)


def _searched(action: Action, problem: str | None) -> bool:
    found = read_action(action.text)
    return problem is None and found is not None and found.verb == "search"
