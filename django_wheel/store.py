"""The store as checks and commands open it, with the remedy if Django's migrations have not created its tables."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.migrations.loader import MigrationLoader

from celery_wheel.conf import Conf
from celery_wheel.errors import StoreOutdated, StoreUnusable, StoreUnused
from celery_wheel.store import open_store as open_url
from celery_wheel.store.ports import FullStore
from django_wheel.database import migrate_command, store_alias


class NotMigrated(StoreUnusable):
    """The database has not the tables that this version needs; ``hint`` names the command to run."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def open_store(app: Any) -> FullStore:
    """Open the app's store for reading. Raises NotMigrated, StoreUnused or another StoreUnusable."""
    conf, alias = Conf(app), store_alias()
    try:
        return open_url(conf.store, durability=conf.durability, shards=None, create=False)
    except StoreOutdated as error:
        if alias is None:
            raise
        raise NotMigrated(str(error), f"Run: {migrate_command(alias)}") from error
    except StoreUnused as error:
        if alias is None or not _unapplied(alias):
            raise
        raise NotMigrated(str(error), f"Run: {migrate_command(alias)}") from error


def _unapplied(alias: str) -> bool:
    """Whether migrations are missing. Unused tables do not tell their version, but Django knows its migrations."""
    loader = MigrationLoader(connections[alias])
    needed = {key for key in loader.disk_migrations if key[0] == "django_wheel"}
    return not needed <= loader.applied_migrations.keys()
