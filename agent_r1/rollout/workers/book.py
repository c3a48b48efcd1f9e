"""`WorkBook`: which rollout waits, which worker has it, and what becomes of it when the worker is lost.

Every rollout that is added is finished once, given up once or withdrawn once, whatever workers are lost. A worker never
has more rollouts than its share.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRollouts:
    """The rollouts of a lost worker."""

    requeued: tuple[int, ...]
    """Rollouts that wait for another worker."""
    given_up: tuple[int, ...]
    """Rollouts that were lost too often."""


class WorkBook:
    """Rollouts and workers by their numbers.

    book = WorkBook(share=2, max_losses=3)
    book.add_worker(0)
    book.add(7)
    book.assign()      # [(0, 7)]: worker 0 is to start rollout 7
    book.lose(0)       # LostRollouts(requeued=(7,), given_up=()): it waits for another worker
    book.finish(0, 7)  # False: what a lost worker still sends does not count
    """

    def __init__(self, *, share: int, max_losses: int) -> None:
        self._share = share
        self._max_losses = max_losses
        self._waiting: deque[int] = deque()
        self._held: dict[int, set[int]] = {}
        self._losses: Counter[int] = Counter()

    @property
    def num_workers(self) -> int:
        """Workers that can be given work."""
        return len(self._held)

    @property
    def num_waiting(self) -> int:
        """Rollouts that no worker has."""
        return len(self._waiting)

    def held_by(self, worker: int) -> frozenset[int]:
        """The rollouts that a worker has."""
        return frozenset(self._held.get(worker, ()))

    def add_worker(self, worker: int) -> None:
        """A new worker; each one has a number of its own, also one that replaces another."""
        self._held[worker] = set()

    def add(self, rollout: int) -> None:
        """A new rollout, behind those that wait."""
        self._waiting.append(rollout)

    def assign(self) -> list[tuple[int, int]]:
        """Give waiting rollouts to the workers with the fewest; returns pairs of worker and rollout.

        A rollout that may be what kills its workers, because it was lost often, runs alone: when it kills another one,
        no other rollout is lost with it.
        """
        assigned: list[tuple[int, int]] = []
        postponed: list[int] = []
        while self._waiting:
            rollout = self._waiting.popleft()
            worker = self._worker_for(rollout)
            if worker is not None:
                self._held[worker].add(rollout)
                assigned.append((worker, rollout))
            elif self._is_suspect(rollout):
                postponed.append(rollout)
            else:
                self._waiting.appendleft(rollout)
                break
        self._waiting.extendleft(reversed(postponed))
        return assigned

    def finish(self, worker: int, rollout: int) -> bool:
        """Note that a worker has finished a rollout; False when it is not the worker's (any more)."""
        if rollout not in self._held.get(worker, ()):
            return False
        self._held[worker].remove(rollout)
        del self._losses[rollout]
        return True

    def withdraw(self, rollout: int) -> int | None:
        """Forget a rollout whose result is not needed; returns the worker that has it, if one has."""
        del self._losses[rollout]
        if rollout in self._waiting:
            self._waiting.remove(rollout)
            return None
        worker = next((worker for worker, held in self._held.items() if rollout in held), None)
        if worker is not None:
            self._held[worker].remove(rollout)
        return worker

    def lose(self, worker: int) -> LostRollouts:
        """Remove a worker. Its rollouts wait again, before all others, except those that were lost too often."""
        rollouts = sorted(self._held.pop(worker, ()))
        self._losses.update(rollouts)
        given_up = tuple(rollout for rollout in rollouts if self._losses[rollout] >= self._max_losses)
        requeued = tuple(rollout for rollout in rollouts if rollout not in given_up)
        for rollout in given_up:
            del self._losses[rollout]
        self._waiting.extendleft(reversed(requeued))
        return LostRollouts(requeued=requeued, given_up=given_up)

    def _is_suspect(self, rollout: int) -> bool:
        return 0 < self._losses[rollout] >= self._max_losses - 1

    def _worker_for(self, rollout: int) -> int | None:
        """The worker that has the fewest rollouts and may have this one too."""
        room = 1 if self._is_suspect(rollout) else self._share
        candidates = [
            worker
            for worker, held in self._held.items()
            if len(held) < room and not (self._losses and any(map(self._is_suspect, held)))
        ]
        return min(candidates, key=lambda worker: (len(self._held[worker]), worker), default=None)
