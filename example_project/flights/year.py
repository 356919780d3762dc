"""The timetable as tables of tasks, for the jobs of the data pipeline: a row for each flight.

::

    timetable/01.parquet …      task_id, task, local, zone, args, queue    the departures of a year, by month
    day/day.parquet             task_id, task, eta_ms, args, queue         the reminders of a day in compressed time
    expected/01.parquet …, day  task_id, eta_ms                            the instants of both, for ``reconcile``

The flights are those of 2013, moved to the next year with its calendar, 2030: each date falls on the same weekday, and
by the rules of the United States (second Sunday of March, first of November) the clocks change on the same dates. So
the two years are 887 weeks apart at every moment, and ``expected`` needs no rules of time zones: it has the instants of
2013, which the file gives in UTC, plus 887 weeks. The instants that ``schedule`` derives from ``local`` must be equal.

A cancelled flight has a scheduled departure, though no actual one, and so is a row like the others.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flights.timetable import NEW_YORK, Flight

TIMETABLE, DAY, EXPECTED = "timetable", "day", "expected"
DEPART, REMIND, QUEUE = "flights.tasks.depart", "flights.tasks.remind", "flights"
WEEK = timedelta(weeks=1)


@dataclass(frozen=True, slots=True)
class YearTables:
    """Counts of the tables of a year."""

    rows: int
    keys: int  #: different task ids
    cancelled: int


def year_like_2013(after: int) -> int:
    """Return the next year whose dates all fall on the weekdays of 2013's: 2030, then 2041."""
    ends = (1, 1), (12, 31)
    weekdays = [date(2013, *end).weekday() for end in ends]
    return next(year for year in count(after + 1) if [date(year, *end).weekday() for end in ends] == weekdays)


def weeks_from_2013(year: int) -> timedelta:
    return (date(year, 1, 1) - date(2013, 1, 1)) // WEEK * WEEK


def departure(flight: Flight, year: int) -> dict[str, Any]:
    """Return the row of a departure, by the clocks of New York."""
    local = _local(flight).replace(year=year)
    return {
        "task_id": f"{flight.carrier}-{flight.number}-{local:%Y-%m-%d}-{flight.origin}",
        "task": DEPART,
        "local": f"{local:%Y-%m-%d %H:%M}",
        "zone": NEW_YORK.key,
        "args": json.dumps([str(flight)]),
        "queue": QUEUE,
    }


def reminder(flight: Flight, due_at_ms: int, run: str) -> dict[str, Any]:
    """Return the row of a reminder in a replay; ``run`` identifies the replay, so that a day can be replayed again."""
    return {
        "task_id": f"{flight.carrier}-{flight.number}-{_local(flight):%Y-%m-%d}-{flight.origin}-{run}",
        "task": REMIND,
        "eta_ms": due_at_ms,
        "args": json.dumps([str(flight)]),
        "queue": QUEUE,
    }


def write_year(folder: Path, flights: Iterable[Flight], year: int) -> YearTables:
    """Write ``timetable`` and ``expected`` into the folder."""
    months: dict[int, list[tuple[dict[str, Any], int]]] = defaultdict(list)
    shift_ms = weeks_from_2013(year) // timedelta(milliseconds=1)
    cancelled = 0
    for flight in flights:
        months[_local(flight).month].append((departure(flight, year), flight.departs_at_ms + shift_ms))
        cancelled += not flight.left
    for month, rows in months.items():
        _write(folder, TIMETABLE, f"{month:02}", [row for row, _ in rows])
        _write(folder, EXPECTED, f"{month:02}", [_expected(row, eta_ms) for row, eta_ms in rows])
    ids = [row["task_id"] for rows in months.values() for row, _ in rows]
    return YearTables(len(ids), len(set(ids)), cancelled)


def write_day(folder: Path, reminders: Sequence[Mapping[str, Any]]) -> None:
    """Write ``day`` and ``expected`` into the folder."""
    _write(folder, DAY, DAY, reminders)
    _write(folder, EXPECTED, DAY, [_expected(row, row["eta_ms"]) for row in reminders])


def _local(flight: Flight) -> datetime:
    """Return the scheduled departure by the clocks of New York."""
    return datetime.fromtimestamp(flight.departs_at_ms / 1_000, NEW_YORK)


def _expected(row: Mapping[str, Any], eta_ms: int) -> dict[str, Any]:
    return {"task_id": row["task_id"], "eta_ms": eta_ms}


def _write(folder: Path, table: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    (folder / table).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / table / f"{name}.parquet")
