"""What rollout workers cannot do is refused before a model is loaded."""

from __future__ import annotations

from pathlib import Path

from agent_r1.config import Config
from agent_r1.errors import ConfigError, report_problems, require_installed


def check_workers(config: Config) -> None:
    """Raise `ConfigError` for a configuration that rollout workers cannot run, `MissingExtraError` without Ray."""
    chosen, agent = f"rollout.workers={config.rollout.workers}", config.agent
    if config.rollout.workers == "local":
        return
    problems = _ray_problems(config) if config.rollout.workers == "ray" else []
    if agent.remote:
        problems.append(
            f"agent.remote=true needs one gateway that programs elsewhere ask for rollouts, and with {chosen} every "
            "worker has its own; use agent.function or agent.command, or rollout.workers=local"
        )
    if agent.port:
        problems.append(
            f"agent.port={agent.port} can be used by one gateway, and with {chosen} every worker has its own; use "
            "agent.port=0"
        )
    report_problems(problems, ConfigError, f"{chosen} cannot be used with this configuration:")


def _ray_problems(config: Config) -> list[str]:
    require_installed("ray", "ray", "ray", "rollout.workers=ray")
    settings, problems = config.rollout.ray, []
    if settings.address is not None and settings.address.startswith("ray://"):
        problems.append(
            f"rollout.ray.address={settings.address} is an address of Ray's client, over which no engine can serve "
            "workers; start the run on a node of the cluster with rollout.ray.address=auto, or with `ray job submit`"
        )
    problems += [
        f"rollout.ray.modules names '{path}', which does not exist"
        for path in settings.modules
        if not Path(path).exists()
    ]
    return problems
