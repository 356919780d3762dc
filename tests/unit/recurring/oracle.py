"""The meaning of the definitions, found by walking: no part of celery_wheel is used here.

::

    walk(zone, around)      each minute of UTC in 78 hours, and what a clock in the zone shows (zoneinfo)
      .instants(local)      all instants at which the clock shows a time: in a fold two, in a gap none
      .shifted(local)       the instant of a time in a gap: by the offset that was in force before the gap

    changes(zone)           each instant of 2000 to 2040 at which the offset changes, found every six hours of UTC

Since 2000 all offsets are multiples of 15 minutes, so a walk by minutes meets each change.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
HALF = timedelta(hours=39)
#: The part in the middle whose times, shifted by up to 24 hours, lie in the walk as well.
COMPARED = timedelta(hours=13)
FIRST, LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)


def to_ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


class Walk:
    """The minutes around an instant."""

    def __init__(self, zone: str, around: datetime) -> None:
        self.start, self.end = around - COMPARED, around + COMPARED
        self.by_local: dict[datetime, list[datetime]] = {}
        self.moved: dict[datetime, datetime] = {}
        tz, at = ZoneInfo(zone), around - HALF
        before: datetime | None = None
        while at <= around + HALF:
            aware = at.astimezone(tz)
            local = aware.replace(tzinfo=None, fold=0)
            if at > around - COMPARED:
                assert aware.fold == (local in self.by_local), "the datetime's own fold marks the second time"
            self.by_local.setdefault(local, []).append(at)
            if before is not None and local > before + MINUTE:
                missing, instant = before + MINUTE, at
                while missing < local:
                    self.moved[missing] = instant
                    missing, instant = missing + MINUTE, instant + MINUTE
            before, at = local, at + MINUTE
        self.locals = sorted({*self.by_local, *self.moved})

    def occurrences(self, locals_: Iterable[datetime], gap: str, fold: str) -> list[int]:
        """Return the instants of wall-clock times in the middle part, by the rules for gap and fold."""
        found: set[datetime] = set()
        for local in locals_:
            second, minute = timedelta(seconds=local.second), local.replace(second=0)
            if instants := self.by_local.get(minute):
                chosen = {"first": instants[:1], "second": instants[-1:], "both": instants}[fold]
                found.update(at + second for at in chosen)
            elif gap == "shift" and minute in self.moved:
                found.add(self.moved[minute] + second)
        return [to_ms(at) for at in sorted(found) if self.start <= at <= self.end]


@lru_cache(maxsize=100)
def walk(zone: str, around: datetime) -> Walk:
    return Walk(zone, around)


@lru_cache(maxsize=4)
def changes(zone: str) -> tuple[datetime, ...]:
    tz, step = ZoneInfo(zone), timedelta(hours=6)
    found, at = [], FIRST
    offset = at.astimezone(tz).utcoffset()
    while at < LAST:
        at += step
        if (new := at.astimezone(tz).utcoffset()) != offset:
            found.append(at)
            offset = new
    return tuple(found)
