"""Rows of any DataFrame as tasks of a bulk load, or rejected with a reason. DataFrame to DataFrame, no I/O.

::

    task                    a name; default: that of the rules
    args, kwargs            JSON text, or an array, a map or a struct, which become JSON with their nulls
    eta                     a timestamp, a date, or a text in ISO 8601; without an offset it is UTC
    eta_ms                  Unix milliseconds
    local (and zone)        wall-clock time; default zone: that of the rules
    queue, key, group, priority, expires, task_id      as in ``apply_async``; a number or a time may be a text
    (the column ``id`` of the rules)            makes a row idempotent; of rows with one value, the earliest counts

    2013-03-10 02:30  America/New_York    does not exist: a gap    shift 03:30 EDT | earlier 01:30 EST | reject
    2013-11-03 01:30  America/New_York    occurs twice: a fold     first EDT | second EST | reject

A row has one of eta, eta_ms and local. Any other column stays with the row and is not loaded. Python converts
wall-clock times, on Arrow batches: Spark's ``to_utc_timestamp`` would choose the later or the first instant silently,
fail the query for an unknown zone, and use Java's time zone data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.window import Window

from celery_wheel.bulk_load.reject_rules import reason as reject_reason
from celery_wheel.errors import SettingError
from celery_wheel.pipeline.inputs import BROKEN
from celery_wheel.pipeline.source.options import NO_ID
from celery_wheel.recurring.local import resolve, zone_of
from celery_wheel.values.instants import us_of
from celery_wheel.values.text import END_OF_TIME_MS

TASK, REASON = "wheel_task", "wheel_reason"
#: The name of the id column in a write, whatever its name in the rows.
ID = "wheel_id"
PLAIN = ("queue", "key", "group", "priority", "expires", "task_id")
TIMES = ("eta", "eta_ms", "local")
_INSTANT = (t.TimestampType, t.TimestampNTZType, t.DateType)
#: Column types that may be read: a cast would accept any, and take a number in eta for seconds.
_READABLE = {"eta": (t.StringType, t.NullType, *_INSTANT), "eta_ms": (t.StringType, t.NullType, t.NumericType)}


@dataclass(frozen=True, slots=True)
class RowRules:
    now_ms: int
    task: str | None = None
    queue: str | None = None
    zone: str | None = None
    gap: Gap = "shift"
    fold: Fold = "first"
    past: bool = True  #: load tasks that are already due, which are then dispatched at once
    id: str | None = None  #: column
    jitter_ms: int = 0  #: the largest delay that spreads the rows; a row has the same delay in every load

    def __post_init__(self) -> None:
        if self.zone is not None and zone_of(self.zone) is None:
            raise SettingError(f"--zone must be a time zone, like Europe/Paris or +02:00, got {self.zone!r}")


def check_rows(rows: DataFrame, rules: RowRules) -> DataFrame:
    """Return the rows with TASK and REASON, which is null in a valid row. Raises SettingError for unusable columns."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    _check_columns(types, rules)
    at, reason = _within_range("eta", *_eta(types, rules))
    if rules.jitter_ms:
        later = f.timestamp_micros(f.unix_micros(at) + _jitter(rows, rules) * 1_000)
        at, reason = _within_range("eta", later, reason)
    plain = {name: _plain(name, types[name]) for name in PLAIN if name in types and name != "queue"}
    fields = [_with_default("task", types, rules.task)]
    fields += [_json(name, types[name]) for name in ("args", "kwargs") if name in types]
    fields += [_with_default("queue", types, rules.queue)] if rules.queue or "queue" in types else []
    fields += [column.alias(name) for name, (column, _) in plain.items()]
    fields += [at.alias("eta")]
    broken = [f.when(f.col(BROKEN).isNotNull(), f.lit("not JSON"))] if BROKEN in types else []
    unreadable = f.coalesce(*broken, reason, *(column for _, column in plain.values()))
    checked = rows.withColumn(TASK, f.struct(*fields)).withColumn(REASON, unreadable)
    # Made in the function: the kind of session, which decides the kind of UDF, is unknown at import.
    write_reason = udf(_write_reasons, t.StringType())
    checked = checked.withColumn(REASON, f.coalesce(REASON, write_reason(f.col(TASK))))
    if not rules.past:
        past = f.concat(f.lit("eta is past: "), f.col(f"{TASK}.eta").cast("string"))
        is_past = f.unix_millis(f.col(f"{TASK}.eta")) < rules.now_ms
        checked = checked.withColumn(REASON, f.coalesce(REASON, f.when(is_past, past)))
    return checked if rules.id is None else _reject_repeated(checked, rules.id)


def valid_tasks(checked: DataFrame, id_column: str | None) -> DataFrame:
    """Return the tasks to load, with the id's column as ``ID``."""
    columns = [f.col(f"{TASK}.*")]
    columns += [f.col(id_column).cast("string").alias(ID)] if id_column else []
    return checked.where(f.col(REASON).isNull()).select(*columns)


