"""Options of a write, as Spark hands them over: text, with names in any case; and what columns the rows may have.

::

    batch    name of this load: one that is committed is not loaded again, one that was broken off is resumed
    url      store to load into, as ``wheel_store`` has it        default: the environment's CELERY_WHEEL_STORE
    key      column whose value makes a row idempotent, in whatever load it comes
    app      "proj:app", importable where Spark's executors run: its routes, serializers and tasks' options count
    chunk    messages packed together                             default: 500

Columns: task and eta (a timestamp; without a zone: UTC) or eta_ms; and any of args and kwargs (JSON text), queue, key,
priority, expires (a timestamp, or seconds from now), task_id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import types
from pyspark.sql.types import StructType

from celery_wheel.bulk.rules import COLUMNS
from celery_wheel.errors import SettingError
from celery_wheel.pipeline.source.opened import plain_url
from celery_wheel.pipeline.source.options import store_url
from celery_wheel.store.text import text_rule

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


@dataclass(frozen=True, slots=True)
class Target:
    """Where a load goes, and how. ``url`` is the database's own, so that it means the same to executors."""

    url: str
    batch: str
    key: str | None
    app: str | None
    chunk: int


def target(given: Mapping[str, str], schema: StructType) -> Target:
    """Raises SettingError, which says what must be."""
    named = {name.lower(): value for name, value in given.items()}
    batch = named.get("batch", "").strip()
    if not batch:
        raise SettingError(
            "option batch must be given: a name for this load, so that the same job run again loads once; "
            ".option('batch', 'reminders-2026-11-21')"
        )
    if rule := text_rule(batch):
        raise SettingError(f"option batch must be {rule}, got {batch!r:.60}")
    key = named.get("key")
    check_columns(schema, key)
    return Target(plain_url(store_url(named)), batch, key, named.get("app"), _chunk(named.get("chunk", str(CHUNK))))


def _chunk(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_CHUNK:
        raise SettingError(f"option chunk must be a whole number from 1 to {MAX_CHUNK:,}, got {text!r}")
    return int(text)


def check_columns(schema: StructType, key: str | None) -> None:
    names = schema.fieldNames()
    if key is not None and key not in names:
        raise SettingError(f"option key must name a column, got {key!r}; there are {', '.join(names)}")
    if unknown := [name for name in names if name not in COLUMNS and name != key]:
        raise SettingError(
            f"columns must be among {', '.join(COLUMNS)}, or be named by option key; got {', '.join(unknown)}; "
            "leave the others out with select or drop"
        )
    if "task" not in names or ("eta" in names) == ("eta_ms" in names):
        raise SettingError(f"columns must include task, and one of eta and eta_ms; got {', '.join(names)}")
    for field in schema.fields:
        allowed = _TYPES.get(field.name)
        if allowed is not None and not isinstance(field.dataType, allowed):
            words = " or ".join(dict.fromkeys(one.typeName() for one in allowed))
            hint = "; to_json makes it of a struct" if field.name in ("args", "kwargs") else ""
            raise SettingError(f"column {field.name} must be {words}, got {field.dataType.simpleString()}{hint}")
