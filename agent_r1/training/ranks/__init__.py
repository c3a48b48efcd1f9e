"""Training on several ranks: each rolls out its share of the groups; what cannot be shared is refused by name."""

from agent_r1.training.ranks.coordination import (
    config_of_rank,
    engine_of_rank,
    is_coordinated,
    make_ranks_collector,
)
from agent_r1.training.ranks.refusals import check_ranks
from agent_r1.training.ranks.rollout import share_rollout

__all__ = [
    "check_ranks",
    "config_of_rank",
    "engine_of_rank",
    "is_coordinated",
    "make_ranks_collector",
    "share_rollout",
]
