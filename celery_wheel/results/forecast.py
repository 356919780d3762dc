"""Counts, herds and waits from the results of the job ``forecast``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from celery_wheel.results.arrow_tables import INSTANT, REAL, TEXT, WHOLE, distinct_names, filter_by, read_typed
from celery_wheel.results.reader import JobResults
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
class DueCounts:
    """Tasks due in each minute from ``from_ms`` on, in each hour after that, and later."""

    minutes: list[int]
    hours: list[int]
    later: int
    left_out: int  #: rows beyond the limit of a read
    queues: list[str]


def due_counts(results: JobResults, queue: str | None, from_ms: int, minutes: int, hours: int) -> DueCounts:
    """Counts of due tasks from an hour's beginning on, in all queues or in one."""
    table, total = read_typed(results, "minutes", MINUTES)
    due, hours_ms = filter_by(table, "queue", queue), from_ms + minutes * 60_000
    later = due.filter(pc.greater_equal(due["minute"], hours_ms + hours * HOUR_MS))
    return DueCounts(
        minutes=_counts(due, from_ms, 60_000, minutes),
        hours=_counts(due, hours_ms, HOUR_MS, hours),
        later=pc.sum(later["n"]).as_py() or 0,
        left_out=total - table.num_rows,
        queues=distinct_names(table["queue"]),
    )


def _counts(due: pa.Table, from_ms: int, width_ms: int, count: int) -> list[int]:
    after = pc.subtract(due["minute"], from_ms)
    within = pc.and_(pc.greater_equal(after, 0), pc.less(after, count * width_ms))
    numbered = pa.table({"at": pc.divide(after, width_ms), "n": due["n"]}).filter(within)
    counts = [0] * count
    for row in numbered.group_by("at").aggregate([("n", "sum")]).to_pylist():
        counts[row["at"]] = row["n_sum"]
    return counts


def largest_herds(results: JobResults, queue: str | None, skip: int, limit: int) -> tuple[list[dict[str, Any]], int]:
    """Return (a page of herds, the largest first, with ``second`` in milliseconds; their total)."""
    herds = filter_by(read_typed(results, "herds", HERDS)[0], "queue", queue)
    return _sorted_page(
        herds, [("n", "descending"), ("second", "ascending")], slice(skip, skip + limit)
    ), herds.num_rows


def longest_drains(results: JobResults, queue: str | None, limit: int) -> tuple[list[dict[str, Any]], int]:
    """Return (queues that have a rate, the longest wait first, with ``drained_at`` in milliseconds; their total)."""
    drains = filter_by(read_typed(results, "drain", DRAIN)[0], "queue", queue)
    return _sorted_page(
        drains, [("longest_wait_s", "descending"), ("queue", "ascending")], slice(limit)
    ), drains.num_rows


def _sorted_page(table: pa.Table, order: list[tuple[str, str]], page: slice) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.take(pc.sort_indices(table, sort_keys=order)[page]).to_pylist()
    return rows
