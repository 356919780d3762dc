"""Conditions of a query as conditions of the store's statements, so that fewer rows travel.

::

    task = 'app.remind'   queue IN (…)   lateness_ms > 1000   key IS NOT NULL      as they are
    due < TIMESTAMP …     at >= …                                                  to the millisecond, a little too wide

Only where it is asked for, and only for a DataFrame that is used in one query. Spark (4.3) keeps what a source has
planned with the DataFrame and not with the query: ``frame.where(a).count()`` and then ``frame.count()`` counted the
rows of ``a`` both times, and both sides of ``frame.where(a).union(frame)`` were those rows. The options ``queue``,
``task`` and of due times belong to the DataFrame and have no such trap.

Where ``spark.sql.python.filterPushdown.enabled`` is not true, Spark refuses every read of a source that takes them.

Spark checks each of them once more on what comes, so that one which is left out, or is too wide, costs only time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import datasource as ds
from pyspark.sql.types import TimestampType

from celery_wheel.pipeline.columns import COLUMNS, Col
from celery_wheel.pipeline.source.pieces import Value, Where

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

_OPERATORS: dict[type, str] = {
    ds.EqualTo: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}

#: More values than this are better compared by Spark.
MOST_VALUES = 500


@dataclass(frozen=True, slots=True)
class Pushed:
    """A condition on a column: ``operator`` with its values, instants in milliseconds."""

    column: Col
    operator: str
    values: tuple[Value, ...] = ()

    def where(self, *, outcomes: bool = False) -> Where:
        sql = self.column.at_outcome if outcomes else self.column.sql
        if self.operator == "IN":
            return Where().add(f"({sql}) IN ({', '.join('?' * len(self.values))})", *self.values)
        return Where().add(f"({sql}) {self.operator} {'?' if self.values else ''}", *self.values)


def pushed(table: str, filters: Sequence[ds.Filter]) -> list[Pushed]:
    """What of the conditions, all of which have to hold, a statement can say."""
    columns = {column.name: column for column in COLUMNS[table]}
    return [found for one in filters for found in _pushed(columns, one)]


def _pushed(columns: dict[str, Col], one: Any) -> list[Pushed]:
    column = columns.get(".".join(getattr(one, "attribute", ())))
    if column is None:
        return []
    if isinstance(one, (ds.IsNull, ds.IsNotNull)):
        return [Pushed(column, "IS NULL" if isinstance(one, ds.IsNull) else "IS NOT NULL")]
    if isinstance(one, ds.In):
        return _in(column, one.value)
    operator = _OPERATORS.get(type(one))
    if operator is None:
        return []
    if isinstance(column.type, TimestampType):
        return _instant(column, operator, one.value)
    return [Pushed(column, operator, (one.value,))] if _fits(one.value) else []


def _in(column: Col, values: Sequence[Any]) -> list[Pushed]:
    fit = len(values) <= MOST_VALUES and all(_fits(value) for value in values)
    return [Pushed(column, "IN", tuple(values))] if fit and values else []


def _fits(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool) and "\0" not in str(value)


def _instant(column: Col, operator: str, value: Any) -> list[Pushed]:
    if not isinstance(value, datetime):
        return []
    since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
    low, high = since // _MS, -(-since // _MS)
    bounds = [Pushed(column, ">=", (low,))] if operator in ("=", ">", ">=") else []
    return bounds + ([Pushed(column, "<=", (high,))] if operator in ("=", "<", "<=") else [])
