"""The agenda: when ingest reads the schedules that are due again. The schedules themselves are in the store only.

::

    read at 10:00:00.0, up to the look-ahead and LOOK_MS more
        due now                  made; if some are left over, the next round reads again
        due at 10:00:02.5        waits: a round at 10:00:00.5 reads again
        queued behind a run      waits: for its end, an item of the inbox
        none                     a round at 10:00:01.0 reads again, as after every LOOK_MS; and a round that comes up
                                 to EARLY_MS before: a wake costs more than the read
"""

from __future__ import annotations

#: Between two reads at most, in monotonic time: due time may step, and a machine may be suspended.
LOOK_MS = 1_000
EARLY_MS = 50
NEVER = 2**62


class Agenda:
    """Used by the ingest thread; other threads only call ``wait_ms``."""

    def __init__(self) -> None:
        self.waiting = 0  #: schedules that the last read found and that had to wait; the next read has room for them
        self.herd_ms: int | None = None  #: schedules up to this instant are made ahead (see ``recurring.herd``)
        self.herd_look_ms = 0  #: monotonic: the next search for a herd
        self.herd_waiting = 0  #: as ``waiting``, for a herd
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

    def reopen(self) -> None:
        """Read again in the next round: a schedule has changed, or a run is over."""
        self._at_ms = 0
