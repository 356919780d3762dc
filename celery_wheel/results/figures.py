"""Figures of the jobs ``lateness`` and ``forecast``, from their tables as Arrow; instants are Unix milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from celery_wheel.errors import FileUnusable
from celery_wheel.results.reader import JobResults
from celery_wheel.store.model import HOUR_MS

#: A week of 1,200 tasks and queues by the hour, or a month of four queues by the minute. They take about 100 MB.
MAX_ROWS = 200_000
#: Names that a filter offers.
MAX_NAMES = 200

TEXT, WHOLE, REAL, INSTANT = pa.string(), pa.int64(), pa.float64(), pa.timestamp("ms", tz="UTC")


def read_typed(results: JobResults, name: str, types: Mapping[str, Any], *, last: bool = False) -> tuple[pa.Table, int]:
    """Return (the first or last ``MAX_ROWS`` rows of a table; their total). Raises FileUnusable for other types."""
    table, total = results.read_rows(name, list(types), MAX_ROWS, last=last)
    try:
        table = table.select(list(types)).cast(pa.schema(types.items()), safe=False)
        for index, (column, type_) in enumerate(types.items()):
            if type_ == INSTANT:
                table = table.set_column(index, column, table[column].cast(WHOLE))
    except (pa.ArrowException, ValueError) as error:
        message = f"{results.folder} has a table {name!r} of other types: {error}; run {results.job} again"
        raise FileUnusable(message) from error
    return table, total


def filter_by(table: pa.Table, column: str, name: str | None) -> pa.Table:
    """Return the rows with this name; all rows if it is None."""
    return table if name is None else table.filter(pc.equal(table[column], name))


def distinct_names(column: pa.ChunkedArray) -> list[str]:
    return sorted(name for name in column.unique().to_pylist() if name is not None)[:MAX_NAMES]


#: The hours of a line that are listed one by one.
HOURS = 48

NUMBERS = ("n", "p50_ms", "p90_ms", "p99_ms", "max_ms", "objective_ms", "over")
BY = ("task", "queue")
#: ``missed`` is summed, so it is a number.
TYPES = {**dict.fromkeys(BY, TEXT), "hour": INSTANT, **dict.fromkeys(NUMBERS, WHOLE), "missed": WHOLE}


@dataclass(frozen=True, slots=True)
class LatenessHour:
    """The tasks of one name and queue that were dispatched in one hour."""

    hour_ms: int
    n: int
    p50_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int
    objective_ms: int | None
    over: int
    missed: bool


@dataclass(frozen=True, slots=True)
class LatenessLine:
    """A task and queue: sums over all its hours, the hour with the worst p99, and the last hours by number."""

    task: str | None
    queue: str | None
    n: int
    max_ms: int
    hours: int
    judged: int
    missed: int
    worst: LatenessHour
    last: dict[int, LatenessHour]


@dataclass(frozen=True, slots=True)
class LatenessPage:
    """A page of ``of`` lines; a line's ``last`` counts hours from ``last_ms``. Without rows, instants are 0."""

    lines: list[LatenessLine]
    of: int
    n: int
    max_ms: int | None
    judged: int
    missed: int
    from_ms: int
    to_ms: int
    last_ms: int
    left_out: int  #: rows of hours before ``from_ms``, beyond the limit of a read
    tasks: list[str]
    queues: list[str]


def lateness_page(results: JobResults, task: str | None, queue: str | None, skip: int, limit: int) -> LatenessPage:
    """Lines of a task, a queue or all: missed objectives first, then by the worst p99."""
    table, total = read_typed(results, "hours", TYPES, last=True)
    span = pc.min_max(table["hour"]).as_py()
    if total > table.num_rows and span["min"] < span["max"]:  # the first of these hours is incomplete
        table = table.filter(pc.greater(table["hour"], span["min"]))
        span = pc.min_max(table["hour"]).as_py()
    hours = filter_by(filter_by(table, "task", task), "queue", queue)
    last_ms = max(span["min"] or 0, (span["max"] or 0) - (HOURS - 1) * HOUR_MS)
    lines = _lines(hours)
    return LatenessPage(
        lines=_with_hours(lines.slice(skip, limit), hours, last_ms),
        of=lines.num_rows,
        n=pc.sum(hours["n"]).as_py() or 0,
        max_ms=pc.max(hours["max_ms"]).as_py(),
        judged=pc.count(hours["objective_ms"]).as_py(),
        missed=pc.sum(hours["missed"]).as_py() or 0,
        from_ms=span["min"] or 0,
        to_ms=0 if span["max"] is None else span["max"] + HOUR_MS,
        last_ms=last_ms,
        left_out=total - table.num_rows,
        tasks=distinct_names(table["task"]),
        queues=distinct_names(table["queue"]),
    )


