"""The circuit breaker: when one rollout after the other fails, something is broken that no retry will mend."""

from __future__ import annotations

from collections import Counter

from agent_r1.errors import RolloutsFailingError
from agent_r1.types import Trajectory


class CircuitBreaker:
    """Counts rollouts that failed, after all their attempts, since the last one that did not.

    breaker = CircuitBreaker(limit=100)
    breaker.note(trajectory)  # raises `RolloutsFailingError` at the hundredth failure in a row
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reasons: Counter[str] = Counter()

    def note(self, trajectory: Trajectory) -> None:
        """Count one rollout, in the order they end; batches do not matter."""
        if not trajectory.is_failure:
            self._reasons.clear()
            return
        self._reasons[str(trajectory.stop_reason)] += 1
        if self._reasons.total() >= self._limit:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self._reasons.most_common())
            self._reasons.clear()
            raise RolloutsFailingError(
                f"{self._limit} rollouts in a row failed ({reasons}); the run stops here instead of going on without "
                "them. Mend what is broken and start it again; training goes on from its checkpoint. The last one, on "
                f"task '{trajectory.task_id}':\n{trajectory.error}"
            )
