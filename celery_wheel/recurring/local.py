"""Wall-clock times of a zone as instants, with a rule for times that do not exist or occur twice.

::

    2013-03-10 02:30  America/New_York    does not exist: a gap    shift: 03:30 EDT, moved by the length of the gap
                                                                   skip:  no instant
    2013-11-03 01:30  America/New_York    occurs twice: a fold     first: EDT | second: EST | both

``next_instant`` steps through the occurrences of a spec in the order of their instants, which in gaps and folds is not
the order of the wall clock. With "shift", the instant that two wall-clock times share occurs once. A WallClock has the
offsets of a zone as segments, since Python's zones do not list their changes. A segment ends where the offset changes,
or 32 to 64 days ahead, where the search ends. The zone is asked every four days, and a change between two answers is
found by bisection: since 1970 no zone has two changes within less than seven days. One answer costs about 1 µs, and the
answers of 8,192 blocks of 32 days are cached.

Source: PEP 495, whose ``fold`` gives both candidates in a gap as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery_wheel.recurring.checks import check_text, refuse
from celery_wheel.values.instants import utc

Gap = Literal["shift", "skip"]
Fold = Literal["first", "second", "both"]
GAPS: tuple[Gap, ...] = ("shift", "skip")
FOLDS: tuple[Fold, ...] = ("first", "second", "both")

_OFFSET = re.compile(r"([+-])(\d\d):([0-5]\d)").fullmatch
#: Longer than any gap or fold: 24 hours, where a zone crosses the date line.
_NEAR_MS = 26 * 3_600_000


class Resolved(NamedTuple):
    """The two candidates of a wall-clock time, aware. ``first`` and ``second`` are equal where ``kind`` is "only"."""

    kind: Literal["only", "gap", "fold"]
    first: datetime  #: in a gap the later one: the offset before the gap is in force longer
    second: datetime


def zone_of(name: str) -> tzinfo | None:
    """Return the zone of an IANA name, or of an offset like ``+02:00``; None where there is none."""
    if offset := _OFFSET(name):
        sign, hours, minutes = offset.groups()
        ahead = timedelta(hours=int(hours), minutes=int(minutes))
        return timezone(-ahead if sign == "-" else ahead) if ahead < timedelta(hours=24) else None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, RecursionError):
        return None  # ValueError: the name is a path; OSError: a folder; RecursionError: hundreds of folders


def zone_name(zone: tzinfo | None) -> str | None:
    """Return a zone's name for a Recurrence; None where it has none, like the local zone of an unnamed machine."""
    for attribute in ("key", "zone"):
        name = getattr(zone, attribute, None)
        if isinstance(name, str) and zone_of(name) is not None:
            return name
    return "UTC" if zone is UTC or str(zone) == "UTC" else None


def check_zone(field: str, value: Any) -> str:
    """Return a zone as the text of a Recurrence. Raises RecurrenceError."""
    name = zone_name(value) if isinstance(value, tzinfo) else check_text(field, value, "Europe/Paris")
    if isinstance(value, timezone) and name is None:
        name = str(timezone(value.utcoffset(None))).removeprefix("UTC")
    if name is None or zone_of(name) is None:
        refuse(field, "a time zone, like Europe/Paris or +02:00", value)
    return name


def resolve(wall: datetime, zone: tzinfo) -> Resolved:
    """Return the instants of a naive wall-clock time in a zone."""
    first, second = (wall.replace(tzinfo=zone, fold=n) for n in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return Resolved("only", first, second)
    exists = first.astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) == wall
    return Resolved("fold" if exists else "gap", first, second)


def next_instant(
    next_local: Callable[[int], int | None], clock: WallClock, after_ms: int, gap: Gap, fold: Fold
) -> int | None:
    """Return the first instant after ``after_ms`` at which a wall-clock time of the spec occurs.

    Args:
        next_local: the first wall-clock time strictly after another, both in milliseconds as if the zone were UTC.

    Between two changes of the offset the order of the wall clock is that of the instants. Each step looks at one such
    segment: at its own wall-clock times, and at those of the gap with which it began.
    """
    while True:
        segment = clock.segment(after_ms + 1)
        local, found = _own(next_local, segment, after_ms, fold)
        if gap == "shift" and after_ms + 1 < segment.start_ms + segment.gap_ms:
            moved = next_local(max(after_ms, segment.start_ms - 1) + segment.before_ms)
            if moved is not None and moved < segment.start_ms + segment.offset_ms:
                moved -= segment.before_ms
                found = moved if found is None else min(found, moved)
        if found is not None:
            return found
        if segment.end_ms <= after_ms + _NEAR_MS + 1:
            after_ms = segment.end_ms - 1
        elif local is None:
            return None
        else:  # Nothing occurs before that wall-clock time, in whatever offset: skip the segments between.
            after_ms = max(segment.end_ms - _NEAR_MS, local - MAX_OFFSET_MS) - 1


