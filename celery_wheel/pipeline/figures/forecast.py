"""Counts, herds and waits out of what the job ``forecast`` left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from celery_wheel.pipeline.figures.rows import INSTANT, REAL, TEXT, WHOLE, named, names, rows
from celery_wheel.pipeline.results import Results
from celery_wheel.store.model import HOUR_MS

MINUTES = {"minute": INSTANT, "queue": TEXT, "n": WHOLE}
HERDS = {
    **{"second": INSTANT, "queue": TEXT, "n": WHOLE, "usual": REAL, "jitter_s": WHOLE},
    "tasks": pa.list_(pa.struct([("n", WHOLE), ("task", TEXT)])),
}
DRAIN = {
    **{"drained_at": INSTANT, "queue": TEXT, "rate": REAL, "n": WHOLE, "worst_backlog": WHOLE},
    "longest_wait_s": REAL,
}


@dataclass(frozen=True, slots=True)
class Due:
    """Tasks due in each minute from ``from_ms`` on, in each hour after those, and in all after that."""

    minutes: list[int]
    hours: list[int]
    later: int
    left_out: int  #: rows that were too many to read
    queues: list[str]


def due(results: Results, queue: str | None, from_ms: int, minutes: int, hours: int) -> Due:
    """What is due from an hour's beginning on, in all queues or in one."""
    every, of = rows(results, "minutes", MINUTES)
    found, hours_ms = named(every, "queue", queue), from_ms + minutes * 60_000
    return Due(
        minutes=_counts(found, from_ms, 60_000, minutes),
        hours=_counts(found, hours_ms, HOUR_MS, hours),
        later=_later(found, hours_ms + hours * HOUR_MS),
        left_out=of - every.num_rows,
        queues=names(every["queue"]),
    )


def _later(found: pa.Table, from_ms: int) -> int:
    return pc.sum(found.filter(pc.greater_equal(found["minute"], from_ms))["n"]).as_py() or 0


def _counts(found: pa.Table, from_ms: int, width_ms: int, count: int) -> list[int]:
    after = pc.subtract(found["minute"], from_ms)
    within = pc.and_(pc.greater_equal(after, 0), pc.less(after, count * width_ms))
    numbered = pa.table({"at": pc.divide(after, width_ms), "n": found["n"]}).filter(within)
    counts = [0] * count
    for row in numbered.group_by("at").aggregate([("n", "sum")]).to_pylist():
        counts[row["at"]] = row["n_sum"]
    return counts


def herds(results: Results, queue: str | None, skip: int, most: int) -> tuple[list[dict[str, Any]], int]:
    """(so many herds, the largest first, with ``second`` in milliseconds; how many there are)."""
    found = named(rows(results, "herds", HERDS)[0], "queue", queue)
    return _first(found, [("n", "descending"), ("second", "ascending")], slice(skip, skip + most)), found.num_rows


def drains(results: Results, queue: str | None, most: int) -> tuple[list[dict[str, Any]], int]:
    """(queues that have a rate, the longest wait first, with ``drained_at`` in milliseconds; how many there are)."""
    found = named(rows(results, "drain", DRAIN)[0], "queue", queue)
    return _first(found, [("longest_wait_s", "descending"), ("queue", "ascending")], slice(most)), found.num_rows


def _first(found: pa.Table, order: list[tuple[str, str]], which: slice) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = found.take(pc.sort_indices(found, sort_keys=order)[which]).to_pylist()
    return shown
