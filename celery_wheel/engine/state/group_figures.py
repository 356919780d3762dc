"""The figures of a shard's groups in the holder's snapshot: the largest, those that starve, those without reports.

::

    largest      the groups with the most waiting rows; then those that are in flight only
    starving     lines of which no row was released for STARVING_MS because all slots of their groups are taken, while
                 rows of other groups go to the same queue. A line that waits for its turn, or for its group's rate,
                 does not starve: it is served as the limits say.
    unreported   groups whose last slots, UNREPORTED or more, ended by max_runtime, with no report since

The figures are made by a pass over the lines, which takes 40 ms for 100,000 of them. It holds no lock, and is made in
a hundredth of the time at most: with few lines for each snapshot, with 100,000 every four seconds. So a change of a
line costs nothing, and no index of the store has the counts.
"""

from __future__ import annotations

import heapq
from operator import attrgetter, itemgetter
from typing import Any

from celery_wheel.engine.state.groups import Group, Groups, Line, SharedQueue
from celery_wheel.store.ports.pages import LARGEST
from celery_wheel.timing import Clock

STARVING_MS = 300_000

#: Fewer may be those of one worker that was killed.
UNREPORTED = 3

#: Groups that are named; further ones are counted.
NAMED = 5

#: The next pass is made after this many times the time of the last one.
PACE = 100


class GroupFigures:
    """``read`` may be called without the lock of the state: it copies dicts, and reads single numbers."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._last: dict[str, Any] | None = None
        self._again_ms: int | None = None

    def read(self, clock: Clock) -> dict[str, Any] | None:
        """Return plain data for JSON; None where no row may have to wait."""
        now_ms = clock.monotonic_ms()
        if self._again_ms is None or now_ms >= self._again_ms:
            self._last = self._pass(now_ms) if self._groups else None
            end_ms = clock.monotonic_ms()
            self._again_ms = end_ms + PACE * (end_ms - now_ms)
        return self._last

    def _pass(self, now_ms: int) -> dict[str, Any]:
        groups, unreported = self._groups.groups(), list(self._groups.unreported.items())
        largest = heapq.nlargest(LARGEST, groups, key=attrgetter("waiting", "in_flight"))
        starving = self._starving(now_ms)
        longest = heapq.nsmallest(NAMED, starving, key=attrgetter("since_ms"))
        silent = [one for one in unreported if one[1] >= UNREPORTED]
        self._groups.seen_ms = now_ms
        return {
            "count": sum([one.waiting > 0 or one.in_flight > 0 for one in groups]),
            "waiting": sum(map(attrgetter("waiting"), groups)),
            "largest": [_plain(one) for one in largest if one.waiting or one.in_flight],
            "starving_count": len(starving),
            "starving": [_plain_line(line, now_ms) for line in longest],
            "unreported_count": len(silent),
            "unreported": heapq.nlargest(NAMED, silent, key=itemgetter(1)),
        }

    def _starving(self, now_ms: int) -> list[Line]:
        since_ms = now_ms - STARVING_MS
        found = [line for line in self._groups.lines() if line.since_ms <= since_ms]
        return [line for line in found if line.waiting and _is_full(line.group) and _passes(line.share, since_ms)]


def _is_full(group: Group) -> bool:
    limit = group.limit.concurrency
    return limit is not None and group.in_flight >= limit


def _passes(share: SharedQueue, since_ms: int) -> bool:
    return share.passed_at_ms is not None and share.passed_at_ms > since_ms


def _plain(group: Group) -> list[Any]:
    """Return name, waiting, in flight, and the numbers of the lines."""
    return [group.name, group.waiting, group.in_flight, [line.number for line in list(group.lines.values())]]


def _plain_line(line: Line, now_ms: int) -> dict[str, Any]:
    return {
        "name": line.group.name,
        "queue": line.share.queue,
        "waiting": line.waiting,
        "for_ms": now_ms - line.since_ms,
        "slots": line.group.limit.concurrency,
    }
