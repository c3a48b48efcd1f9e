"""Notebooks: the interpreters of stateful Python tools, of which only so many are alive at once.

An episode keeps its variables in an interpreter while the model thinks. With hundreds of episodes most of them are
idle: `Interpreters` closes the one that was idle longest when another is needed. The episode's next call then starts a
new one and runs its earlier cells again, unseen. Where that does not end as before, or took long, the variables are
lost, and the model is told.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agent_r1.tools.sandbox.session import SandboxReply, SandboxSession

Ask = Callable[[SandboxSession, str], Awaitable[SandboxReply]]
"""Runs one cell in a session."""
Open = Callable[[], Awaitable[SandboxSession]]
"""Starts a session."""


@dataclass(kw_only=True, eq=False, slots=True)
class Notebook:
    """An episode's interpreter. Calls of one turn arrive at once; the lock runs them one by one, in order."""

    session: SandboxSession | None = None
    """None before the first cell, after a cell was killed, and when it was closed for another notebook."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    cells: list[tuple[str, str]] = field(default_factory=list)
    """The cells that the interpreter has run, each with its status."""
    seconds: float = 0.0
    """How long they took together."""

    def __reduce__(self) -> tuple[type[Notebook], tuple[()]]:
        """`context.state` is sent to worker processes: the interpreter stays here, an empty notebook goes there."""
        return Notebook, ()

    def forget(self) -> None:
        """The variables are gone."""
        self.cells.clear()
        self.seconds = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRun:
    """A cell that was run."""

    reply: SandboxReply
    """What it showed, and how it ended."""
    lost_before: bool
    """The variables of earlier cells were lost before it ran."""
    lost_after: bool
    """The interpreter ended with it."""


class Interpreters:
    """The notebooks of one event loop, of which at most `limit` have a living interpreter.

    `seconds` is how long the earlier cells of a notebook may have taken together to be run again.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit = limit
        self.num_alive = 0
        """Living interpreters, those that are starting or ending included."""
        self._seconds = seconds
        self._idle: dict[Notebook, None] = {}
        self._changed = asyncio.Condition()

    @classmethod
    def here(cls, limit: int, seconds: float) -> Interpreters:
        """The notebooks of the running event loop with this limit."""
        by_limit = _interpreters_of_loop.setdefault(asyncio.get_running_loop(), {})
        return by_limit.setdefault((limit, seconds), cls(limit, seconds))

    async def run(self, notebook: Notebook, code: str, open_session: Open, ask: Ask) -> CellRun:
        """Run a cell in a notebook."""
        async with notebook.lock, self._in_use(notebook):
            session, lost = await self._session_of(notebook, open_session, ask)
            start = time.monotonic()
            reply = await ask(session, code)
            notebook.seconds += time.monotonic() - start
            notebook.cells.append((code, str(reply.report.get("status"))))
            return CellRun(reply=reply, lost_before=lost, lost_after=session.is_over)

    async def close(self, notebook: Notebook) -> None:
        """End a notebook's interpreter."""
        async with notebook.lock:
            if notebook in self._idle:
                del self._idle[notebook]
                await self._end(notebook)
            notebook.forget()

    async def _session_of(self, notebook: Notebook, open_session: Open, ask: Ask) -> tuple[SandboxSession, bool]:
        """The notebook's session, and whether its variables were lost."""
        if notebook.session is not None:
            return notebook.session, False
        notebook.session = await open_session()
        if await self._restore(notebook, notebook.session, ask):
            return notebook.session, False
        await notebook.session.close()
        notebook.forget()
        notebook.session = await open_session()
        return notebook.session, True

    async def _restore(self, notebook: Notebook, session: SandboxSession, ask: Ask) -> bool:
        if notebook.seconds > self._seconds:
            return False
        for code, status in notebook.cells:
            reply = await ask(session, code)
            if reply.ended != "answered" or str(reply.report.get("status")) != status:
                return False
        return True

    @asynccontextmanager
    async def _in_use(self, notebook: Notebook) -> AsyncIterator[None]:
        """Hold one of the places: the notebook's own, a free one, or that of the notebook idle for longest."""
        if notebook in self._idle:
            del self._idle[notebook]
        else:
            await self._take_place()
        try:
            yield
        finally:
            if notebook.session is not None and not notebook.session.is_over:
                self._idle[notebook] = None
                await self._tell()
            else:
                notebook.forget()
                await self._end(notebook)

    async def _take_place(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.num_alive < self.limit or self._idle)
            if self.num_alive < self.limit:
                self.num_alive += 1
                return
            longest_idle = next(iter(self._idle))
            del self._idle[longest_idle]
            session, longest_idle.session = longest_idle.session, None
        try:
            if session is not None:
                await session.close()
        except BaseException:
            self.num_alive -= 1
            raise

    async def _end(self, notebook: Notebook) -> None:
        session, notebook.session = notebook.session, None
        try:
            if session is not None:
                await session.close()
        finally:
            self.num_alive -= 1
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


_interpreters_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, float], Interpreters]]
_interpreters_of_loop = weakref.WeakKeyDictionary()
