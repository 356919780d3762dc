"""Conditions of a query as conditions of the store's statements, so that fewer rows are transferred.

::

    task = 'app.remind'   queue IN (…)   lateness_ms > 1000   key IS NOT NULL      unchanged
    due < TIMESTAMP …     at >= …                                                  widened to whole milliseconds

Off unless the option ``pushdown`` is true, and only for a DataFrame that is used in one query. Spark (4.3) keeps the
plan of a source with the DataFrame and not with the query: ``frame.where(a).count()`` and then ``frame.count()``
counted the rows of ``a`` both times, and both sides of ``frame.where(a).union(frame)`` were those rows. The options
``queue``, ``task`` and those of due times belong to the DataFrame and have no such trap.

Where ``spark.sql.python.filterPushdown.enabled`` is not true, Spark refuses every read of a source with pushdown.

Spark evaluates every condition on the returned rows as well, so a condition that is omitted here, or is wider, costs
only time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import datasource as ds
from pyspark.sql.types import TimestampType

from celery_wheel.pipeline.source.statements import COLUMNS, Conditions, SourceColumn, Value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

_OPERATORS: dict[type, str] = {
    ds.EqualTo: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}

#: Spark compares longer lists of values itself.
MAX_VALUES = 500


@dataclass(frozen=True, slots=True)
class PushedCondition:
    """A condition on a column: ``operator`` with its values, instants in milliseconds."""

    column: SourceColumn
    operator: str
    values: tuple[Value, ...] = ()

    def where(self, *, outcomes: bool = False) -> Conditions:
        sql = self.column.outcome_sql if outcomes else self.column.sql
        if self.operator == "IN":
            return Conditions().add(f"({sql}) IN ({', '.join('?' * len(self.values))})", *self.values)
        return Conditions().add(f"({sql}) {self.operator} {'?' if self.values else ''}", *self.values)


def pushed_conditions(table: str, filters: Sequence[ds.Filter]) -> list[PushedCondition]:
    """Return the conditions that a statement can express, out of ``filters``, which Spark joins by AND."""
    columns = {column.name: column for column in COLUMNS[table]}
    return [condition for filter_ in filters for condition in _translate(columns, filter_)]


def _translate(columns: dict[str, SourceColumn], filter_: Any) -> list[PushedCondition]:
    column = columns.get(".".join(getattr(filter_, "attribute", ())))
    if column is None:
        return []
    if isinstance(filter_, (ds.IsNull, ds.IsNotNull)):
        return [PushedCondition(column, "IS NULL" if isinstance(filter_, ds.IsNull) else "IS NOT NULL")]
    if isinstance(filter_, ds.In):
        return _in(column, filter_.value)
    operator = _OPERATORS.get(type(filter_))
    if operator is None:
        return []
    if isinstance(column.type, TimestampType):
        return _instant(column, operator, filter_.value)
    return [PushedCondition(column, operator, (filter_.value,))] if _is_expressible(filter_.value) else []


def _in(column: SourceColumn, values: Sequence[Any]) -> list[PushedCondition]:
    expressible = len(values) <= MAX_VALUES and all(_is_expressible(value) for value in values)
    return [PushedCondition(column, "IN", tuple(values))] if expressible and values else []


def _is_expressible(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool) and "\0" not in str(value)


def _instant(column: SourceColumn, operator: str, value: Any) -> list[PushedCondition]:
    if not isinstance(value, datetime):
        return []
    since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
    low, high = since // _MS, -(-since // _MS)
    bounds = [PushedCondition(column, ">=", (low,))] if operator in ("=", ">", ">=") else []
    return bounds + ([PushedCondition(column, "<=", (high,))] if operator in ("=", "<", "<=") else [])
