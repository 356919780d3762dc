"""Options of a write of the data source ``wheel``, and the columns that its rows may have.

::

    batch    name of this load: a committed load is not repeated, an interrupted one is resumed; or name of the stream
    url      store to load into, as ``wheel_store`` has it        default: the environment's CELERY_WHEEL_STORE
    key      column whose value makes a row idempotent in every load
    app      "proj:app", importable by Spark's executors: its routes, serializers and tasks' options apply
    chunk    messages in one packed chunk                         default: 500

Columns: task and eta (a timestamp; without a zone: UTC) or eta_ms; and any of args and kwargs (JSON text), queue, key,
priority, expires (a timestamp, or seconds from now), task_id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import types
from pyspark.sql.types import StructType

from celery_wheel.bulk_load.reject_rules import COLUMNS
from celery_wheel.errors import SettingError
from celery_wheel.pipeline.source.options import store_url
from celery_wheel.pipeline.source.snapshot import database_url
from celery_wheel.values.text import text_rule, whole_number

CHUNK, MAX_CHUNK = 500, 5_000

_TEXT = (types.StringType, types.VarcharType, types.CharType)
_WHOLE = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_TIME = (types.TimestampType, types.TimestampNTZType)
_TYPES: dict[str, tuple[type[types.DataType], ...]] = {
    **dict.fromkeys(("task", "args", "kwargs", "queue", "key", "task_id"), _TEXT),
    "eta": _TIME,
    "eta_ms": _WHOLE,
    "priority": _WHOLE,
    "expires": (*_TIME, *_WHOLE, types.FloatType, types.DoubleType),
}
#: Types without one text that is the same wherever it is written: 7 may be 7.0, and 10000000 be 1.0E7.
NO_ID = (
    types.BinaryType,
    types.FloatType,
    types.DoubleType,
    types.ArrayType,
    types.MapType,
    types.StructType,
    types.VariantType,
)


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The options of a write. ``url`` is the database's own, so that executors can use it."""

    url: str
    batch: str
    key: str | None
    app: str | None
    chunk: int


#: The option ``batch`` in words, with an example, by what is written.
_BATCH = {
    "load": ("so that a repeated job loads it once", "reminders-2026-11-21"),
    "stream": ("so that a repeated micro-batch of its query is loaded once", "orders"),
}


def read_target(options: Mapping[str, str], schema: StructType, kind: str = "load") -> WriteTarget:
    """Parse the options of a write, and check the columns. Raises SettingError for a wrong one."""
    named = {name.lower(): value for name, value in options.items()}
    batch = named.get("batch", "").strip()
    if not batch:
        why, example = _BATCH[kind]
        raise SettingError(f"option batch must name this {kind}, {why}; .option('batch', '{example}')")
    if rule := text_rule(batch):
        raise SettingError(f"option batch must be {rule}, got {batch!r:.60}")
    key = named.get("key")
    check_columns(schema, key)
    return WriteTarget(
        database_url(store_url(named)), batch, key, named.get("app"), _chunk(named.get("chunk", str(CHUNK)))
    )


def _chunk(text: str) -> int:
    number = whole_number(text)
    if number is None or not 1 <= number <= MAX_CHUNK:
        raise SettingError(f"option chunk must be a whole number from 1 to {MAX_CHUNK:,}, got {text!r}")
    return number


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
