"""Options of the data source ``wheel``. Spark passes texts, with names in any case.

::

    url        store, as ``wheel_store`` has it            default: the environment's CELERY_WHEEL_STORE
    table      pending or history                          default: pending; a stream reads history
    queue      only tasks of this queue (or of this routing key, where no queue was named); task: of this name
    dueFrom    only tasks due at or after this instant     ISO 8601 (UTC if it names no zone) or ms since 1970
    dueTo      only tasks due before this instant          the same
    events     only these events of history: {"0": [512, 7680]} are those of shard 0 numbered above 512 and up to 7680
    partitions number of tasks by which Spark reads        default: one for 250,000 rows, at most 32
    startingAt (stream) earliest or latest                 default: earliest; a checkpoint takes precedence
    maxRows    (stream) rows of a micro-batch, about       default: 1,000,000
    failOnLoss (stream) an error where retention was faster  default: true
    batch      (write) name of this load, which is loaded once, or of the stream
    key        (write) column whose value makes a row idempotent in every load
    app        (write) "proj:app", importable by executors: its routes, serializers and tasks' options apply
    chunk      (write) messages in one packed chunk        default: 500
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import types
from pyspark.sql.types import StructType

from celery_wheel.bulk_load.reject_rules import COLUMNS
from celery_wheel.errors import SettingError
from celery_wheel.pipeline.source.statements import HISTORY, PENDING, database_url
from celery_wheel.values.text import text_rule, whole_number

ENVIRONMENT = "CELERY_WHEEL_STORE"
#: Where a stream without a checkpoint begins; the first is the default.
STARTS = ("earliest", "latest")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    url: str
    table: str = PENDING
    queue: str | None = None
    task: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    partitions: int | None = None
    events: Mapping[int, tuple[int, int]] | None = None
    starting_at: str = "earliest"
    max_rows: int = 1_000_000
    fail_on_loss: bool = True


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read. Raises SettingError for a wrong one."""
    named = {name.lower(): value for name, value in options.items()}
    return SourceOptions(
        url=store_url(named),
        table=_one_of(named, "table", (PENDING, HISTORY), PENDING),
        queue=named.get("queue"),
        task=named.get("task"),
        due_from_ms=_instant(named, "dueFrom"),
        due_to_ms=_instant(named, "dueTo"),
        partitions=_count(named, "partitions"),
        events=_events(named),
        starting_at=_one_of(named, "startingAt", STARTS, STARTS[0]),
        max_rows=_count(named, "maxRows") or 1_000_000,
        fail_on_loss=_one_of(named, "failOnLoss", ("true", "false"), "true") == "true",
    )


def format_events(ranges: Mapping[int, tuple[int, int]]) -> str:
    """Return the value of the option ``events`` for (after, upto] of each shard."""
    return json.dumps({str(shard): range_ for shard, range_ in sorted(ranges.items())})


def store_url(named: Mapping[str, str]) -> str:
    """Return the store's URL from the options, by lower-case name, or the environment."""
    url = named.get("url") or os.environ.get(ENVIRONMENT)
    if not url:
        raise SettingError(
            f"url must name the store, as wheel_store does, got none; set it by .option('url', …), or for all jobs by "
            f"the environment variable {ENVIRONMENT}"
        )
    return url


def _one_of(named: Mapping[str, str], name: str, values: tuple[str, ...], default: str) -> str:
    value = str(named.get(name.lower(), default)).lower()
    if value not in (allowed.lower() for allowed in values):
        raise SettingError(f"{name} must be {' or '.join(values)}, got {value!r}")
    return value


def _count(named: Mapping[str, str], name: str) -> int | None:
    text = named.get(name.lower())
    if text is None:
        return None
    number = whole_number(text)
    if not number:
        raise SettingError(f"{name} must be a number from 1 on, got {text!r}")
    return number


