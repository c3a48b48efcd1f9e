"""`env=KIND:NAME`: an environment that exists already, in one line. A kind turns the name into an ordinary
configuration: the section `env`, tasks, and the reward.

    @env_kinds.register("coin")
    def coin(name: str, *, tasks: Count = 100) -> ReadyEnv:
        rows = [Task(task_id=f"coin-{i}", prompt=..., env_kwargs={"seed": i}) for i in range(tasks)]
        return ReadyEnv(env={"name": "my_envs:Coin", "sides": name}, train=rows)

Then `env=coin:fair env.tasks=20` trains. The keyword arguments of the function are the keys of `env`. A run saves the
configuration that the kind made, so nothing later needs to know the kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_r1.errors import ConfigError, raising
from agent_r1.registry import Registry, bind_part
from agent_r1.types import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyEnv:
    """What `env=KIND:NAME` stands for."""

    env: Mapping[str, Any]
    """The section `env`: the name of an environment and its arguments."""
    train: Sequence[Task] = ()
    """Tasks to train on; none: the user's own data is needed."""
    eval: Sequence[Task] = ()
    """Held-out tasks, none of which is in `train`."""
    reward: str | None = None
    """The registered outcome reward; None: the user's own is needed."""
    tools: Mapping[str, Any] = field(default_factory=dict)
    """Added to the section `tools`."""


env_kinds: Registry[Callable[..., ReadyEnv]] = Registry(
    "kind of environment", accepts=callable, expected="a function that returns a ReadyEnv"
)


def kind_of(name: Any) -> str | None:
    """The registered kind in `KIND:NAME`; None for the name of an environment.

    >>> kind_of("gym:FrozenLake-v1"), kind_of("my_envs:Maze")
    ('gym', None)
    """
    kind, colon, _ = str(name).partition(":")
    return kind if colon and kind in env_kinds.names() else None


def run_name_of(name: Any) -> str | None:
    """The name of a run in `KIND:NAME` or `module:attribute`, when the user gives none.

    >>> run_name_of("gym:FrozenLake-v1"), run_name_of("mcp:python shop/server.py"), run_name_of("tool")
    ('FrozenLake-v1', 'python_shop_server.py', None)
    """
    return re.sub(r"[^\w.=-]+", "_", str(name).partition(":")[2])[:80].strip("._") or None


def ready_env(section: Mapping[str, Any]) -> ReadyEnv:
    """What the section `env` with a name `KIND:NAME` stands for. `limits` is kept as it is."""
    arguments = dict(section)
    kind, _, name = str(arguments.pop("name")).partition(":")
    limits = {"limits": arguments.pop("limits")} if "limits" in arguments else {}
    if not name.strip():
        raise ConfigError(f"env={kind}: needs a name after the colon, such as {EXAMPLES.get(kind, f'{kind}:NAME')}")
    make = bind_part(env_kinds, "env", {"name": kind, **arguments})
    with raising(ConfigError, f"env={kind}:{name} cannot be used"):
        ready: ReadyEnv = make(name.strip())
    return ReadyEnv(
        env={**ready.env, **limits},
        train=ready.train,
        eval=ready.eval,
        reward=ready.reward,
        tools=ready.tools,
    )


EXAMPLES = {
    "gym": "gym:FrozenLake-v1",
    "mcp": "mcp:http://localhost:8000/mcp",
    "reasoning_gym": "reasoning_gym:leg_counting",
    "verifiers": "verifiers:my_environment",
}
"""One of each built-in kind, for messages."""


def split_seeds(seed: int, split: str, count: int) -> list[int]:
    """Seeds of tasks. Those of `train` are even and those of `eval` odd, so that no task is in both.

    >>> split_seeds(0, "train", 3), split_seeds(0, "eval", 3)
    ([0, 2, 4], [1, 3, 5])
    """
    first = 2 * (seed % 2**32) * 1_000_000 + (split == "eval")
    return [first + 2 * index for index in range(count)]
