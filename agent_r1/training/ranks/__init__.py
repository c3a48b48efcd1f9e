"""Training on several ranks: each rolls out its share of the groups; what cannot be shared is refused by name."""

from agent_r1.training.ranks.refusals import check_ranks
from agent_r1.training.ranks.rollout import share_rollout

__all__ = ["check_ranks", "share_rollout"]