def _lines(hours: pa.Table) -> pa.Table:
    """Return a row for each task and queue. ``first``, the hour with the worst p99, would be arbitrary with threads."""
    sums = [("n", "sum"), ("max_ms", "max"), ("hour", "count"), ("objective_ms", "count"), ("missed", "sum")]
    with_nulls = pc.ScalarAggregateOptions(skip_nulls=False)  # else the objective could be that of another hour
    worst = [(name, "first", with_nulls) for name in ("hour", *NUMBERS, "missed")]
    ordered = hours.sort_by([("p99_ms", "descending"), ("n", "descending")])
    lines = ordered.group_by(list(BY), use_threads=False).aggregate([*sums, *worst])
    order = [("missed_sum", "descending"), ("p99_ms_first", "descending"), ("n_sum", "descending")]
    return lines.sort_by([*order, ("task", "ascending"), ("queue", "ascending")])


def _with_hours(lines: pa.Table, hours: pa.Table, last_ms: int) -> list[LatenessLine]:
    recent = hours.filter(pc.greater_equal(hours["hour"], last_ms))
    for column in BY:
        recent = recent.filter(pc.is_in(recent[column], value_set=lines[column].combine_chunks()))
    by_line: dict[tuple[Any, ...], dict[int, LatenessHour]] = {}
    for row in recent.to_pylist():
        line_hours = by_line.setdefault((row["task"], row["queue"]), {})
        line_hours[(row["hour"] - last_ms) // HOUR_MS] = _hour(row)
    return [
        LatenessLine(
            task=line["task"],
            queue=line["queue"],
            n=line["n_sum"],
            max_ms=line["max_ms_max"],
            hours=line["hour_count"],
            judged=line["objective_ms_count"],
            missed=line["missed_sum"],
            worst=_hour(line, "_first"),
            last=by_line.get((line["task"], line["queue"]), {}),
        )
        for line in lines.to_pylist()
    ]


def _hour(row: dict[str, Any], suffix: str = "") -> LatenessHour:
    numbers = {name: row[f"{name}{suffix}"] for name in NUMBERS}
    return LatenessHour(hour_ms=row[f"hour{suffix}"], missed=bool(row[f"missed{suffix}"]), **numbers)


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
    """Due tasks by the begin of their minute, and the number of those that are due later."""

    minutes: dict[int, int]
    later: int
    left_out: int  #: rows beyond the limit of a read
    queues: list[str]


def due_counts(results: JobResults, queue: str | None, from_ms: int, to_ms: int) -> DueCounts:
    """Return the counts of tasks that are due from one instant to another, in all queues or in one."""
    table, total = read_typed(results, "minutes", MINUTES)
    due = filter_by(table, "queue", queue)
    later = due.filter(pc.greater_equal(due["minute"], to_ms))
    within = due.filter(pc.and_(pc.greater_equal(due["minute"], from_ms), pc.less(due["minute"], to_ms)))
    sums = within.group_by("minute").aggregate([("n", "sum")]).to_pylist()
    return DueCounts(
        minutes={row["minute"]: row["n_sum"] for row in sums},
        later=pc.sum(later["n"]).as_py() or 0,
        left_out=total - table.num_rows,
        queues=distinct_names(table["queue"]),
    )


def largest_herds(results: JobResults, queue: str | None, skip: int, limit: int) -> tuple[list[dict[str, Any]], int]:
    """Return (a page of herds, the largest first, with ``second`` in milliseconds; their total)."""
    order = [("n", "descending"), ("second", "ascending")]
    return _sorted_page(results, "herds", HERDS, queue, order, slice(skip, skip + limit))


def longest_drains(results: JobResults, queue: str | None, limit: int) -> tuple[list[dict[str, Any]], int]:
    """Return (queues that have a rate, the longest wait first, with ``drained_at`` in milliseconds; their total)."""
    order = [("longest_wait_s", "descending"), ("queue", "ascending")]
    return _sorted_page(results, "drain", DRAIN, queue, order, slice(limit))


def _sorted_page(
    results: JobResults, name: str, types: Mapping[str, Any], queue: str | None, order: list[Any], page: slice
) -> tuple[list[dict[str, Any]], int]:
    rows = filter_by(read_typed(results, name, types)[0], "queue", queue)
    return rows.take(pc.sort_indices(rows, sort_keys=order)[page]).to_pylist(), rows.num_rows
