"""Lines out of the hours that the job ``lateness`` left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from celery_wheel.pipeline.figures.rows import INSTANT, TEXT, WHOLE, named, names, rows
from celery_wheel.pipeline.results import Results
from celery_wheel.store.model import HOUR_MS

#: Lines are shown hour by hour for so long.
HOURS = 48

NUMBERS = ("n", "p50_ms", "p90_ms", "p99_ms", "max_ms", "objective_ms", "over")
BY = ("task", "queue")
#: ``missed`` is counted up, so it is a number.
TYPES = {**dict.fromkeys(BY, TEXT), "hour": INSTANT, **dict.fromkeys(NUMBERS, WHOLE), "missed": WHOLE}


@dataclass(frozen=True, slots=True)
class Hour:
    """What left of a task and queue in an hour."""

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
class Line:
    """A task and queue: exact sums over all its hours, the hour with the worst p99, and the last hours by number."""

    task: str | None
    queue: str | None
    n: int
    max_ms: int
    hours: int
    judged: int
    missed: int
    worst: Hour
    last: dict[int, Hour]


@dataclass(frozen=True, slots=True)
class Lateness:
    """``lines`` of ``of``; the hours of a line's ``last`` count from ``last_ms``. Without rows, instants are 0."""

    lines: list[Line]
    of: int
    n: int
    max_ms: int | None
    judged: int
    missed: int
    from_ms: int
    to_ms: int
    last_ms: int
    left_out: int  #: rows of hours before ``from_ms``, which were too many to read
    tasks: list[str]
    queues: list[str]


def lateness(results: Results, task: str | None, queue: str | None, skip: int, most: int) -> Lateness:
    """The lines of a task, a queue or all; those that missed an objective first, then the worst by p99."""
    found, of = rows(results, "hours", TYPES, last=True)
    span = pc.min_max(found["hour"]).as_py()
    if of > found.num_rows and span["min"] < span["max"]:  # the first of these hours is not whole
        found = found.filter(pc.greater(found["hour"], span["min"]))
        span = pc.min_max(found["hour"]).as_py()
    left_out = of - found.num_rows
    tasks, queues = names(found["task"]), names(found["queue"])
    found = named(named(found, "task", task), "queue", queue)
    last_ms = max(span["min"] or 0, (span["max"] or 0) - (HOURS - 1) * HOUR_MS)
    lines = _lines(found)
    return Lateness(
        lines=_with_hours(lines.slice(skip, most), found, last_ms),
        of=lines.num_rows,
        n=pc.sum(found["n"]).as_py() or 0,
        max_ms=pc.max(found["max_ms"]).as_py(),
        judged=pc.count(found["objective_ms"]).as_py(),
        missed=pc.sum(found["missed"]).as_py() or 0,
        from_ms=span["min"] or 0,
        to_ms=0 if span["max"] is None else span["max"] + HOUR_MS,
        last_ms=last_ms,
        left_out=left_out,
        tasks=tasks,
        queues=queues,
    )


def _lines(found: pa.Table) -> pa.Table:
    """A row a task and queue. ``first`` is of the hour with the worst p99; in threads it would be of any."""
    sums = [("n", "sum"), ("max_ms", "max"), ("hour", "count"), ("objective_ms", "count"), ("missed", "sum")]
    as_it_is = pc.ScalarAggregateOptions(skip_nulls=False)  # not the objective of another hour
    worst = [(name, "first", as_it_is) for name in ("hour", *NUMBERS, "missed")]
    ordered = found.sort_by([("p99_ms", "descending"), ("n", "descending")])
    lines = ordered.group_by(list(BY), use_threads=False).aggregate([*sums, *worst])
    order = [("missed_sum", "descending"), ("p99_ms_first", "descending"), ("n_sum", "descending")]
    return lines.sort_by([*order, ("task", "ascending"), ("queue", "ascending")])


def _with_hours(lines: pa.Table, found: pa.Table, last_ms: int) -> list[Line]:
    near = found.filter(pc.greater_equal(found["hour"], last_ms))
    for column in BY:
        near = near.filter(pc.is_in(near[column], value_set=lines[column].combine_chunks()))
    by_line: dict[tuple[Any, ...], dict[int, Hour]] = {}
    for row in near.to_pylist():
        its = by_line.setdefault((row["task"], row["queue"]), {})
        its[(row["hour"] - last_ms) // HOUR_MS] = _hour(row, "")
    return [
        Line(
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


def _hour(row: dict[str, Any], of: str) -> Hour:
    numbers = {name: row[f"{name}{of}"] for name in NUMBERS}
    return Hour(hour_ms=row[f"hour{of}"], missed=bool(row[f"missed{of}"]), **numbers)
