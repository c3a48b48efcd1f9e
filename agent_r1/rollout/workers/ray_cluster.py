"""Workers as Ray actors: the one module that imports Ray.

The package `agent_r1` itself, the recipe's folder and `rollout.ray.modules` travel with the job (`runtime_env`), named
by a hash of their contents: a worker runs the code that the driver runs, whatever is installed on its node.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from agent_r1.config import RayConfig
from agent_r1.errors import ConfigError, MissingExtraError, WorkersError
from agent_r1.rollout.workers.cluster import WorkerLostError
from agent_r1.rollout.workers.messages import FromWorker, StartFailure, ToWorker, WorkerInfo
from agent_r1.rollout.workers.worker import RECIPE_NAME, RolloutWorker, WorkerSetup, code_digest

try:
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError
except ImportError as error:
    raise MissingExtraError("ray", "ray", "rollout.workers=ray") from error

_CONNECT_SECONDS = 10.0
"""How long a cluster may take to accept a connection."""

_STOP_SECONDS = 8.0
"""How long a worker may take to close its environments and tools before it is killed."""


class RayCluster:
    """A Ray cluster that is there already, or one that is started on this machine for the run."""

    def __init__(self, settings: RayConfig, setup: WorkerSetup, *, recipe: Path | None) -> None:
        self._settings = settings
        self._setup = setup
        self._recipe = recipe
        self._stack = ExitStack()
        self._pickled_setup: Any = None
        self._actor: Any = None
        self._code = code_digest()

    def open(self) -> None:
        """Connect, upload the code, and prepare the set-up of workers."""
        if ray.is_initialized():
            raise WorkersError(
                "this process is connected to Ray already, without the code that workers need; call ray.shutdown() "
                "before the run, which connects by itself"
            )
        with ExitStack() as stack:
            stack.enter_context(_own_signal_handlers())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-r1-ray-")))
            self._connect(_modules(self._settings, self._recipe, folder))
            self._stack.callback(ray.shutdown)
        try:
            self._pickled_setup = ray.put(self._setup.pickled(cloudpickle.dumps))
        except (TypeError, AttributeError, ValueError, RecursionError) as error:  # what pickling raises
            self.close()
            raise WorkersError(
                f"what the episodes need cannot be sent to the workers: {error}. Tools, environments and rewards that "
                "are given as objects must be picklable; name them as module:attribute instead"
            ) from error
        self._actor = ray.remote(RolloutWorker).options(
            num_cpus=self._settings.cpus_per_worker,
            resources=dict(self._settings.resources) or None,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=1000,
        )

    def new_worker(self) -> RayWorker:
        """A worker that is not started yet."""
        return RayWorker(self._actor, self._pickled_setup, self._code)

    def explain_shortage(self) -> str:
        """What workers need and what the cluster has."""
        need = {"CPU": self._settings.cpus_per_worker, **self._settings.resources}
        with suppress(RayError):
            free, total = ray.available_resources(), ray.cluster_resources()
            available = ", ".join(f"{free.get(name, 0.0):g} of {total.get(name, 0.0):g} {name} free" for name in need)
            needed = ", ".join(f"{amount:g} {name}" for name, amount in need.items())
            return (
                f"each needs {needed} and the cluster has {available}; free or add nodes, or reduce "
                "rollout.ray.cpus_per_worker and rollout.ray.resources"
            )
        return "the cluster no longer answers"

    def close(self) -> None:
        """Disconnect; a cluster that was started for the run ends."""
        self._pickled_setup = self._actor = None
        self._stack.close()

    def _connect(self, modules: list[str]) -> None:
        settings = self._settings
        missing = [name for name in settings.env_vars if name not in os.environ]
        if missing:
            raise ConfigError(f"rollout.ray.env_vars names variables that are not set: {', '.join(missing)}")
        address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
        _check_reachable(address)
        starts: dict[str, Any] = {
            "num_cpus": _cpus(settings),
            "resources": _resources(settings),
            "include_dashboard": False,
        }
        try:
            ray.init(
                address=address,
                runtime_env={
                    "py_modules": modules,
                    "env_vars": {name: os.environ[name] for name in settings.env_vars},
                    "excludes": ["__pycache__", "*.pyc"],
                },
                log_to_driver=False,
                configure_logging=False,
                **(starts if address == "local" else {}),
            )
        except Exception as error:  # Ray raises a plain one when its processes start too slowly
            ray.shutdown()
            raise WorkersError(_explain(address, error)) from error


class RayWorker:
    """One actor, from its creation to its end."""

    def __init__(self, actor: Any, pickled_setup: Any, code: str) -> None:
        self._actor = actor.remote(pickled_setup, code)
        self._place = "a process that was not ready"

    async def start(self) -> WorkerInfo | StartFailure:
        """Wait until the actor is placed and ready."""
        with self._losses():
            info: WorkerInfo | StartFailure = await self._actor.start.remote()
        if isinstance(info, WorkerInfo):
            self._place = f"process {info.pid} on {info.host}"
        return info

    def deliver(self, batch: int, messages: Sequence[ToWorker]) -> None:
        """Send a batch without waiting."""
        self._actor.deliver.remote(batch, messages)

    async def poll(self) -> list[FromWorker]:
        """What the worker sends."""
        with self._losses():
            messages: list[FromWorker] = await self._actor.poll.remote()
            return messages

    async def stop(self) -> None:
        """Let the worker close what its episodes use, then kill it."""
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._actor.close.remote()
        except (RayError, TimeoutError):
            pass  # it is dead, was never placed, or hangs
        finally:
            with suppress(RayError):
                ray.kill(self._actor, no_restart=True)

    @contextmanager
    def _losses(self) -> Iterator[None]:
        """Turn what Ray raises for an actor that is gone into `WorkerLostError`."""
        try:
            yield
        except RayError as error:
            raise WorkerLostError(f"{self._place}: {_reason(error)}") from error


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM, with which a run saves a checkpoint."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _modules(settings: RayConfig, recipe: Path | None, folder: Path) -> list[str]:
    """The folders and files that travel. The recipe's has a name of its own, through a link in `folder`."""
    missing = [path for path in settings.modules if not Path(path).exists()]
    if missing:
        raise ConfigError(f"rollout.ray.modules names files that do not exist: {', '.join(missing)}")
    modules = [
        str(Path(sys.modules["agent_r1"].__path__[0])),
        *(str(Path(path).resolve()) for path in settings.modules),
    ]
    if recipe is not None:
        link = folder / RECIPE_NAME
        link.symlink_to(recipe.resolve(), target_is_directory=True)
        modules.append(str(link))
    return modules


