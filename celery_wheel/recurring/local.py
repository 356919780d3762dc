"""Wall-clock times of a zone as instants, with a rule for times that do not exist or occur twice.

::

    2013-03-10 02:30  America/New_York    does not exist: a gap    shift: 03:30 EDT, moved by the length of the gap
                                                                   skip:  no instant
    2013-11-03 01:30  America/New_York    occurs twice: a fold     first: EDT | second: EST | both
    any other time                        exactly one instant

``resolve`` answers for a single wall-clock time; the data pipeline reads its rows with it. ``next_instant`` steps
through the occurrences of a spec of wall-clock times in the order of their instants, which in gaps and folds is
not the order of the wall clock. With "shift", the instant that two wall-clock times share occurs once.

Source: PEP 495, whose ``fold`` gives both candidates in a gap as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery_wheel.recurring.wall_clock import MAX_OFFSET_MS, Segment, WallClock

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
    except (ZoneInfoNotFoundError, ValueError, OSError):  # ValueError: the name is a path; OSError: a folder
        return None


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
