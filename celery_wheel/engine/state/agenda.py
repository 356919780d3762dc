"""The instants at which ingest reads schedules again: those that are due, and those whose message could not be made.

A schedule queued behind a run waits for its end, an item of the inbox. A failed one is tried again after 1 s, 2 s, …,
every minute, until it is made, changed or deleted. Memory only: after a takeover all are read and tried at once; the
store has since when a schedule fails.
"""

from __future__ import annotations

import random

from celery_wheel.engine.pool import GRID_S
from celery_wheel.store.schedule_model import Schedule
from celery_wheel.timing import Backoff

#: Between two reads at most, in monotonic time: due time may step, and a machine may be suspended. A round that comes
#: up to EARLY_MS before reads too: the pool's grid ends a wait so early, and the round would be in vain.
LOOK_MS = 1_500
EARLY_MS = round(GRID_S * 1_000)
NEVER = 2**62

#: Moved schedules that a holder remembers.
MOST_LEFT = 10_000


class Agenda:
    """Used by ingest; other jobs only call ``wait_ms``."""

    def __init__(self) -> None:
        self.waiting = 0  #: schedules that the last read found and that had to wait; the next read has room for them
        self.herd_ms: int | None = None  #: schedules up to this instant are made ahead (see ``materialise``)
        self.herd_look_ms = 0  #: monotonic: the next search for a herd
        self.herd_waiting = 0  #: as ``waiting``, for a herd
        self._left = dict[int, int]()  #: schedules that have moved to other shards, with their revisions
        self._at_ms = 0  #: due time
        self._until_ms = 0  #: monotonic

    def is_time(self, now_ms: int, monotonic_ms: int) -> bool:
        return self.wait_ms(now_ms, monotonic_ms + EARLY_MS) == 0

    def wait_ms(self, now_ms: int, monotonic_ms: int) -> int:
        return max(0, min(self._at_ms - now_ms, self._until_ms - monotonic_ms))

    def read(self, at_ms: int | None, monotonic_ms: int, waiting: int) -> None:
        """Note that everything due was made; the next schedule is ready at ``at_ms``, of ``waiting`` that wait."""
        self._at_ms = NEVER if at_ms is None else at_ms
        self._until_ms = monotonic_ms + LOOK_MS
        self.waiting = waiting

    def may_leave(self, schedule: Schedule) -> bool:
        """Whether a schedule may move to another shard. One that has come back without a change stays: schedulers with
        different code disagree about its group, and would hand it to each other for ever."""
        return self._left.get(schedule.id) != schedule.revision

    def has_left(self, schedule: Schedule) -> None:
        self._left.pop(schedule.id, None)
        self._left[schedule.id] = schedule.revision
        if len(self._left) > MOST_LEFT:
            del self._left[next(iter(self._left))]

    def reopen(self) -> None:
        """Read again in the next round: a schedule has changed, or a run is over."""
        self._at_ms = 0


#: The waits after an error of the project's own code; it may need the project's database, or the next deployment.
#: Where the broker or the result backend did not answer, the longest is 2 s, as for every other activity.
FIRST_S, MOST_S = 1.0, 60.0


class FailingSchedules:
    """The schedules of one shard that fail. ``rng`` shortens each wait, so that very many do not come together."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._tries: dict[int, tuple[int, bool, Backoff, int]] = {}  #: by id: revision, outage, waits, monotonic ms

    def __len__(self) -> int:
        return len(self._tries)

    def wait_ms(self, schedule: Schedule, monotonic_ms: int) -> int:
        """Return the time until a schedule is to be tried again; 0 where it does not fail, or was changed."""
        found = self._tries.get(schedule.id)
        return 0 if found is None or found[0] != schedule.revision else max(0, found[3] - monotonic_ms)

    def failed(self, schedule: Schedule, monotonic_ms: int, *, outage: bool) -> int:
        """Note a failure; returns the time to wait."""
        found = self._tries.get(schedule.id)
        if found is not None and found[:2] == (schedule.revision, outage):
            backoff = found[2]
        else:
            backoff = Backoff(FIRST_S, 2.0 if outage else MOST_S, self._rng)
        wait_ms = round(backoff.failed() * 1_000)
        self._tries[schedule.id] = schedule.revision, outage, backoff, monotonic_ms + wait_ms
        return wait_ms

    def forget(self, schedule_id: int) -> None:
        """A message was made, or the schedule has stopped, or was changed or deleted."""
        self._tries.pop(schedule_id, None)
