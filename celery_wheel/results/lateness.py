"""Lateness by task and queue, from the hours that the job ``lateness`` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from celery_wheel.results.arrow_tables import INSTANT, TEXT, WHOLE, distinct_names, filter_by, read_typed
from celery_wheel.results.reader import JobResults
from celery_wheel.store.model import HOUR_MS

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