def _cpus(settings: RayConfig) -> float:
    """CPUs of a cluster that is started for the run: those of this machine, or what the workers need."""
    return max(os.cpu_count() or 1, -(-settings.num_workers * settings.cpus_per_worker // 1))


def _resources(settings: RayConfig) -> dict[str, float] | None:
    return {name: amount * settings.num_workers for name, amount in settings.resources.items()} or None


def _check_reachable(address: str) -> None:
    """Raise `WorkersError` where nothing listens: Ray itself would try again for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # a word, such as `auto`
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise WorkersError(_explain(address, error)) from error


def _explain(address: str, error: Exception) -> str:
    text = _first_line(error)
    if "Version mismatch" in str(error):
        ours = f"Python {sys.version.split()[0]} with Ray {ray.__version__}"
        theirs = " ".join(str(error).split())[:400]
        return f"the Ray cluster at {address} has another version of Python or Ray than this process ({ours}): {theirs}"
    if address == "local":
        return f"a Ray cluster cannot be started on this machine: {text}"
    return (
        f"the Ray cluster at {address} cannot be reached: {text}. Start one with `ray start --head`, correct "
        "rollout.ray.address or RAY_ADDRESS, or set rollout.ray.address=local"
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _reason(error: RayError) -> str:
    """Why an actor is gone, in one line: Ray's text has several, and advice for clusters of its own kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if "creation task" in lines[0]:
        return str(lines[-1][:300])
    sentence = next((line for line in lines[1:] if line.startswith("The actor")), lines[0])
    return str(sentence.partition(" Some common causes")[0][:300])
