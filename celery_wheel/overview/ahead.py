"""The hours ahead with pending tasks, and the largest herds among them, however far ahead they are.

A herd is a second, or an hour that is too full to be counted by the second, with far more tasks than its neighbours: at
least ``HERD`` tasks, and ``FAR_ABOVE`` times the mean of the rest of its hour. The fullest hours and those that rise
the highest above their neighbours are searched, ``HOURS_SEARCHED`` of each: a reading is three statements of bounded
work. ``PacedCounts`` reads the more rarely the longer that takes. A load that has an equal herd in every hour has none
that this search names; ``overview`` counts the seconds of the next hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.pages import HOUR_ROWS

#: Tasks of the smallest herd.
HERD = 100
FAR_ABOVE = 5
HOURS_SEARCHED = 3


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
    fullest = sorted(full, key=lambda one: -hours[one])[:HOURS_SEARCHED]
    highest = sorted(full, key=lambda one: max(_neighbours(hours, one)) - hours[one])[:HOURS_SEARCHED]
    return sorted({*fullest, *highest})


def _neighbours(hours: Mapping[int, int], hour: int) -> tuple[int, int]:
    return hours.get(hour - HOUR_MS, 0), hours.get(hour + HOUR_MS, 0)
