"""``wheel_store = "django://default"``: the wheel's tables in an entry of ``DATABASES``.

The store opens its own connections to that database, with its own settings, and does not use Django's. ``WheelRouter``
makes migrations create the tables there only. Checks and commands open the store by ``open_store``, whose error names
the remedy where Django's migrations have not made the tables.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils.connection import ConnectionDoesNotExist
from sqlalchemy import URL

from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError, StoreOutdated, StoreUnusable, StoreUnused
from celery_wheel.store import open_store as open_url
from celery_wheel.store.place import StorePlace
from celery_wheel.store.ports import FullStore
from django_wheel.project import project_conf

SCHEME = "django://"


def place_of(alias: str) -> StorePlace:
    """Return the database of an entry of ``DATABASES``. Raises SettingError for one that cannot hold the tables."""
    try:
        connection: Any = connections[alias or "default"]
    except (ImproperlyConfigured, ConnectionDoesNotExist) as error:
        raise SettingError(f"wheel_store must name an entry of DATABASES, got {SCHEME}{alias} ({error})") from error
    settings = connection.settings_dict
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        raise SettingError(
            f"wheel_store must name a database that other processes can read, got {SCHEME}{alias}, which is in memory. "
            "Django's test runner puts SQLite in memory unless DATABASES has a NAME under TEST"
        )
    if connection.vendor == "sqlite":
        url = URL.create("sqlite", database=str(settings["NAME"]))
    elif connection.vendor == "postgresql":
        url = _postgresql(settings)
    else:
        raise SettingError(
            f"wheel_store must name a SQLite or PostgreSQL database, got {SCHEME}{alias} ({connection.vendor}). "
            "Name another entry, or a file: sqlite:////var/lib/wheel/wheel.sqlite3"
        )
    return StorePlace(url, partial(migrate_command, alias or "default"), partial(make_tables, alias or "default"))


def migrate_command(alias: str) -> str:
    """Return the command that makes the wheel's tables: two commands where Django would have nothing to apply."""
    migrate = f"python manage.py migrate django_wheel --database={alias}"
    if not is_recorded_without_tables(alias):
        return migrate
    return f"python manage.py migrate django_wheel zero --fake --database={alias}; then: {migrate}"


def make_tables(alias: str) -> None:
    migrate = partial(call_command, "migrate", "django_wheel", database=alias, verbosity=0)
    if is_recorded_without_tables(alias):
        migrate("zero", fake=True)
    migrate()


def is_recorded_without_tables(alias: str) -> bool:
    """Whether Django has recorded the first migration while the wheel's tables were in another database."""
    connection: Any = connections[alias]
    if connection.vendor == "sqlite" and not Path(connection.settings_dict["NAME"]).exists():  # connecting makes it
        return False
    from django_wheel.models import MetaRow  # models exist only after this module has been imported

    recorder = MigrationRecorder(connection)
    recorded = recorder.has_table() and ("django_wheel", "0001_initial") in recorder.applied_migrations()
    return recorded and MetaRow._meta.db_table not in connection.introspection.table_names()


def _postgresql(settings: dict[str, Any]) -> URL:
    """Return the URL of the database. ``HOST`` and ``PORT`` may be lists of libpq: h1,h2 and 5432,5433."""
    hosts, ports = str(settings["HOST"] or ""), str(settings["PORT"] or "")
    libpq = _libpq_parameters()  # the others of ``OPTIONS`` are Django's own
    query: dict[str, Any] = {name: str(value) for name, value in settings["OPTIONS"].items() if name in libpq}
    several = "," in hosts
    if several:
        each = ports.split(",") * (1 if "," in ports else hosts.count(",") + 1)
        query["host"] = tuple(f"{host}:{port or 5432}" for host, port in zip(hosts.split(","), each, strict=True))
    return URL.create(
        "postgresql",
        username=settings["USER"] or None,
        password=settings["PASSWORD"] or None,
        host=None if several else hosts or None,
        port=int(ports) if ports and not several else None,
        database=settings["NAME"] or None,
        query=query,
    )


def _libpq_parameters() -> set[str]:
    """The parameters of libpq beside those of the URL; none without the driver, for which the store then asks."""
    try:
        from psycopg.pq import Conninfo
    except ImportError:
        return set()
    return {one.keyword.decode() for one in Conninfo.get_defaults()} - {"user", "password", "host", "port", "dbname"}


def store_alias() -> str | None:
    """Return the alias in ``DATABASES`` of the wheel's tables; None if the store is a database of its own."""
    conf = project_conf()
    if conf is None or not conf.store.startswith(SCHEME):
        return None
    return conf.store.removeprefix(SCHEME) or "default"


class WheelRouter:
    """Routes migrations and queries of the wheel's tables to the store's database, before all other routers."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        if model._meta.app_label != "django_wheel":
            return None
        alias = store_alias()
        if alias is None:
            raise ImproperlyConfigured(
                "the wheel's tables are in no entry of DATABASES, so its models cannot be queried. Use "
                "`from django_wheel import wheel`, or set wheel_store to django://default"
            )
        return alias

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == store_alias() if app_label == "django_wheel" else None


class NotMigrated(StoreUnusable):
    """The database has not the tables that this version needs; ``hint`` names the command to run."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def open_store(app: Any) -> FullStore:
    """Open the app's store for reading. Raises NotMigrated, StoreUnused or another StoreUnusable."""
    conf, alias = Conf(app), store_alias()
    try:
        return open_url(conf.store, durability=conf.durability, shards=None, create=False, keys=conf.encryption_keys)
    except (StoreOutdated, StoreUnused) as error:
        if alias is None or (isinstance(error, StoreUnused) and not _unapplied(alias)):
            raise
        raise NotMigrated(str(error), f"Run: {migrate_command(alias)}") from error


def _unapplied(alias: str) -> bool:
    """Whether migrations are missing. Unused tables do not tell their version, but Django knows its migrations."""
    loader = MigrationLoader(connections[alias])
    needed = {key for key in loader.disk_migrations if key[0] == "django_wheel"}
    return not needed <= loader.applied_migrations.keys()
