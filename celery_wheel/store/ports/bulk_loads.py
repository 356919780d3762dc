"""The port of bulk loads: any number of processes write messages, and all are accepted at once, or none.

::

    begin ─► load 7, run 3, open                       one process; or ``join``, by each process of the run
      part 0   claim ─► attempt ─► put ─ put ─ … ─ finish                                     any number of processes
      part 1   claim ─► attempt ─► put ─ put ─ … ─ finish       each a transaction of its own, each behind the fence
    commit ─► committed ─► holders accept it ─► done            or abort ─► aborted, and its chunks are removed

Promises: ``abort``, a later attempt at a part and a later run of the load each fence earlier writers: their next call
raises LoadEnded and writes nothing. ``commit`` commits exactly the parts in its argument.

A resumed load keeps the chunks of an earlier run or attempt where the digest of their slice is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from celery_wheel.store.model import COMMITTED, DONE


@dataclass(slots=True, frozen=True)
class BulkLoad:
    """The state of a load. ``rows`` counts its messages, once it is committed."""

    id: int
    name: str
    state: str
    run: int
    created_ms: int
    begun_ms: int
    ended_ms: int | None
    rows: int

    @property
    def is_loaded(self) -> bool:
        return self.state in (COMMITTED, DONE)


@dataclass(slots=True, frozen=True)
class PartClaim:
    """The right to write a part of a load, until another attempt claims the part."""

    load: int
    run: int
    part: int
    attempt: str


class PartChunk(NamedTuple):
    """The messages of one shard in slice ``number`` of a part's rows, packed."""

    number: int
    shard: int
    rows: int
    digest: str
    payload: bytes


class WrittenSlice(NamedTuple):
    """A slice that an earlier attempt wrote."""

    digest: str
    rows: int


class PartResult(NamedTuple):
    """The rows that a part's last attempt reports to have written."""

    attempt: str
    rows: int


class BulkLoadSummary(NamedTuple):
    """A load, and those of its chunks that no holder has accepted."""

    load: BulkLoad
    chunks: int
    rows: int


class BulkLoads(Protocol):
    """Every method raises StoreError where the store fails; a caller may repeat each when its answer was lost."""

    def begin(self, name: str, now_ms: int) -> BulkLoad:
        """Open the load of that name, new or resumed; a committed load is returned as it is."""

    def join(self, name: str, run: int, now_ms: int) -> BulkLoad:
        """Open the load in this run, together with the other processes of the run, or return it where it is committed.

        Raises LoadEnded where a later run has begun, or this run was aborted.
        """

    # -- a part, written by one process -----------------------------------------------------------------

    def claim(self, load_id: int, run: int, part: int) -> tuple[PartClaim, dict[int, WrittenSlice]]:
        """Claim the part; returns the right to write it, and its existing slices by number. Raises LoadEnded."""

    def put(self, claim: PartClaim, chunks: Sequence[PartChunk]) -> None:
        """Write whole slices, each with all its chunks, in place of earlier ones of their numbers. Raises LoadEnded."""

    def finish(self, claim: PartClaim, slices: int) -> None:
        """Keep the first ``slices`` slices of the part and remove all later ones. Raises LoadEnded."""

    # -- the end ----------------------------------------------------------------------------------------

    def commit(self, load_id: int, run: int, parts: Mapping[int, PartResult], now_ms: int) -> BulkLoad:
        """Commit exactly ``parts``, for the holders to accept. Raises LoadEnded, and then nothing is loaded."""

    def abort(self, load_id: int, now_ms: int, run: int | None = None) -> bool:
        """Abort an open load and remove its chunks; returns False where it was not open.

        Args:
            run: abort only this run; None: any run.
        """

    def forget(self, load_ids: Sequence[int]) -> None:
        """Forget those of the loads that are done: their names may be loaded again."""

    # -- reading ----------------------------------------------------------------------------------------

    def latest(self, limit: int = 100) -> list[BulkLoadSummary]:
        """Return the latest loads, newest first. An open load that began long ago was abandoned: resume or abort it."""

    def by_name(self, name: str) -> BulkLoad | None: ...

    def by_prefix(self, prefix: str) -> list[BulkLoad]:
        """Return the loads whose names begin so, the oldest first."""

    def unfinished(self) -> list[BulkLoad]:
        """Return the loads that are open, or committed and not wholly accepted."""

    def count_pending(self) -> int:
        """Return how many messages of committed loads no holder has accepted."""
