"""Power cuts of a recorded run: the store's files are made anew as they may be after a cut at any of its writes.

::

    python -m tests.faults points --points 10000 [--seed 7] [--seconds 30] [--durability memory] [--deaf=-wal]
    python -m tests.faults points --store postgresql --points 2000 [--fsync off] [--deaf pg_wal/]

    log of writes ─► Disk ─► files of a cut at a random record ─► the store's check, tasks, outcomes, schedules
    broker and ledger ─► promises up to that record ──────────────┴─► each has to be there

A point costs some hundredths of a second on SQLite and half a second on PostgreSQL, so a recorded run is cut thousands
of times. ``deaf`` plants a missing sync: those of paths with this text are left out of the log.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.contents import Damaged, Found, Recover
from tests.faults.cuts import StackOfCuts
from tests.faults.power import Disk, Event
from tests.faults.witness import Promise, Witness
from tests.kit.patience import wait_until


@dataclass(frozen=True, slots=True)
class Recording:
    """A run: the files at its begin, the writes and syncs since, and the promises, the oldest first."""

    folder: Path
    base: Mapping[str, bytes]
    events: Sequence[Event]
    promises: Sequence[Promise]


@dataclass(slots=True)
class PointsVerdict:
    points: int = 0
    with_unsynced: int = 0  #: points at which something was not synced
    checks: Counter[str] = field(default_factory=Counter)  #: kind → promises that were compared
    broken: Counter[str] = field(default_factory=Counter)  #: kind → points at which such a promise was broken
    damaged: int = 0
    first: str = ""  #: the first finding

    @property
    def is_clean(self) -> bool:
        return not self.broken and not self.damaged

    def __str__(self) -> str:
        compared = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.checks.items()))
        broken = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.broken.items()))
        return (
            f"{self.points:,} points, {self.with_unsynced:,} of them with writes that were not synced; compared: "
            f"{compared or 'nothing'}; points with a broken promise: {broken or 'none'}; {self.damaged} damaged"
            + (f"; first: {self.first}" if self.first else "")
        )


def record(stack: StackOfCuts, seconds: float) -> Recording:
    """Run schedulers under load for so long, without a cut."""
    with Witness(stack.server.port, stack.folder / "commands") as witness, stack:
        stack.wait_for_messages()
        wait_until(lambda: b'"said": "done"' in stack.ledger.read_bytes(), "a cancel is done", 60)
        time.sleep(seconds)
        stack.wait_for_messages()  # so that writes follow the promises
        stack.kill()
        answers = (json.loads(line) for line in stack.ledger.read_text().splitlines())
        done = [Promise(one["at_us"], "cancelled", one["answered"]) for one in answers if one.get("said") == "done"]
        events = list(stack.log.events())
        return Recording(stack.place, stack.base, events, sorted([*witness.promises(), *done]))


def cut(
    recording: Recording,
    points: int,
    rng: random.Random,
    recover: Recover,
    deaf: str = "",
) -> PointsVerdict:
    """Cut the power at so many records of a run, random ones and the last.

    Args:
        recover: reads the store after a cut, or raises Damaged.
        deaf: syncs of paths with this text are left out.
    """
    verdict, disk, given = PointsVerdict(), Disk(recording.base), Given()
    last = len(recording.events) - 1
    chosen = Counter([last, *rng.choices(range(last), k=points - 1)])
    waiting = iter(recording.promises)
    promise = next(waiting, None)
    for number, event in enumerate(recording.events):
        while promise is not None and promise.us < event.us:
            given.see(promise)
            promise = next(waiting, None)
        if not (deaf and event.kind in "be" and deaf in event.path):
            disk.see(event)
        for _ in range(chosen[number]):
            files = disk.cut(rng)
            verdict.points += 1
            verdict.with_unsynced += bool(disk.unsynced)
            try:
                found = recover(recording.folder, files)
            except Damaged as error:
                verdict.damaged += 1
                verdict.first = verdict.first or f"record {number}: {error}"
            else:
                given.compare(found, verdict, number)
    return verdict


@dataclass(slots=True)
class Given:
    """The promises so far."""

    accepted: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    made: dict[str, int] = field(default_factory=dict)  #: schedule → its last instant with a message

    def see(self, promise: Promise) -> None:
        if promise.kind == "made":
            self.made[promise.name] = max(promise.instant_ms, self.made.get(promise.name, 0))
        else:
            (self.accepted if promise.kind == "accepted" else self.cancelled).add(promise.name)

    def compare(self, found: Found, verdict: PointsVerdict, number: int) -> None:
        again = {name for name, at in self.made.items() if (found.next_ms.get(name) or at) <= at}
        missing = {
            "accepted": self.accepted - found.tasks,
            "cancelled": self.cancelled - found.cancelled,
            "made": again,
        }
        for kind, names in missing.items():
            verdict.checks[kind] += len(getattr(self, kind))
            if names:
                verdict.broken[kind] += 1
                verdict.first = verdict.first or f"record {number}: {kind} {sorted(names)[:3]}"
