"""Opening the store for checks and commands: where its tables are to be made by Django, how."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

from celery_wheel.conf import Conf
from celery_wheel.errors import StoreUnusable
from celery_wheel.store import open_store as open_url
from celery_wheel.store.sql import SqlStore
from django_wheel.database import store_alias


class NotMigrated(StoreUnusable):
    """The database is there, but its tables are not those that this version needs."""

    hint = ""


def open_store(app: Any) -> SqlStore:
    """Open the app's store to read. Raises NotMigrated with the command to run, or StoreUnusable."""
    conf = Conf(app)
    try:
        return open_url(conf.store, durability=conf.durability, shards=None, create=False)
    except StoreUnusable as error:
        if (alias := store_alias()) is None or "migrate" not in str(error):
            raise
        refused = NotMigrated(str(error))
        refused.hint = _remedy(alias)
        raise refused from error


def _remedy(alias: str) -> str:
    """What to run: also where Django has the migrations down as done, because the tables were to be elsewhere then."""
    migrate = f"python manage.py migrate django_wheel --database={alias}"
    recorder = MigrationRecorder(connections[alias])
    if recorder.has_table() and ("django_wheel", "0001_initial") in recorder.applied_migrations():
        forget = f"python manage.py migrate django_wheel zero --fake --database={alias}"
        return f"Run: {forget}; then: {migrate}"
    return f"Run: {migrate}"
