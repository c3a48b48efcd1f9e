"""Episodes of the recipe `hotpotqa`: its configuration and data, a search that takes no time, and scripted actions."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import weakref
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1.chat import ChatRenderer
from agent_r1.config import Config, load_config
from agent_r1.data import DATA_VARIABLE
from agent_r1.engines import Engine
from agent_r1.registry import recipe_folder
from agent_r1.tools import BaseTool, ToolContext, ToolPolicy, ToolResponse, ToolResult
from agent_r1.training import RunPlan, prepare_plan
from agent_r1.training.plan import missing_data
from agent_r1.types import Completion, SamplingParams, TokenIds, ToolSchema

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "hotpotqa"
STORED = "stored_search"

THOUGHTS = (
    "I need to know about {}.",
    "I search for {}.",
    "First I look up {}.",
    "Let me find {}.",
    "The question is about {}, which I do not know yet.",
    "To answer this I need {}.",
    "I begin with {} and read what is said there about it.",
    "Which facts are known about {}?",
)
"""How the members of a group begin an action: they part there, as sampled ones do."""

Row = Mapping[str, Any]


def sample_data(folder: Path) -> None:
    """Let the recipe make its data from its own sample: `folder` becomes AGENT_R1_DATA."""
    (folder / "hotpotqa").symlink_to(RECIPE / "sample", target_is_directory=True)
    os.environ[DATA_VARIABLE] = str(folder)


def recipe_config(overrides: Sequence[str]) -> Config:
    """The recipe's configuration, without held-out questions. Its data files are made if they are missing."""
    with recipe_folder(RECIPE):
        config = load_config(RECIPE, list(overrides))
        if missing_data(config):
            prepare_plan(config)
        return replace(config, data=replace(config.data, eval=[]))


def read_demonstrations(config: Config) -> list[Row]:
    """The recipe's demonstrations, one row per question."""
    with Path(config.sft.data[0]).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def recipe_plan(config: Config) -> RunPlan:
    """The checked plan of the recipe's run."""
    with recipe_folder(RECIPE):
        return prepare_plan(config)


# --- search ---------------------------------------------------------------------------------------------------------


class StoredSearch(BaseTool):
    """Answers from what demonstrations were shown: for their own queries what they found, for others some of it.

    It has the schema, the batches and the lengths of the recipe's search tool, and takes no time.
    """

    name = "search"
    policy = ToolPolicy(max_concurrency=1, batch_size=64, max_output_chars=20_000)

    def __init__(self, demonstrations: Iterable[Row]) -> None:
        self.tool_schema: ToolSchema = {}
        self._found: dict[str, str] = {}
        for row in demonstrations:
            [self.tool_schema] = row["tools"]
            queries = [_query_of(message) for message in row["messages"] if message.get("tool_calls")]
            answers = [message["content"] for message in row["messages"] if message["role"] == "tool"]
            self._found.update(zip(queries, answers, strict=True))
        self._texts = list(self._found.values())

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """One call."""
        return self._answer(args)

    async def batch_execute(
        self, list_of_args: Sequence[Mapping[str, Any]], contexts: Sequence[ToolContext] = ()
    ) -> list[ToolResult | Exception]:
        """Many calls."""
        return [self._answer(args) for args in list_of_args]

    def _answer(self, args: Mapping[str, Any]) -> ToolResult:
        query = json.dumps(args.get("query"))
        text = self._found.get(query) or self._texts[zlib.crc32(query.encode()) % len(self._texts)]
        return ToolResponse(text=text), None, {}


def _query_of(message: Row) -> str:
    return json.dumps(message["tool_calls"][0]["function"]["arguments"]["query"])


def with_stored_search(config: Config, demonstrations: Iterable[Row]) -> Config:
    """The configuration with `StoredSearch` in place of the search tool."""
    BaseTool.registry.add(STORED, StoredSearch(demonstrations), replaceable=True)
    kept = {key: value for key, value in config.env.items() if key != "row_tools"}
    return replace(config, env={**kept, "tools": [STORED]})


