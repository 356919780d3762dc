"""Bulk loads of a model store, as ``celery_wheel.store.sql.loads`` has them: each call is one transaction.

``fenced`` off is the writer that does not look whether its load is still open.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from celery_wheel.errors import LoadEnded
from celery_wheel.store.model import ABORTED, COMMITTED, DONE, OPEN, BulkLoadChunk


@dataclass
class ModelLoad:
    """A load with its parts by number: the attempt that may write each, and the chunks by slice and shard."""

    state: str = OPEN
    run: int = 1
    attempts: dict[int, int] = field(default_factory=dict)
    parts: dict[int, dict[tuple[int, int], BulkLoadChunk]] = field(default_factory=dict)


class ModelLoads:
    fenced = True

    def __init__(self) -> None:
        self.loads: dict[str, ModelLoad] = {}
        self._ids = itertools.count(1)
        self._attempts = itertools.count(1)

    def begin(self, name: str) -> int | None:
        """Return the run; None for a committed load."""
        load = self.loads.setdefault(name, ModelLoad(run=0))
        if load.state in (COMMITTED, DONE):
            return None
        load.state, load.run = OPEN, load.run + 1
        return load.run

    def claim(self, name: str, run: int, part: int) -> int:
        load = self._open(name, run)
        load.attempts[part] = next(self._attempts)
        return load.attempts[part]

    def put(self, name: str, run: int, part: int, attempt: int, number: int, chunks: Mapping[int, bytes]) -> None:
        load = self._open(name, run)
        if self.fenced and load.attempts.get(part) != attempt:
            raise LoadEnded(f"part {part} was taken over")
        own = load.parts.setdefault(part, {})
        for place in [place for place in own if place[0] == number]:
            del own[place]
        for shard, payload in chunks.items():
            own[number, shard] = BulkLoadChunk(next(self._ids), 1, payload)

    def commit(self, name: str, run: int, attempts: Mapping[int, int]) -> None:
        load = self._open(name, run)
        for part in [part for part in load.parts if part not in attempts]:
            del load.parts[part]
        if any(load.attempts.get(part) != attempt for part, attempt in attempts.items()):
            raise LoadEnded(f"a part of {name} was taken over")
        load.state = COMMITTED

    def abort(self, name: str, run: int) -> None:
        load = self.loads[name]
        if (load.state, load.run) == (OPEN, run):
            load.state = ABORTED
            load.parts.clear()

    def _open(self, name: str, run: int) -> ModelLoad:
        load = self.loads[name]
        if self.fenced and (load.state, load.run) != (OPEN, run):
            raise LoadEnded(f"{name} is {load.state} in run {load.run}, not {run}")
        return load

    def read(self, shard: int, max_rows: int) -> list[BulkLoadChunk]:
        committed = [load for load in self.loads.values() if load.state == COMMITTED]
        chunks = [chunk for load in committed for chunk in self._chunks(load, shard)]
        upto = list(itertools.accumulate(chunk.rows for chunk in chunks))
        return [chunk for n, chunk in enumerate(chunks) if n == 0 or upto[n] <= max_rows]

    def _chunks(self, load: ModelLoad, shard: int) -> Sequence[BulkLoadChunk]:
        return sorted(one for part in load.parts.values() for (_, of), one in part.items() if of == shard)

    def accept(self, ids: Collection[int]) -> None:
        for load in self.loads.values():
            for part in load.parts.values():
                for place in [place for place, one in part.items() if one.id in ids]:
                    del part[place]

    def expire(self) -> None:
        for load in self.loads.values():
            if load.state == COMMITTED and not any(load.parts.values()):
                load.state = DONE
