"""The figures of groups of all shards, as the holders have them in their snapshots (``engine.state.group_figures``).

They cost no statement, whatever the number of groups: a scrape and the first page of very many groups read no line. A
group lives in one shard, but for tasks without a group and occurrences of schedules; those of several shards are added
up, as far as each shard names them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from celery_wheel.overview import HeldTasks, ShardStatus
from celery_wheel.store.ports.pages import LARGEST, LargeGroup

#: Up to so many groups, a page reads them all from the store, within ten milliseconds.
FEW = 2_000


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """The groups with waiting rows or rows in flight."""

    count: int
    waiting: int  #: rows of all groups
    largest: list[LargeGroup]  #: the group with the most waiting rows first


def group_totals(shards: Iterable[ShardStatus]) -> GroupTotals:
    count, all_waiting, waiting, in_flight = 0, 0, Counter[str](), Counter[str]()
    lines = defaultdict[str, list[tuple[int, int]]](list)
    for one in shards:
        figures = (one.snapshot or {}).get("groups")
        if figures is None:
            continue
        count += figures["count"]
        all_waiting += figures["waiting"]
        for name, its_waiting, its_in_flight, numbers in figures["largest"]:
            waiting[name] += its_waiting
            in_flight[name] += its_in_flight
            lines[name] += [(one.shard, number) for number in numbers]
    names = sorted(waiting, key=lambda name: (-waiting[name], name))
    largest = [LargeGroup(name, waiting[name], in_flight[name], lines[name]) for name in names[:LARGEST]]
    return GroupTotals(count, all_waiting, largest)


def held_by_group(shards: Iterable[ShardStatus], name: str) -> HeldTasks | None:
    """Return the tasks that wait in a group; None where it is not among the largest, whose tasks alone are known."""
    waiting = {one.name: one.waiting for one in group_totals(shards).largest}.get(name)
    return None if waiting is None else HeldTasks(waiting, False, None, by_pause=True, by_limit=False)
