"""Failing schedules: those whose next message could not be made, and when each is tried again. Memory only.

::

    schedule "report"   12:00:00 ✗   12:00:01 ✗   12:00:03 ✗ … every minute ✗   12:09:41 ✓ forgotten
             "mail"     12:00:00 ✓   12:01:00 ✓   …                             its tries are its own
    a change of "report", or its deletion: forgotten, so the new definition is tried at once
    a takeover: forgotten, and tried at once; the store has since when it fails

An entry has about 200 bytes. Only the ingest thread uses it.
"""

from __future__ import annotations

import random

from celery_wheel.store.schedule_model import Schedule
from celery_wheel.timing import Backoff

#: The waits after an error of the project's own code; it may need the project's database, or the next deployment.
FIRST_S, MOST_S = 1.0, 60.0

#: The longest wait where the broker or the result backend did not answer, as for every other activity of the engine.
OUTAGE_MOST_S = 2.0


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
            backoff = Backoff(FIRST_S, OUTAGE_MOST_S if outage else MOST_S, self._rng)
        wait_ms = round(backoff.failed() * 1_000)
        self._tries[schedule.id] = schedule.revision, outage, backoff, monotonic_ms + wait_ms
        return wait_ms

    def forget(self, schedule_id: int) -> None:
        """A message was made, or the schedule has stopped, or was changed or deleted."""
        self._tries.pop(schedule_id, None)