def rejected_rows(checked: DataFrame) -> DataFrame:
    """Return the rejected rows with their own columns and ``reason``."""
    return checked.where(f.col(REASON).isNotNull()).withColumn("reason", f.col(REASON)).drop(TASK, REASON)


def _check_columns(types: Mapping[str, t.DataType], rules: RowRules) -> None:
    present = ", ".join(types)
    if reserved := {TASK, REASON, "reason"} & types.keys():
        raise SettingError(f"columns must not be called {', '.join(sorted(reserved))}; rename them in --sql")
    if "task" not in types and rules.task is None:
        raise SettingError(f"rows must have a column task, or --task must name one for all; there are {present}")
    if len([name for name in TIMES if name in types]) != 1:
        raise SettingError(f"rows must have one of the columns eta, eta_ms and local; there are {present}")
    if "local" in types and "zone" not in types and rules.zone is None:
        raise SettingError("rows with a column local must have a column zone, or --zone must name one for all")
    if rules.zone is not None and "local" not in types:
        raise SettingError("--zone is for a column local; a text in eta without an offset is UTC, call it local")
    if rules.id is not None and rules.id not in types:
        raise SettingError(f"--id must name a column, got {rules.id!r}; there are {present}")
    if rules.id is not None and isinstance(types[rules.id], NO_ID):
        type_ = types[rules.id].simpleString()
        raise SettingError(
            f"--id must name a column of texts, whole numbers or times, got {rules.id} of {type_}; cast it in --sql"
        )
    for name, allowed in _READABLE.items():
        if name in types and not isinstance(types[name], allowed):
            hint = "a time, or a text of one; Unix milliseconds are called eta_ms" if name == "eta" else "numbers"
            raise SettingError(f"column {name} must be {hint}, got {types[name].simpleString()}")


def _with_default(name: str, types: Mapping[str, t.DataType], default: str | None) -> Column:
    column = _text(name, types[name]) if name in types else f.lit(None).cast("string")
    return (column if default is None else f.coalesce(column, f.lit(default))).alias(name)


def _text(name: str, type_: t.DataType) -> Column:
    """Return the column; one that holds only nulls may have no type, and is a text in the write."""
    return f.col(name).cast("string") if isinstance(type_, t.NullType) else f.col(name)


def _json(name: str, type_: t.DataType) -> Column:
    is_json = isinstance(type_, t.StringType | t.NullType)
    if not is_json and not isinstance(type_, t.ArrayType | t.MapType | t.StructType):
        raise SettingError(f"column {name} must be JSON text, an array, a map or a struct, got {type_.simpleString()}")
    # As ``json.dumps`` does: an argument that is null is passed as None, and not left to the default of the task.
    return (_text(name, type_) if is_json else f.to_json(name, {"ignoreNullFields": "false"})).alias(name)


def _plain(name: str, type_: t.DataType) -> tuple[Column, Column]:
    """Return (the value or null, the reason why it cannot be read). In a CSV every value is a text."""
    value, is_instant = f.col(name), name == "expires" and isinstance(type_, (t.StringType, t.NullType, *_INSTANT))
    if is_instant:
        parsed = _instant(value, type_)
    elif name == "priority" and isinstance(type_, t.StringType | t.NullType):
        parsed = value.try_cast("int")
    else:
        parsed = _text(name, type_)
    reason = f.when(value.isNotNull() & parsed.isNull(), _unreadable(name))
    return _within_range(name, parsed, reason) if is_instant else (parsed, reason)


def _eta(types: Mapping[str, t.DataType], rules: RowRules) -> tuple[Column, Column]:
    """Return (the instant or null, the reason why there is none)."""
    if "local" in types:
        zone = f.coalesce(f.col("zone"), f.lit(rules.zone)) if "zone" in types else f.lit(rules.zone)
        instant = to_instants(f.col("local"), zone, rules.gap, rules.fold)
        return instant["at"], instant["reason"]
    name = "eta" if "eta" in types else "eta_ms"
    value = f.col(name)
    if name == "eta_ms":
        whole = value.try_cast("bigint")
        # Bounded, because a number outside Spark's calendar would end the query.
        at = f.when(whole.between(-END_OF_TIME_MS, END_OF_TIME_MS), f.timestamp_millis(whole))
    else:
        at = _instant(value, types[name])
    reason = f.when(value.isNull(), f.lit(f"{name} is missing")).when(at.isNull(), _unreadable(name))
    return at, reason


def _unreadable(name: str) -> Column:
    return f.concat(f.lit(f"{name} cannot be read: "), f.col(name).cast("string"))


