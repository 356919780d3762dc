"""The offsets of a zone as segments of time, found by asking the zone for its offset. Standard library only.

::

                 before            offset                     after
    ──────────────────────┼────────────────────────┼──────────────────────►  instants (UTC)
                      start                       end

A segment ends where the offset changes, or 32 to 64 days ahead, where the search ends. The offset is asked every
four days, and a change between two answers is found by bisection. Since 1970 no zone has two changes within less than
seven days of each other; the tests compare zones with their offset at every hour of 2000 to 2040.

Zones of Python do not list their changes. One answer costs about 1 µs, and the answers of a block of 32 days are
cached: 8,192 blocks at most, in all zones together.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

#: More than the offset of any zone since 1970: -12 to +14 hours.
MAX_OFFSET_MS = 16 * 3_600_000
_BLOCK_MS = 32 * 86_400_000
_PROBE_S = 4 * 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEFORE_ALL = -(1 << 62)


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
        """Return the segment that holds an instant."""
        low, high, segment = self._last
        if low <= at_ms < high:
            return segment
        block = at_ms // _BLOCK_MS
        offset_ms, changes = _block(self.zone, block - 1)
        changes = (*changes, *_block(self.zone, block)[1], *_block(self.zone, block + 1)[1])
        before_ms, start_ms, end_ms, after_ms = offset_ms, _BEFORE_ALL, (block + 2) * _BLOCK_MS, None
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
        """Return an instant after ``at_ms`` and not after the one at which the clock first shows ``local_ms`` or later.

        It is the exact instant where that is near and the offset does not change before it.
        """
        segment, far_ms = self.segment(at_ms), local_ms - MAX_OFFSET_MS
        if segment.end_ms <= at_ms + 2 * MAX_OFFSET_MS or far_ms <= at_ms:
            return max(at_ms + 1, min(segment.end_ms, local_ms - segment.offset_ms))
        return max(far_ms, min(segment.end_ms, local_ms - segment.offset_ms))


@lru_cache(maxsize=1_024)
def wall_clock(zone: tzinfo) -> WallClock:
    """Return the clock of a zone, the same one at each call."""
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
    offset = (_EPOCH + timedelta(seconds=at_s)).astimezone(zone).utcoffset()
    return int((offset or timedelta()).total_seconds())