def _own(
    next_local: Callable[[int], int | None], segment: Segment, after_ms: int, fold: Fold
) -> tuple[int | None, int | None]:
    """Return the spec's next wall-clock time, and its instant where that lies in this segment by the rule for folds."""
    after_local, end_ms = after_ms + segment.offset_ms, segment.end_ms
    if fold == "first" and segment.gap_ms < 0:
        after_local = max(after_local, segment.start_ms + segment.before_ms - 1)
    if fold == "second" and segment.after_ms < segment.offset_ms:
        end_ms -= segment.offset_ms - segment.after_ms
    local = next_local(after_local)
    if local is None or local - segment.offset_ms >= end_ms:
        return local, None
    return local, local - segment.offset_ms


#: More than the offset of any zone since 1970: -12 to +14 hours.
MAX_OFFSET_MS = 16 * 3_600_000
_BLOCK_MS = 32 * 86_400_000
_PROBE_S = 4 * 86_400


class Segment(NamedTuple):
    """A time with one offset. ``before_ms`` and ``after_ms`` are the offsets around it, its own where none is known."""

    start_ms: int
    end_ms: int
    before_ms: int
    offset_ms: int
    after_ms: int

    @property
    def gap_ms(self) -> int:
        """The length of the gap with which the segment begins; negative where it begins with a fold."""
        return self.offset_ms - self.before_ms


class WallClock:
    """The wall clock of a zone; ``wall_clock`` makes one for each zone."""

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone
        self._last = (0, 0, Segment(0, 0, 0, 0, 0))

    def segment(self, at_ms: int) -> Segment:
        low, high, segment = self._last
        if low <= at_ms < high:
            return segment
        block = at_ms // _BLOCK_MS
        offset_ms, changes = _block(self.zone, block - 1)
        changes = (*changes, *_block(self.zone, block)[1], *_block(self.zone, block + 1)[1])
        before_ms, start_ms, end_ms, after_ms = offset_ms, -(1 << 62), (block + 2) * _BLOCK_MS, None
        for change_ms, new_ms in changes:
            if change_ms > at_ms:
                end_ms, after_ms = change_ms, new_ms
                break
            before_ms, offset_ms, start_ms = offset_ms, new_ms, change_ms
        segment = Segment(start_ms, end_ms, before_ms, offset_ms, offset_ms if after_ms is None else after_ms)
        self._last = (max(start_ms, block * _BLOCK_MS), min(end_ms, (block + 1) * _BLOCK_MS), segment)
        return segment

    def local(self, at_ms: int) -> int:
        """Return what the clock shows, in milliseconds as if the zone were UTC."""
        return at_ms + self.segment(at_ms).offset_ms

    def not_before(self, at_ms: int, local_ms: int) -> int:
        """Return an instant after ``at_ms``, not after the first at which the clock shows ``local_ms`` or later.

        It is the exact instant where that is near and the offset does not change before it.
        """
        segment, far_ms = self.segment(at_ms), local_ms - MAX_OFFSET_MS
        if segment.end_ms <= at_ms + 2 * MAX_OFFSET_MS or far_ms <= at_ms:
            return max(at_ms + 1, min(segment.end_ms, local_ms - segment.offset_ms))
        return max(far_ms, min(segment.end_ms, local_ms - segment.offset_ms))


@lru_cache(maxsize=1_024)
def wall_clock(zone: tzinfo) -> WallClock:
    return WallClock(zone)


@lru_cache(maxsize=8_192)
def _block(zone: tzinfo, block: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return the offset at the start of a block, and each change in it with the new offset, all in milliseconds."""
    start_s = block * _BLOCK_MS // 1_000
    first_s = before_s = _offset_s(zone, start_s)
    changes = []
    for at_s in range(start_s, start_s + _BLOCK_MS // 1_000, _PROBE_S):
        low, high = at_s, at_s + _PROBE_S
        end_s = _offset_s(zone, high)
        if end_s != before_s:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset_s(zone, middle) == before_s else (low, middle)
            changes.append((high * 1_000, end_s * 1_000))
            before_s = end_s
    return first_s * 1_000, tuple(changes)


def _offset_s(zone: tzinfo, at_s: int) -> int:
    offset = utc(at_s * 1_000).astimezone(zone).utcoffset()
    return int((offset or timedelta()).total_seconds())
