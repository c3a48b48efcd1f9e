"""A model server in a thread of the test, and agents that say what a test wants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agent_r1.chat import load_renderer
from agent_r1.engines import ScriptedEngine
from agent_r1.inference import Agent, find_source, load_agent, make_agent
from agent_r1.registry import recipe_folder
from agent_r1.serving import ModelServer, ServingLimits, create_app
from agent_r1.training import check_config
from agent_r1.web import Access, listen, running_server

T = TypeVar("T")

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart"


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    server: ModelServer
    loop: asyncio.AbstractEventLoop

    @property
    def engine(self) -> Any:
        """The agent's engine; tests look into it."""
        return self.server.agent.engine

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work on the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on the server's event loop; a test that would wait forever fails."""

        async def wait() -> None:
            async with asyncio.timeout(20):
                while not condition():
                    await asyncio.sleep(0.005)

        self.run(wait())


@contextmanager
def served(
    agent: Agent, *, access: Access | None = None, name: str = "tiny", shutdown_seconds: int = 5, **limits: Any
) -> Iterator[Served]:
    """The agent behind the API, on a free port."""
    server = ModelServer(agent, limits=ServingLimits(**limits), name=name)
    ready: Any = threading.Event()
    state: dict[str, Any] = {}

    async def main() -> None:
        app = create_app(server, access)
        async with running_server(app, listen("127.0.0.1", 0), shutdown_seconds=shutdown_seconds) as url:
            state.update(url=url, loop=asyncio.get_running_loop(), stop=asyncio.Event())
            ready.set()
            await state["stop"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(30)
    try:
        yield Served(state["url"], server, state["loop"])
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join(30)
        assert not thread.is_alive()


def tiny_agent(model: Path, *overrides: str) -> Agent:
    """The tiny model on the local engine."""
    return load_agent(model, overrides=["rollout.concurrency=8", *overrides])


def scripted_agent(model: Path, replies: Sequence[str] | Callable[[str], str], *overrides: str) -> Agent:
    """An agent of the quickstart's recipe whose model says these texts, one per call, or what a function of the
    prompt's text says."""
    source = find_source(model, recipe=RECIPE, overrides=overrides)
    with recipe_folder(RECIPE):
        _, reward = check_config(source.config)
        renderer, texts = load_renderer(model), iter(() if callable(replies) else replies)

        def reply(prompt: Any, sampling: Any) -> list[int]:
            text = replies(renderer.text_of(prompt)) if callable(replies) else next(texts)
            return [*renderer.encode_rendered(text), renderer.stop_ids[0]]

        return make_agent(source, renderer, ScriptedEngine(reply), reward)
