"""Rows of any DataFrame as tasks of a bulk load, each with the reason why it is none. DataFrame to DataFrame, no I/O.

::

    judged(rows, rules)     every row, with what would be loaded (``wheel_task``) and why it is not (``wheel_reason``)
      good(…)               the columns of a write of the data source ``wheel``
      rejected(…)           the rows as they came, with their reason

What a row may have, and how it is read:

    task                    a name; or the one of the rules
    args, kwargs            JSON text, or an array, a map or a struct, which become JSON
    eta                     a timestamp, a date, or a text in ISO 8601; without an offset it is UTC
    eta_ms                  Unix milliseconds
    local (and zone)        what clocks there show; the zone of the rules where a row names none; see ``local_time``
    queue, key, priority, expires, task_id      as ``apply_async`` has them; a text where it says a number or a time
    (the column ``id`` of the rules)            what makes a row idempotent; of rows with one value the first counts

One of eta, eta_ms and local. Any other column stays with the row, and is not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)
from pyspark.sql.window import Window

from celery_wheel.bulk.rules import reason
from celery_wheel.errors import SettingError
from celery_wheel.pipeline.inputs import BROKEN
from celery_wheel.pipeline.local_time import Fold, Gap, instants, is_zone, udf
from celery_wheel.store.text import END_OF_TIME_MS

TASK, REASON = "wheel_task", "wheel_reason"
PLAIN = ("queue", "key", "priority", "expires", "task_id")
TIMES = ("eta", "eta_ms", "local")
_INSTANT = (TimestampType, TimestampNTZType, DateType)
#: What a column may be, where a cast would make something of anything: a number as eta would be seconds.
_READ = {"eta": (StringType, NullType, *_INSTANT), "eta_ms": (StringType, NullType, NumericType)}
#: What has no text of its own that is the same wherever it is written.
_NO_ID = (BinaryType, ArrayType, MapType, StructType, VariantType)


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds where a row says nothing, and what is refused."""

    now_ms: int
    task: str | None = None
    queue: str | None = None
    zone: str | None = None
    gap: Gap = "later"
    fold: Fold = "first"
    past: bool = True  #: whether what is due already is loaded; it leaves at once then
    id: str | None = None  #: column
    jitter_ms: int = 0  #: each is later by its own part of this, the same whenever the row is loaded


def judged(rows: DataFrame, rules: Rules) -> DataFrame:
    """Raises SettingError where the columns make no sense."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    _check(types, rules)
    at, why = _bounded("eta", *_eta(types, rules))
    if rules.jitter_ms:
        later = f.timestamp_micros(f.unix_micros(at) + _spread(rows, rules) * 1_000)
        at, why = _bounded("eta", later, why)
    plain = {name: _plain(name, types[name]) for name in PLAIN if name in types and name != "queue"}
    parts = [
        _named("task", types, rules.task),
        *(_json(name, types[name]) for name in ("args", "kwargs") if name in types),
    ]
    parts += [_named("queue", types, rules.queue)] if rules.queue or "queue" in types else []
    parts += [column.alias(name) for name, (column, _) in plain.items()]
    parts += [at.alias("eta")]
    broken = [f.when(f.col(BROKEN).isNotNull(), f.lit("not JSON"))] if BROKEN in types else []
    unread = f.coalesce(*broken, why, *(column for _, column in plain.values()))
    found = rows.withColumn(TASK, f.struct(*parts)).withColumn(REASON, unread)
    # Made here, and not with this module: which kind of session there is, is not known before.
    unfit = udf(_unfit, StringType())
    found = found.withColumn(REASON, f.coalesce(REASON, unfit(f.col(TASK))))
    if not rules.past:
        late = f.concat(f.lit("eta is past: "), f.col(f"{TASK}.eta").cast("string"))
        is_past = f.unix_millis(f.col(f"{TASK}.eta")) < rules.now_ms
        found = found.withColumn(REASON, f.coalesce(REASON, f.when(is_past, late)))
    return found if rules.id is None else _each_id_once(found, rules.id)


def good(found: DataFrame, id_column: str | None) -> DataFrame:
    """What is to be loaded; the id's column beside it."""
    columns = [f.col(f"{TASK}.*")]
    columns += [f.col(id_column).cast("string").alias(ID)] if id_column else []
    return found.where(f.col(REASON).isNull()).select(*columns)


#: Under which name the id's column goes to the write, whatever it is called in the rows.
ID = "wheel_id"


def rejected(found: DataFrame) -> DataFrame:
    """The rows as they came, each with its ``reason``."""
    return found.where(f.col(REASON).isNotNull()).withColumn("reason", f.col(REASON)).drop(TASK, REASON)


