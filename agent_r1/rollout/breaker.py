"""`CircuitBreaker`: stops a run in which too many rollouts in a row fail."""

from __future__ import annotations

from collections import Counter

from agent_r1.errors import RolloutsFailingError
from agent_r1.types import Trajectory


class CircuitBreaker:
    """Counts consecutive rollouts that failed in all their attempts.

    breaker = CircuitBreaker(limit=100)
    breaker.note(trajectory)  # raises `RolloutsFailingError` at the hundredth failure in a row
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reasons: Counter[str] = Counter()

    def note(self, trajectory: Trajectory) -> None:
        """Count one finished rollout; call it in the order in which rollouts end, over all batches."""
        if not trajectory.is_failure:
            self._reasons.clear()
            return
        self._reasons[str(trajectory.stop_reason)] += 1
        if self._reasons.total() >= self._limit:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self._reasons.most_common())
            self._reasons.clear()
            raise RolloutsFailingError(
                f"{self._limit} rollouts in a row failed ({reasons}), so the run stops. Fix what is broken and run "
                f"the same command again. The last failure, on task '{trajectory.task_id}':\n{trajectory.error}"
            )
