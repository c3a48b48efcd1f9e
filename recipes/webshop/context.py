"""The context policy `shop_page`: each prompt is the instruction, the actions so far and the page where the model is.

    agent-r1 train recipes/webshop env.context=shop_page

The prompt stays as short as one page, however many pages came before.
"""

from __future__ import annotations

from agent_r1.envs import ContextPolicy, History, Messages, context_policies


@context_policies.register("shop_page")
class ShopPage(ContextPolicy):
    """The task; in its last message also the actions so far and the page; then what was wrong since.

    After search[tea], click[b01abcdefg] and click[grean] the model reads: the instruction, "Actions so far: search[tea]
    click[b01abcdefg]" and the product's page in one message, then its click[grean] and the error.
    """

    def show(self, history: History) -> Messages:
        """The task and the page."""
        pages = [number for number, turn in enumerate(history.turns) if not _is_error(turn)]
        if not pages:
            return history.messages
        last = pages[-1]
        actions = " ".join(str(history.turns[number][0]["content"]).strip() for number in pages)
        *before, instruction = history.task
        text = f"{instruction['content']}\n\nActions so far: {actions}\n\n{history.turns[last][1]['content']}"
        since = (message for turn in history.turns[last + 1 :] for message in turn)
        return (*before, {**instruction, "content": text}, *since)


def _is_error(turn: Messages) -> bool:
    return str(turn[-1]["content"]).startswith("Error: ")