def _instant(value: Column, type_: t.DataType) -> Column:
    """Return the instant of a value. A text must have a date: Spark would read ``08:00`` as today's."""
    at = value.try_cast("timestamp")
    return f.when(value.rlike(r"^\s*\d{4}-"), at) if isinstance(type_, t.StringType) else at


def _within_range(name: str, at: Column, reason: Column) -> tuple[Column, Column]:
    """Bound an instant to the years of Python, which renders the row: Spark's calendar has more."""
    is_valid = f.unix_millis(at).between(0, END_OF_TIME_MS - 1)
    beyond = f.concat(f.lit(f"{name} must be a time from 1970 to the end of 9998, got "), at.cast("string"))
    return f.when(is_valid, at), f.coalesce(reason, f.when(~is_valid, beyond))


def _jitter(rows: DataFrame, rules: RowRules) -> Column:
    columns = [rules.id] if rules.id else rows.columns
    return f.pmod(f.xxhash64(*(f.col(name).cast("string") for name in columns)), f.lit(rules.jitter_ms + 1))


def _write_reasons(tasks: pa.Array) -> pa.Array:
    found = tasks.to_pylist()
    for task in found:
        task["eta"] = task["eta"] and (task["eta"] if task["eta"].tzinfo else task["eta"].replace(tzinfo=UTC))
    return pa.array([reject_reason(task) for task in found], "string")


def _reject_repeated(checked: DataFrame, name: str) -> DataFrame:
    """Reject rows without an id, and all valid rows of one id but that with the earliest eta.

    Rows that are rejected anyway, or have no id, would all be in one partition, so they are spread by their values.
    """
    task = f.to_json(TASK)
    spread = f.when(f.col(name).isNull() | f.col(REASON).isNotNull(), f.xxhash64(task))
    ordered = Window.partitionBy(name, f.col(REASON).isNull(), spread).orderBy(f"{TASK}.eta", task)
    repeated = f.concat(f.lit(f"{name} occurs before: "), f.col(name).cast("string"))
    reason = f.when(f.col(name).isNull(), f.lit(f"{name} is missing")).when(f.col("wheel_count") > 1, repeated)
    counted = checked.withColumn("wheel_count", f.row_number().over(ordered))
    return counted.withColumn(REASON, f.coalesce(REASON, reason)).drop("wheel_count")


Gap = Literal["shift", "earlier", "reject"]
Fold = Literal["first", "second", "reject"]
GAPS: tuple[Gap, ...] = ("shift", "earlier", "reject")
FOLDS: tuple[Fold, ...] = ("first", "second", "reject")

#: Typed as Any: PySpark's annotations lack some of its signatures.
udf: Any = arrow_udf


class LocalInstant(NamedTuple):
    at_us: int | None  #: Unix microseconds; None where there is a reason
    reason: str | None = None


def to_instant(local: str | None, zone: str | None, gap: Gap = "shift", fold: Fold = "first") -> LocalInstant:
    """Convert an ISO text without an offset, in a zone (an IANA name, or ``+02:00``)."""
    if not local or not zone:
        return LocalInstant(None, "time zone is missing" if local else "local time is missing")
    try:
        wall = datetime.fromisoformat(local)
    except ValueError:
        return LocalInstant(None, f"local time cannot be read: {local}")
    if wall.tzinfo is not None:
        return LocalInstant(None, f"local time must be without an offset, got {local}")
    if (tz := zone_of(zone)) is None:
        return LocalInstant(None, f"time zone is not known: {zone}")
    kind, at, second = resolve(wall, tz)
    if kind == "gap" and gap == "reject":
        return LocalInstant(None, f"local time does not exist in {zone}: {local}")
    if kind == "fold" and fold == "reject":
        return LocalInstant(None, f"local time occurs twice in {zone}: {local}")
    if (kind == "gap" and gap == "earlier") or (kind == "fold" and fold == "second"):
        at = second
    return LocalInstant(us_of(at))


def to_instants(local: Column, zone: Column, gap: Gap = "shift", fold: Fold = "first") -> Column:
    """Convert a column whose cast to text is ISO (in a session of UTC) to STRUCT<at TIMESTAMP, reason STRING>."""

    @udf("at_us bigint, reason string")  # type: ignore[untyped-decorator]
    def convert(texts: pa.Array, zones: pa.Array) -> pa.Array:
        pairs = zip(texts.to_pylist(), zones.to_pylist(), strict=True)
        instants = [to_instant(text, name, gap, fold) for text, name in pairs]
        columns = [
            pa.array([at_us for at_us, _ in instants], "int64"),
            pa.array([why for _, why in instants], "string"),
        ]
        return pa.StructArray.from_arrays(columns, ["at_us", "reason"])

    both = convert(local.cast("string"), zone)
    return f.struct(f.timestamp_micros(both["at_us"]).alias("at"), both["reason"].alias("reason"))
