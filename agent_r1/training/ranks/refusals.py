"""What several ranks cannot do, refused before anything is loaded."""

from __future__ import annotations

from agent_r1.config import Config
from agent_r1.errors import ConfigError, report_problems
from agent_r1.learner.sharded import Ranks


def check_ranks(config: Config, ranks: Ranks) -> None:
    """Raise `ConfigError` for settings that need one process."""
    if ranks.size == 1:
        return
    problems = []
    if config.rollout.max_staleness:
        problems.append(
            f"rollout.max_staleness={config.rollout.max_staleness} decides in one process which groups a step takes; "
            "set it to 0"
        )
    if config.agent.remote:
        problems.append("agent.remote=true: programs elsewhere could not know which rank to ask for rollouts")
    if config.agent.port:
        problems.append(f"agent.port={config.agent.port}: only one rank could listen there; set it to 0")
    workers = getattr(config.rollout, "workers", None)
    if workers not in (None, "local"):
        problems.append(f"rollout.workers={workers} belongs to one process, and every rank rolls out its own share")
    report_problems(problems, ConfigError, f"torchrun started {ranks.size} processes, and this needs one:")
