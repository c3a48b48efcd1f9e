"""Several data sources in fixed shares, whatever their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent_r1.data.sampler import TaskSampler
from agent_r1.errors import ConfigError
from agent_r1.seeds import mix_seed
from agent_r1.types import Task


class MixingSampler(TaskSampler):
    """A `TaskSampler` per data source, interleaved so that any stretch of the sequence has the shares, up to one task
    per source. Each source has epochs of its own: a small one with a large share comes again sooner.

    With shares a: 3, b: 1 the sequence is a a b a | a a b a | ...
    """

    def __init__(self, tasks: Sequence[Task], *, batch_size: int, seed: int, shares: Mapping[str, float]) -> None:
        super().__init__(tasks, batch_size=batch_size, seed=seed)
        sources: dict[str, list[Task]] = {}
        for task in tasks:
            sources.setdefault(task.data_source, []).append(task)
        _refuse_wrong_shares(shares, sources)
        used = [name for name in sorted(sources) if shares[name] > 0]
        total = sum(shares[name] for name in used)
        self._shares = [shares[name] / total for name in used]
        self._samplers = [
            TaskSampler(sources[name], batch_size=batch_size, seed=mix_seed(seed, number))
            for number, name in enumerate(used)
        ]
        self._counts = [0] * len(used)
        self._places: list[tuple[int, int]] = []

    def at(self, position: int) -> Task:
        """The task at a position: the next of the source that is furthest behind its share there."""
        source, place = self._place(position)
        return self._samplers[source].at(place)

    def extra(self, number: int, round_number: int, count: int) -> list[Task]:
        """Further tasks for batch `number`, in the same shares."""
        start = number * self._batch_size
        tasks = [sampler.extra(number, round_number, count) for sampler in self._samplers]
        return [tasks[self._place(start + index)[0]][index] for index in range(count)]

    def _place(self, position: int) -> tuple[int, int]:
        """The source of a position, and which of the source's tasks it is."""
        while len(self._places) <= position:
            number = len(self._places) + 1
            behind = [share * number - count for share, count in zip(self._shares, self._counts, strict=True)]
            source = max(range(len(behind)), key=lambda index: round(behind[index], 9))
            self._places.append((source, self._counts[source]))
            self._counts[source] += 1
        return self._places[position]


def _refuse_wrong_shares(shares: Mapping[str, float], sources: Mapping[str, Sequence[Task]]) -> None:
    counts = ", ".join(f"{name} ({len(tasks)} rows)" for name, tasks in sorted(sources.items()))
    unknown = [name for name in shares if name not in sources]
    if unknown:
        raise ConfigError(
            f"data.shares names {', '.join(unknown)}, which no training row has as its data_source; there are {counts}"
        )
    missing = [name for name in sources if name not in shares]
    if missing:
        raise ConfigError(
            f"data.shares says nothing about {', '.join(missing)}; the training rows have {counts}. Name every data "
            "source, with 0 for one that is to be left out"
        )
    if not any(value > 0 for value in shares.values()):
        raise ConfigError("data.shares is 0 for every data source: no task is left to train on")
