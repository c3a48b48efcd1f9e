"""What several ranks cannot do, refused before anything is loaded."""

from __future__ import annotations

from agent_r1.config import Config
from agent_r1.errors import ConfigError, report_problems
from agent_r1.learner.sharded import Ranks
from agent_r1.training.ranks.coordination import is_coordinated


def check_ranks(config: Config, ranks: Ranks) -> None:
    """Raise `ConfigError` for settings that need one process."""
    if ranks.size == 1:
        return
    problems = []
    if config.rollout.max_staleness and not is_coordinated(config):
        problems.append(
            f"rollout.max_staleness={config.rollout.max_staleness} with engine.name=local: every rank would decide by "
            "itself which groups a step takes. Set it to 0, or use inference servers (engine=vllm)"
        )
    if config.agent.remote:
        problems.append("agent.remote=true: programs elsewhere could not know which rank to ask for rollouts")
    if config.agent.port:
        problems.append(f"agent.port={config.agent.port}: only one rank could listen there; set it to 0")
    report_problems(problems, ConfigError, f"torchrun started {ranks.size} processes, and this needs one:")
