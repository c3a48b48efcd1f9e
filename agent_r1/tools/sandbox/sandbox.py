"""`Sandbox`: run an unreviewed Python program.

    sandbox = Sandbox()
    session = sandbox.start(PROGRAM)
    reply = await session.ask({"code": "print(6 * 7)"}, seconds=10)
    await session.close()

The program runs in a process tree of its own, with an empty environment, hard limits and as few rights as the kernel
lets us take away. Which layers work here is probed once and returned by `describe()`; docs/sandbox.md lists what each
of them contains and what it does not.
"""

from __future__ import annotations

from agent_r1.errors import ConfigError
from agent_r1.tools.sandbox.fork_server import open_forked_session
from agent_r1.tools.sandbox.launch import launch, package_folders
from agent_r1.tools.sandbox.layers import Layers, SandboxKind, SandboxLimits
from agent_r1.tools.sandbox.probe import find_layers, layers_of_kind
from agent_r1.tools.sandbox.session import OwnGuard, SandboxSession


class Sandbox:
    """Starts confined Python programs.

    `kind` is "bubblewrap", "namespaces" or "limits", or "auto" for the strongest that works. With `packages` the
    program can import what is installed beside us. `preload` is Python text of ours, such as "import sympy", that runs
    once: the sessions of `open` are then forks of one process. Bubblewrap cannot fork, so "auto" is then namespaces
    where these work.
    """

    def __init__(
        self,
        kind: SandboxKind = "auto",
        limits: SandboxLimits | None = None,
        *,
        packages: bool = False,
        preload: str = "",
    ) -> None:
        self.limits = limits or SandboxLimits()
        self._packages = package_folders() if packages else ()
        self._layers = find_layers(kind)
        self._preload = preload
        if self._preload:
            _check_preload(kind, packages=packages)
            if self._layers.kind == "bubblewrap":
                self._layers = layers_of_kind("namespaces")[0] or self._layers

    def describe(self) -> Layers:
        """What confines programs on this machine."""
        return self._layers

    async def open(self, program: str) -> SandboxSession:
        """Start `program`, after `preload` where these layers can fork."""
        if not self._preload or self._layers.kind == "bubblewrap":
            return self.start(program)
        return await open_forked_session(program, self._layers, self.limits, self._packages, self._preload)

    def start(self, program: str) -> SandboxSession:
        """Start `program`, Python text that finds `settings` (see `child.py`) among its globals.

        Call it on the event loop's thread. The program ends with the session's `close`, or with this process.
        """
        interpreter = launch(program, self._layers, self.limits, self._packages)
        return SandboxSession(
            guard=OwnGuard(interpreter.process),
            requests=interpreter.requests,
            reports=interpreter.reports,
            output=interpreter.output,
            folder=interpreter.folder,
            group=interpreter.group,
        )


def _check_preload(kind: SandboxKind, *, packages: bool) -> None:
    if not packages:
        raise ConfigError("preload needs packages=true: sessions read the other files of what it imports")
    if kind == "bubblewrap":
        raise ConfigError("preload works with the sandboxes namespaces and limits; bubblewrap cannot fork")
