"""The prepared statements of a store by feature and name, for tests of their plans."""

from __future__ import annotations

from typing import Any

from celery_wheel.store.sql.browse.overview import OverviewStatements
from celery_wheel.store.sql.changes import ChangeStatements
from celery_wheel.store.sql.control import ControlStatements
from celery_wheel.store.sql.dispatch import DispatchStatements
from celery_wheel.store.sql.history import HistoryStatements
from celery_wheel.store.sql.holding import LeaseStatements
from celery_wheel.store.sql.intake import IntakeStatements
from celery_wheel.store.sql.loads import LoadStatements
from celery_wheel.store.sql.schedules import ScheduleStatements
from celery_wheel.store.sql.statement import ObjectInsert, Prepared
from celery_wheel.store.sql.store import SqlStore

FEATURES: dict[str, Any] = {
    "changes": ChangeStatements,
    "control": ControlStatements,
    "dispatch": DispatchStatements,
    "history": HistoryStatements,
    "holding": LeaseStatements,
    "intake": IntakeStatements,
    "loads": LoadStatements,
    "overview": OverviewStatements,
    "schedules": ScheduleStatements,
}


def prepared(store: SqlStore, name: str) -> Prepared:
    """Return a statement by its name, like ``"dispatch.count"``."""
    feature, _, statement = name.partition(".")
    found = getattr(store.database.statements.of(FEATURES[feature]), statement)
    return found.statement if isinstance(found, ObjectInsert) else found  # type: ignore[no-any-return]
