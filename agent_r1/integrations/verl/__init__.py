"""Agent-R1 inside verl: flows as an agent loop, estimators and losses as verl's. docs/scaling/verl.md has the commands.

    conversion   steps to verl's prompt, response, mask and log-probs
    engine       verl's servers as an engine
    recipe       a recipe that plays one episode
    loop         the agent loop `agent_r1` (imports verl)
    estimators, losses, register   our algorithms under verl's names (register imports verl)
    settings, export   a recipe as verl's configuration, rows and launch command

verl is imported only in `loop` and `register`, which verl itself loads.
"""

from agent_r1.integrations.verl.conversion import VerlSequence, check_lengths, mask_runs, sequences_of
from agent_r1.integrations.verl.engine import VerlEngine

__all__ = ["VerlEngine", "VerlSequence", "check_lengths", "mask_runs", "sequences_of"]
