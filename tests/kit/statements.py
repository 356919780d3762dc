"""The prepared statements of a store by feature and name, for tests of their plans."""

from typing import Any

from celery_wheel.store.sql.browse import herds, overview
from celery_wheel.store.sql.changes import ChangeStatements
from celery_wheel.store.sql.control import ControlStatements
from celery_wheel.store.sql.dispatch import DispatchStatements
from celery_wheel.store.sql.groups import GroupStatements
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
    "groups": GroupStatements,
    "history": HistoryStatements,
    "holding": LeaseStatements,
    "intake": IntakeStatements,
    "loads": LoadStatements,
    "schedules": ScheduleStatements,
}

OVERVIEW: dict[str, Any] = {
    "overview.shards": overview.SHARDS,
    "overview.lanes": overview.LANES,
    "overview.counts": overview.counts(with_seconds=True, with_names=True),
    "herds.hours": herds.HOURS,
    "herds.fullest": herds.FULLEST,
    "herds.names": herds.NAMES,
}


def prepared(store: SqlStore, name: str) -> Prepared:
    """Return a statement by its name, like ``"dispatch.count"``; those of OVERVIEW are made where they run."""
    if name in OVERVIEW:
        return store.database.statements(OVERVIEW[name])
    feature, _, statement = name.partition(".")
    found = getattr(store.database.statements.of(FEATURES[feature]), statement)
    return found.statement if isinstance(found, ObjectInsert) else found  # type: ignore[no-any-return]
