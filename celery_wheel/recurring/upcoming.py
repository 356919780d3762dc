"""The next occurrences of a recurrence, for people: with the days on which clocks change, and with the instants that
are left out in between.

::

    2013-11-02 01:30  EDT            occurs
    2013-11-03 01:30  EDT  clocks -1 h   occurs, on a day with a change of the offset
    2013-11-04 01:30  EST  excluded      of the spec, and left out by the calendar; or a gap of the clocks

Pure: "now" is an argument. Only left-out instants before the last occurrence are searched, LEFT_OUT of them at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC
from itertools import islice
from typing import Literal

from celery_wheel.recurring.local import zone_of
from celery_wheel.recurring.recurrence import Recurrence
from celery_wheel.recurring.wall_clock import WallClock, wall_clock

#: Most instants that are searched for left-out ones.
SEARCHED = 200
#: Most left-out instants that are returned.
LEFT_OUT = 40
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class UpcomingInstant:
    at_ms: int
    left_out: Literal["excluded", "gap"] | None  #: why it does not occur; None: it occurs
    shift_ms: int  #: by how much the clocks of the zone change on its day; 0: they do not


def upcoming(recurrence: Recurrence, at_ms: int, n: int, made: int = 0) -> list[UpcomingInstant]:
    """Return the next ``n`` occurrences after an instant, and instants that are left out before the last of them."""
    occurs = recurrence.preview(at_ms, n, made)
    left_out = _left_out(recurrence, at_ms, occurs[-1]) if occurs else {}
    clock = wall_clock(zone_of(recurrence.zone) or UTC)
    reasons = {**dict.fromkeys(occurs), **left_out}
    return [UpcomingInstant(at, reasons[at], day_shift(clock, at)) for at in sorted(reasons)]


def _left_out(recurrence: Recurrence, after_ms: int, upto_ms: int) -> dict[int, Literal["excluded", "gap"] | None]:
    if recurrence.without is None and recurrence.gap != "skip":
        return {}
    bare = replace(recurrence, without=None, gap="shift", times=None)
    reasons = ((at, recurrence.why_not(at)) for at in islice(bare.between(after_ms, upto_ms), SEARCHED))
    return dict(islice(((at, reason) for at, reason in reasons if reason is not None), LEFT_OUT))


def day_shift(clock: WallClock, at_ms: int) -> int:
    """Return by how much a zone's clocks are put forward on the day of an instant; negative where they go back."""
    segment, day = clock.segment(at_ms), clock.local(at_ms) // _DAY_MS
    if segment.gap_ms and day in _days_of(segment.start_ms, segment.before_ms, segment.offset_ms):
        return segment.gap_ms
    if day in _days_of(segment.end_ms, segment.offset_ms, segment.after_ms):
        return segment.after_ms - segment.offset_ms
    return 0


def _days_of(change_ms: int, *offsets_ms: int) -> set[int]:
    """Return the days of a change: the day on which it begins, and the day to which it leads."""
    return {(change_ms + offset_ms) // _DAY_MS for offset_ms in offsets_ms}
