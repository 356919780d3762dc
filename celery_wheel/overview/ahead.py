"""The hours ahead with pending tasks, and the largest herds among them, however far ahead they are.

A herd is a second, or an hour that is too full to be counted by the second, with far more tasks than its neighbours: at
least ``HERD`` tasks, and ``FAR_ABOVE`` times the mean of the rest of its hour. The fullest hours and those that rise
the highest above their neighbours are searched by turns, up to ``HOURS_SEARCHED`` hours and ``ROWS_SEARCHED`` rows: a
reading is three statements of bounded work: half a second for a hundred million tasks on SQLite, and four seconds for
five million on a PostgreSQL whose pages are not in memory. So ``PacedCounts`` reads the more rarely the longer that
takes, and a page does not wait for it. Non-promise: a herd in an hour with fewer tasks than all these hours is not
named; ``overview`` counts the seconds of the next hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.pages import HOUR_ROWS

#: Tasks of the smallest herd.
HERD = 100
FAR_ABOVE = 5
HOURS_SEARCHED, ROWS_SEARCHED = 24, 600_000


@dataclass(frozen=True, slots=True)
class ComingHerd:
    from_ms: int
    to_ms: int
    pending: int
    tasks: tuple[str, ...]  #: the most frequent task, and the next one if there are several; none of a whole hour


@dataclass(frozen=True, slots=True)
class Ahead:
    read_ms: int
    hours: dict[int, int]  #: begin → pending tasks, from the present hour on
    herds: list[ComingHerd]  #: the largest first
    searched: bool = True  #: False: the first search for herds goes on


def read_hours(store: FullStore, now_ms: int) -> Ahead:
    return Ahead(now_ms, store.browse.hours_ahead(now_ms), [], searched=False)


def read_ahead(store: FullStore, now_ms: int) -> Ahead:
    hours = store.browse.hours_ahead(now_ms)
    searched = _searched(hours)
    fine = [one for one in searched if hours[one] <= HOUR_ROWS]
    herds = [
        ComingHerd(one.from_ms, one.from_ms + 1_000, one.pending, tuple(one.tasks))
        for one in store.browse.fullest_seconds(fine, now_ms)
        if is_far_above(one.pending, hours[one.from_ms - one.from_ms % HOUR_MS], HOUR_MS // 1_000)
    ]
    herds += [
        ComingHerd(one, one + HOUR_MS, hours[one], ())
        for one in searched
        if one not in fine and hours[one] >= FAR_ABOVE * max(_neighbours(hours, one))
    ]
    return Ahead(now_ms, hours, sorted(herds, key=lambda one: (-one.pending, one.from_ms)))


def is_far_above(pending: int, total: int, spans: int) -> bool:
    """Whether the tasks of one of so many spans are a herd among all their tasks."""
    return pending >= max(HERD, FAR_ABOVE * (total - pending) / (spans - 1))


def _searched(hours: Mapping[int, int]) -> list[int]:
    full = [one for one, pending in hours.items() if pending >= HERD]
    fullest = sorted(full, key=lambda one: -hours[one])
    highest = sorted(full, key=lambda one: max(_neighbours(hours, one)) - hours[one])
    found, rows = dict[int, None](), 0
    for one in dict.fromkeys(chain.from_iterable(zip(fullest, highest, strict=True))):
        rows += min(hours[one], HOUR_ROWS)
        if len(found) < HOURS_SEARCHED and rows <= ROWS_SEARCHED:
            found[one] = None
    return sorted(found)


def _neighbours(hours: Mapping[int, int], hour: int) -> tuple[int, int]:
    return hours.get(hour - HOUR_MS, 0), hours.get(hour + HOUR_MS, 0)