def _events(named: Mapping[str, str]) -> dict[int, tuple[int, int]] | None:
    text = named.get("events")
    if text is None:
        return None
    if str(named.get("table", PENDING)).lower() != HISTORY:
        raise SettingError(f"events must go with table={HISTORY}: pending tasks have no event numbers")
    try:
        ranges = {int(shard): (after, upto) for shard, (after, upto) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        ranges = {-1: (0, 0)}
    if any(type(number) is not int or number < 0 for shard, range_ in ranges.items() for number in (shard, *range_)):
        raise SettingError(
            f'events must be like {{"0": [512, 7680]}}: shard, number to start after, last number; got {text!r}'
        )
    return ranges


def _instant(named: Mapping[str, str], name: str) -> int | None:
    text = named.get(name.lower())
    if text is None:
        return None
    number = whole_number(text.removeprefix("-"))
    if number is not None:
        return -number if text.startswith("-") else number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingError(
            f"{name} must be an instant like 2027-01-15T08:00:00 (UTC) or 1800000000000 (milliseconds), got {text!r}"
        ) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000)


CHUNK, MAX_CHUNK = 500, 5_000

_TEXT = (types.StringType, types.VarcharType, types.CharType)
_WHOLE = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_TIME = (types.TimestampType, types.TimestampNTZType)
TEXTS = ("task", "args", "kwargs", "queue", "key", "group", "task_id")
_TYPES: dict[str, tuple[type[types.DataType], ...]] = {
    **dict.fromkeys(TEXTS, _TEXT),
    "eta": _TIME,
    "eta_ms": _WHOLE,
    "priority": _WHOLE,
    "expires": (*_TIME, *_WHOLE, types.FloatType, types.DoubleType),
}
#: Types without one text that is the same wherever it is written: 7 may be 7.0, and 10000000 be 1.0E7.
NO_ID = (
    *(types.BinaryType, types.FloatType, types.DoubleType),
    *(types.ArrayType, types.MapType, types.StructType, types.VariantType),
)


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The options of a write. ``url`` is the database's own, so that executors can use it."""

    url: str
    batch: str
    key: str | None
    app: str | None
    chunk: int


def read_target(options: Mapping[str, str], schema: StructType, kind: str = "load") -> WriteTarget:
    """Parse the options of a write, and check the columns. Raises SettingError for a wrong one."""
    named = {name.lower(): value for name, value in options.items()}
    batch = named.get("batch", "").strip()
    if not batch:
        why, example = {
            "load": ("so that a repeated job loads it once", "reminders-2026-11-21"),
            "stream": ("so that a repeated micro-batch of its query is loaded once", "orders"),
        }[kind]
        raise SettingError(f"option batch must name this {kind}, {why}; .option('batch', '{example}')")
    if rule := text_rule(batch):
        raise SettingError(f"option batch must be {rule}, got {batch!r:.60}")
    check_columns(schema, named.get("key"))
    text = named.get("chunk", str(CHUNK))
    chunk = whole_number(text)
    if chunk is None or not 1 <= chunk <= MAX_CHUNK:
        raise SettingError(f"option chunk must be a whole number from 1 to {MAX_CHUNK:,}, got {text!r}")
    return WriteTarget(database_url(store_url(named)), batch, named.get("key"), named.get("app"), chunk)


def check_columns(schema: StructType, key: str | None) -> None:
    names = schema.fieldNames()
    if key is not None and key not in names:
        raise SettingError(f"option key must name a column, got {key!r}; there are {', '.join(names)}")
    if key is not None and isinstance(schema[key].dataType, NO_ID):
        type_ = schema[key].dataType.simpleString()
        raise SettingError(f"option key must name a column of texts, whole numbers or times, got {key} of {type_}")
    if unknown := [name for name in names if name not in COLUMNS and name != key]:
        raise SettingError(
            f"columns must be among {', '.join(COLUMNS)}, or be named by option key; got {', '.join(unknown)}; "
            "remove the others with select or drop"
        )
    if "task" not in names or ("eta" in names) == ("eta_ms" in names):
        raise SettingError(f"columns must include task, and one of eta and eta_ms; got {', '.join(names)}")
    for field in schema.fields:
        allowed = _TYPES.get(field.name)
        if allowed is not None and not isinstance(field.dataType, allowed):
            types_ = " or ".join(dict.fromkeys(one.typeName() for one in allowed))
            hint = "; to_json converts a struct" if field.name in ("args", "kwargs") else ""
            raise SettingError(f"column {field.name} must be {types_}, got {field.dataType.simpleString()}{hint}")