def _check(types: Mapping[str, DataType], rules: Rules) -> None:
    have = ", ".join(types)
    if taken := {TASK, REASON, "reason"} & types.keys():
        raise SettingError(f"columns must not be called {', '.join(sorted(taken))}; rename them in --sql")
    if "task" not in types and rules.task is None:
        raise SettingError(f"rows must have a column task, or --task must name one for all; there are {have}")
    if len([name for name in TIMES if name in types]) != 1:
        raise SettingError(f"rows must have one of the columns eta, eta_ms and local; there are {have}")
    if "local" in types and "zone" not in types and rules.zone is None:
        raise SettingError("rows with a column local must have a column zone, or --zone must name one for all")
    if rules.zone is not None and "local" not in types:
        raise SettingError("--zone is for a column local; a text in eta without an offset is UTC, call it local")
    if rules.zone is not None and not is_zone(rules.zone):
        raise SettingError(f"--zone must be a time zone, like Europe/Paris or +02:00, got {rules.zone!r}")
    if rules.id is not None and rules.id not in types:
        raise SettingError(f"--id must name a column, got {rules.id!r}; there are {have}")
    if rules.id is not None and isinstance(types[rules.id], _NO_ID):
        kind = types[rules.id].simpleString()
        raise SettingError(f"--id must name a column of texts, numbers or times, got {rules.id} of {kind}; see --sql")
    for name, allowed in _READ.items():
        if name in types and not isinstance(types[name], allowed):
            hint = "a time, or a text of one; Unix milliseconds are called eta_ms" if name == "eta" else "numbers"
            raise SettingError(f"column {name} must be {hint}, got {types[name].simpleString()}")


def _named(name: str, types: Mapping[str, DataType], default: str | None) -> Column:
    column = _text(name, types[name]) if name in types else f.lit(None).cast("string")
    return (column if default is None else f.coalesce(column, f.lit(default))).alias(name)


def _text(name: str, kind: DataType) -> Column:
    """A column of nothing but nulls may have no type: in the write it is a text."""
    return f.col(name).cast("string") if isinstance(kind, NullType) else f.col(name)


def _json(name: str, kind: DataType) -> Column:
    is_json = isinstance(kind, StringType | NullType)
    if not is_json and not isinstance(kind, ArrayType | MapType | StructType):
        raise SettingError(f"column {name} must be JSON text, an array, a map or a struct, got {kind.simpleString()}")
    return (_text(name, kind) if is_json else f.to_json(name)).alias(name)


def _plain(name: str, kind: DataType) -> tuple[Column, Column]:
    """(the value, or null; why it cannot be read). Of a CSV all is text."""
    given, is_instant = f.col(name), name == "expires" and isinstance(kind, (StringType, NullType, *_INSTANT))
    if is_instant:
        read = _instant(given, kind)
    elif name == "priority" and isinstance(kind, StringType | NullType):
        read = given.try_cast("int")
    else:
        read = _text(name, kind)
    why = f.when(given.isNotNull() & read.isNull(), f.concat(f.lit(f"{name} cannot be read: "), given.cast("string")))
    return _bounded(name, read, why) if is_instant else (read, why)


def _eta(types: Mapping[str, DataType], rules: Rules) -> tuple[Column, Column]:
    """(the instant, or null; why there is none)."""
    if "local" in types:
        zone = f.coalesce(f.col("zone"), f.lit(rules.zone)) if "zone" in types else f.lit(rules.zone)
        found = instants(f.col("local"), zone, rules.gap, rules.fold)
        return found["at"], found["reason"]
    name = "eta" if "eta" in types else "eta_ms"
    given = f.col(name)
    if name == "eta_ms":
        whole = given.try_cast("bigint")
        # One that is no instant of Spark's would end the query.
        at = f.when(whole.between(-END_OF_TIME_MS, END_OF_TIME_MS), f.timestamp_millis(whole))
    else:
        at = _instant(given, types[name])
    unreadable = f.concat(f.lit(f"{name} cannot be read: "), given.cast("string"))
    why = f.when(given.isNull(), f.lit(f"{name} is missing")).when(at.isNull(), unreadable)
    return at, why


def _instant(given: Column, kind: DataType) -> Column:
    """A text has its date: of ``08:00`` Spark would make today."""
    at = given.try_cast("timestamp")
    return f.when(given.rlike(r"^\s*\d{4}-"), at) if isinstance(kind, StringType) else at


def _bounded(name: str, at: Column, why: Column) -> tuple[Column, Column]:
    """Spark has more years than Python, in which a row is looked at."""
    has_place = f.unix_millis(at).between(0, END_OF_TIME_MS - 1)
    beyond = f.concat(f.lit(f"{name} must be a time from 1970 to the end of 9998, got "), at.cast("string"))
    return f.when(has_place, at), f.coalesce(why, f.when(~has_place, beyond))


def _spread(rows: DataFrame, rules: Rules) -> Column:
    """0 to jitter_ms, by what the row says."""
    by = [rules.id] if rules.id else rows.columns
    return f.pmod(f.xxhash64(*(f.col(name).cast("string") for name in by)), f.lit(rules.jitter_ms + 1))


def _unfit(tasks: pa.Array) -> pa.Array:
    """What the write would refuse: said by the same code."""
    return pa.array([reason(_as_row(task)) for task in tasks.to_pylist()], "string")


def _as_row(task: dict[str, Any]) -> dict[str, Any]:
    eta = task["eta"]
    return {**task, "eta": eta if eta is None else _utc(eta)}


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _each_id_once(found: DataFrame, name: str) -> DataFrame:
    ordered = Window.partitionBy(name, f.col(REASON).isNull()).orderBy(f"{TASK}.eta", f.to_json(TASK))
    count = f.row_number().over(ordered)
    again = f.concat(f.lit(f"{name} occurs before: "), f.col(name).cast("string"))
    missing = f.lit(f"{name} is missing")
    why = f.when(f.col(name).isNull(), missing).when(f.col("wheel_count") > 1, again)
    return found.withColumn("wheel_count", count).withColumn(REASON, f.coalesce(REASON, why)).drop("wheel_count")
