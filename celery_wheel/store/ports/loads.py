"""Bulk loads: very many messages come into the store all at once, or not at all, however many processes write them.

::

    begin ─► load 7, run 3, open                                                              one process
      part 0   claim ─► attempt ─► put ─ put ─ … ─ finish                                     any number of processes
      part 1   claim ─► attempt ─► put ─ put ─ … ─ finish       each a transaction of its own, each behind the fence
    commit ─► committed ─► holders take it in ─► done           or abort ─► aborted, and nothing of it is left

Promises: ``abort``, a later attempt at a part and a later run of the load each keep out whoever wrote before: its next
call raises LoadOver and writes nothing. ``commit`` takes exactly the parts that it is told of.

To resume: chunks that are there from an earlier run or attempt are kept where the digest of their slice is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from celery_wheel.store.model import COMMITTED, DONE


@dataclass(slots=True, frozen=True)
class Load:
    """A load as it stands. ``rows`` are its messages, once it is committed."""

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
class Claim:
    """The right to write a part of a load, until somebody else claims it."""

    load: int
    run: int
    part: int
    attempt: str


class Chunk(NamedTuple):
    """Messages of one shard, packed, of the slice ``number`` of a part's rows."""

    number: int
    shard: int
    rows: int
    digest: str
    payload: bytes


class Slice(NamedTuple):
    """What is there of a slice: of an earlier attempt."""

    digest: str
    rows: int


class Written(NamedTuple):
    """What a part's last attempt says it wrote."""

    attempt: str
    rows: int


class Listed(NamedTuple):
    """A load, and what of it is in the store and was not taken in by a holder."""

    load: Load
    chunks: int
    rows: int


class BulkLoads(Protocol):
    """Every method raises StoreError where the store fails; each may be repeated when its answer was lost."""

    def begin(self, name: str, now_ms: int) -> Load:
        """Open the load of that name, anew or once more; a load that is committed is returned as it is."""

    # -- a part, written by one process -----------------------------------------------------------------

    def claim(self, load_id: int, run: int, part: int) -> tuple[Claim, dict[int, Slice]]:
        """Take the part; returns the right to write it, and the slices that are there, by number. Raises LoadOver."""

    def put(self, taken: Claim, chunks: Sequence[Chunk]) -> None:
        """Add whole slices, each with all of its chunks; earlier chunks of their numbers go. Raises LoadOver."""

    def finish(self, taken: Claim, slices: int) -> None:
        """The part has so many slices; what an earlier attempt had beyond them goes. Raises LoadOver."""

    # -- the end ----------------------------------------------------------------------------------------

    def commit(self, load_id: int, run: int, parts: Mapping[int, Written], now_ms: int) -> Load:
        """From here on the holders take in exactly ``parts``. Raises LoadOver, and nothing is loaded then."""

    def abort(self, load_id: int, now_ms: int, run: int | None = None) -> bool:
        """Nothing of an open load is left; False where it was not open any more.

        Args:
            run: only in this run; None: whoever writes it.
        """

    # -- reading ----------------------------------------------------------------------------------------

    def listed(self, limit: int = 100) -> list[Listed]:
        """The latest loads, newest first. A load that is open and was begun long ago was left behind: resume it or
        abort it."""

    def of_name(self, name: str) -> Load | None: ...

    def unfinished(self) -> list[Load]:
        """Loads that are open, or not all taken in."""

    def count_waiting(self) -> int:
        """Messages of committed loads that no holder has taken in."""
