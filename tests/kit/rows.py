"""A row as plain values, whatever the form of its bytes: to compare rows of a store with those that were sent."""

from dataclasses import astuple, fields
from typing import Any

from celery_wheel.store.model import HOUR_MS, Route, Row, TallyKey


def values_of(row: Row) -> dict[str, Any]:
    """Return the values of a row by name: its own, those of its route, and its headers, properties and body. Values of
    a row on its way are left out: its task id, its line and whether it reports."""
    apart = ("route", "packed", "packing", "task_id", "line", "reports")
    own = {one.name: getattr(row, one.name) for one in fields(Row) if one.name not in apart}
    return own | dict(zip(Route.__slots__, astuple(row.route), strict=True)) | row.parts()._asdict()


def tally_key(row: Row) -> TallyKey:
    """Return the pending count in which a row is."""
    return TallyKey(row.due_ms // HOUR_MS, row.route.target, row.route.task)
