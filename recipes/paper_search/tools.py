"""The tools of paper_search. Each call shows up to five papers that were not shown before, by their titles."""

from __future__ import annotations

from agent_r1.errors import ConfigError
from agent_r1.tools import FunctionTool, ToolContext

from .reading import Reading

STATE = "reading"


def reading_of(context: ToolContext) -> Reading:
    """What the episode has read so far."""
    reading = context.state.get(STATE)
    if not isinstance(reading, Reading):
        raise ConfigError("the tools of paper_search run in its environment: env.name=environment:PaperSearchEnv")
    return reading


async def _search(query: str, context: ToolContext) -> str:
    """Papers whose title and abstract match a query.

    Args:
        query: Words of the papers.
    """
    reading = reading_of(context)
    return reading.answer(reading.view.search(query))


async def _cited(topic: str, context: ToolContext) -> str:
    """Papers that are cited most by papers about a topic. Call it again for more.

    Args:
        topic: Words of the topic.
    """
    reading = reading_of(context)
    return reading.answer(reading.view.cited(topic))


async def _expand(paper: int, context: ToolContext) -> str:
    """Papers in the references of a paper.

    Args:
        paper: The number of a paper that was shown.
    """
    reading = reading_of(context)
    return reading.answer(reading.view.references(reading.number(paper), reading.query))


search = FunctionTool(_search, "search")
cited = FunctionTool(_cited, "cited")
expand = FunctionTool(_expand, "expand")
