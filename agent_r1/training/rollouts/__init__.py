"""What runs a run's episodes, in the run's own process or in workers. No torch: workers import this."""

from agent_r1.training.rollouts.parts import rollout_parts
from agent_r1.training.rollouts.worker_setup import RolloutSetup, make_remote_rollout

__all__ = ["RolloutSetup", "make_remote_rollout", "rollout_parts"]
