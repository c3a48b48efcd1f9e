"""Several processes that train one policy: ranks, and (in `learner`) the learner whose models are sharded over them.

Importing this package imports nothing of `torch.distributed`; `open_ranks` does, where there are several processes.
"""

from agent_r1.learner.sharded.peers import ONE_PROCESS, Peers
from agent_r1.learner.sharded.ranks import Ranks, alike, open_ranks, refuse_ranks

__all__ = ["ONE_PROCESS", "Peers", "Ranks", "alike", "open_ranks", "refuse_ranks"]