# --- actions --------------------------------------------------------------------------------------------------------


class Script:
    """What the members of a group say: the searches of the question's demonstration in words of their own, up to two
    further ones, and the answer."""

    def __init__(self, renderer: ChatRenderer, demonstrations: Sequence[Row], tools: Sequence[ToolSchema]) -> None:
        self._renderer = renderer
        self._rows = {_question(row["messages"]): row for row in demonstrations}
        queries = [_query_of(m) for row in demonstrations for m in row["messages"] if m.get("tool_calls")]
        self._queries = sorted(set(queries))

    def knows(self, messages: Sequence[Row]) -> bool:
        """Whether there is a demonstration of a conversation that begins like this."""
        return _question(messages) in self._rows

    def replies(self, messages: Sequence[Row], member: int) -> list[TokenIds]:
        """The ids of each action of a member, with their end of turn."""
        question = _question(messages)
        said = [message for message in self._rows[question]["messages"] if message["role"] == "assistant"]
        number = zlib.crc32(question.encode()) + member
        further = [self._queries[(number * 7919 + extra) % len(self._queries)] for extra in range(number % 3)]
        queries = [_query_of(message) for message in said if message.get("tool_calls")][:3] + further
        texts = [_search_text(query, number + turn) for turn, query in enumerate(queries[:4])]
        end = self._renderer.stop_ids[0]
        return [(*self._renderer.encode_rendered(text), end) for text in (*texts, str(said[-1]["content"]))]


def _question(messages: Sequence[Row]) -> str:
    return next(str(message["content"]) for message in messages if message["role"] == "user")


def _search_text(query: str, number: int) -> str:
    topic = " and ".join(_as_list(json.loads(query)))
    call = json.dumps({"name": "search", "arguments": {"query": json.loads(query)}}, ensure_ascii=False)
    return f"{THOUGHTS[number % len(THOUGHTS)].format(topic)}\n<tool_call>\n{call}\n</tool_call>"


def _as_list(query: str | list[str]) -> list[str]:
    return [query] if isinstance(query, str) else query


class PlayingEngine:
    """Puts a script before an engine: the n-th episode with a first prompt gets the n-th list of replies for it.

    Its own requests are told from others by their seed, under which `replies` has the ids that the engine is to sample.
    Without an engine it answers at once.
    """

    def __init__(self, engine: Engine | None, replies: dict[int, TokenIds], *, context_length: int) -> None:
        self._engine = engine
        self._replies = replies
        self.context_length = context_length
        self.policy_version = 0
        self.adapters = ()
        self.pauses_during_update = True
        self._scripts: dict[TokenIds, itertools.cycle[list[TokenIds]]] = {}
        self._episodes: weakref.WeakKeyDictionary[Any, list[TokenIds]] = weakref.WeakKeyDictionary()
        self.num_tokens = self.num_calls = 0

    def learn(self, first_prompt: TokenIds, members: Sequence[list[TokenIds]]) -> None:
        """Give the scripts of a group's members, by the prompt that they all begin with."""
        self._scripts[first_prompt] = itertools.cycle(members)

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """The next action of the episode that asks. An episode is the task that runs it."""
        episode = asyncio.current_task()
        if episode not in self._episodes:
            self._episodes[episode] = list(next(self._scripts[tuple(prompt_ids)]))
        ids = self._episodes[episode].pop(0)
        self.num_calls += 1
        self.num_tokens += len(ids)
        if self._engine is not None:
            self._replies[sampling.seed] = ids
            completion = await self._engine.generate(prompt_ids, sampling)
            del self._replies[sampling.seed]
            return completion
        await asyncio.sleep(0)
        count = len(ids)
        return Completion(token_ids=ids, logprobs=(-0.5,) * count, finish_reason="stop", policy_versions=(0,) * count)

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Empty the prefix cache, as an update does."""
        if self._engine is not None:
            await self._engine.update_weights(weights, version)

    def paused(self) -> AbstractAsyncContextManager[None]:
        """As the engine."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            await self._engine.close()
