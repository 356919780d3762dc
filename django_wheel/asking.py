"""What checks and commands ask of the store and of the broker, once, with a short patience."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from kombu.exceptions import OperationalError

from celery_wheel.broker.queues import wheel_queue
from celery_wheel.conf import Conf
from celery_wheel.control import Wheel
from celery_wheel.errors import BrokerError, StoreOutdated, StoreUnusable, StoreUnused
from celery_wheel.store import open_store as open_url
from celery_wheel.store import schema
from celery_wheel.store.sql import SqlStore
from django_wheel.database import store_alias

CONNECT_S = 3


class NotMigrated(StoreUnusable):
    """The database is there, but its tables are not those that this version needs; ``hint``: what to run."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def open_store(app: Any) -> SqlStore:
    """Open the app's store to read. Raises NotMigrated, StoreUnused or another StoreUnusable."""
    conf, alias = Conf(app), store_alias()
    try:
        return open_url(conf.store, durability=conf.durability, shards=None, create=False)
    except StoreOutdated as error:
        if alias is None:
            raise
        raise NotMigrated(str(error), _remedy(alias)) from error
    except StoreUnused as error:
        if alias is None or not _unapplied(alias):
            raise
        raise NotMigrated(str(error), _remedy(alias)) from error


def _unapplied(alias: str) -> bool:
    """Tables that nobody has used do not say of what version they are; Django knows what it has run."""
    loader = MigrationLoader(connections[alias])
    needed = {key for key in loader.disk_migrations if key[0] == "django_wheel"}
    return not needed <= loader.applied_migrations.keys()


def _remedy(alias: str) -> str:
    """What to run: also where Django has the migrations down as done, because the tables were to be elsewhere then."""
    migrate = f"python manage.py migrate django_wheel --database={alias}"
    recorder = MigrationRecorder(connections[alias])
    done = recorder.has_table() and ("django_wheel", "0001_initial") in recorder.applied_migrations()
    if done and schema.meta.name not in connections[alias].introspection.table_names():
        forget = f"python manage.py migrate django_wheel zero --fake --database={alias}"
        return f"Run: {forget}; then: {migrate}"
    return f"Run: {migrate}"


def waiting_without_holder(app: Any) -> dict[int, int]:
    """How many messages are in the wheel's queue of each shard that nobody holds; those with none are left out."""
    wheel = Wheel(app)
    try:
        silent = [one.shard for one in wheel.status() if not one.live]
    finally:
        wheel.close()
    if not silent:
        return {}
    namespace = Conf(app).namespace
    with _connected(app) as connection:
        counts = {shard: _count(connection, namespace, shard) for shard in silent}
    return {shard: count for shard, count in counts.items() if count}


def _count(connection: Any, namespace: str, shard: int) -> int:
    queue: Any = wheel_queue(namespace, shard)
    with connection.channel() as channel:
        try:
            return int(queue(channel).queue_declare(passive=True).message_count)
        except connection.channel_errors:  # there is no such queue
            return 0


def eviction_policy(app: Any) -> str | None:
    """Redis's ``maxmemory-policy``; None where the broker is no Redis."""
    with _connected(app) as connection:
        if connection.transport.driver_type != "redis":
            return None
        return str(connection.default_channel.client.info("memory").get("maxmemory_policy"))


@contextmanager
def _connected(app: Any) -> Iterator[Any]:
    """A connection to the broker that gives up soon. Raises BrokerError where there is none."""
    connection = app.connection_for_write()
    connection.connect_timeout = CONNECT_S
    try:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
        except (OperationalError, OSError, *connection.connection_errors) as error:
            raise BrokerError(f"the broker at {connection.as_uri()} does not answer ({error})") from error
        yield connection
    finally:
        connection.release()
