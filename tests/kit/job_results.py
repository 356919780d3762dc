"""Results as the jobs ``lateness`` and ``forecast`` leave them, without Spark."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas  # noqa: F401 - pyarrow imports both on first use, and C code warns while a test's clock stands still
import pyarrow as pa
import pyarrow.acero
import pyarrow.parquet as pq

#: The instant of the runs: an hour before NOW of the samples.
RUN = datetime(2027, 1, 15, 7, tzinfo=UTC)
LAST = datetime(2027, 1, 15, 6, tzinfo=UTC)

INSTANT = pa.timestamp("us", tz="UTC")
HOURS = pa.schema(
    [
        *[("task", pa.string()), ("queue", pa.string()), ("hour", INSTANT), ("n", pa.int64())],
        *[(name, pa.int64()) for name in ("p50_ms", "p90_ms", "p99_ms", "max_ms", "objective_ms", "over")],
        *[("missed", pa.bool_()), ("sketch", pa.binary())],
    ]
)
TASKS = pa.list_(pa.struct([("n", pa.int64()), ("task", pa.string())]))
DUE = {"queue": pa.string(), "n": pa.int64()}
HERD = {"usual": pa.float64(), "limit": pa.float64(), "jitter_s": pa.int64(), "tasks": TASKS}
WAIT = {"worst_backlog": pa.int64(), "worst_at": INSTANT, "longest_wait_s": pa.float64(), "drained_at": INSTANT}
FORECAST = {
    "minutes": pa.schema({"minute": INSTANT, **DUE}.items()),
    "seconds": pa.schema({"second": INSTANT, **DUE}.items()),
    "herds": pa.schema({"second": INSTANT, **DUE, **HERD}.items()),
    "drain": pa.schema({"queue": pa.string(), "rate": pa.float64(), "n": pa.int64(), **WAIT}.items()),
}


def hour(task: str, ago: int = 0, queue: str | None = "mail", **changes: Any) -> dict[str, Any]:
    """Return a row of ``hours``, so many hours before the last one."""
    numbers = {"n": 100, "p50_ms": 5, "p90_ms": 40, "p99_ms": 90, "max_ms": 95, "objective_ms": None, "over": 0}
    row = {"task": task, "queue": queue, "hour": LAST - timedelta(hours=ago), **numbers, "missed": False}
    return {**row, "sketch": b"never to be read", **changes}


def leave(folder: Path, job: str, tables: dict[str, pa.Table], run: datetime = RUN, **facts: Any) -> Path:
    place, name = folder / job, f"{run:%Y%m%dT%H%M%SZ}-7"
    place.mkdir(parents=True, exist_ok=True)
    for table, found in tables.items():
        pq.write_table(found, place / f"{table}-{name}.parquet", compression="zstd", row_group_size=1_000)
    named = {table: f"{table}-{name}.parquet" for table in tables}
    summary = {"job": job, **facts, "format": 1, "run": name, "tables": named}
    (place / "summary.json").write_text(json.dumps(summary))
    return place


def leave_lateness(folder: Path, *rows: dict[str, Any], **facts: Any) -> Path:
    ordered = sorted(rows, key=lambda row: row["hour"])
    return leave(folder, "lateness", {"hours": pa.Table.from_pylist(ordered, HOURS)}, **facts)


def leave_forecast(
    folder: Path, facts: dict[str, Any] | None = None, *, run: datetime = RUN, **rows: list[dict[str, Any]]
) -> Path:
    """Write results of ``forecast``; ``rows`` has the tables minutes, herds and drain."""
    tables = {name: pa.Table.from_pylist(rows.get(name, []), schema) for name, schema in FORECAST.items()}
    known = {"now": "2027-01-15T07:00:00.000Z", "pending": 1_234, "overdue": 5, "beyond": 0, "rejects": {}}
    return leave(folder, "forecast", tables, run, **{**known, **(facts or {})})
