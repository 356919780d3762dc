"""``wheel_transactional`` in Django: the wheel's inbox, written on the caller's own connection.

The row commits and rolls back with the caller's transaction of DATABASES[alias], alias as in wheel_store =
"django://alias"; in autocommit mode it is committed at once. If the only open transaction is on another alias,
scheduling is refused, because a rollback there would not remove the row.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from django.apps import apps
from django.core.exceptions import AppRegistryNotReady, ImproperlyConfigured
from django.db import DatabaseError, connections, transaction

from celery_wheel.errors import SettingError
from celery_wheel.producer.transaction import TransactionalInbox
from celery_wheel.store.bell import CHANNEL, ring


@dataclass(frozen=True)
class _Ring:
    alias: str

    def __call__(self) -> None:
        connection = connections[self.alias]
        if connection.vendor == "sqlite":
            ring(str(connection.settings_dict["NAME"]))
        elif connection.vendor == "postgresql":
            with suppress(DatabaseError), connection.cursor() as cursor:  # schedulers look a second later
                cursor.execute(f"NOTIFY {CHANNEL}")


class DjangoInbox(TransactionalInbox):
    """Implements ``celery_wheel.producer.transaction.TransactionalInbox``."""

    def __init__(self, alias: str) -> None:
        self._alias = alias or "default"

    def check(self) -> None:
        try:
            apps.check_models_ready()
            found = connections.settings
        except (AppRegistryNotReady, ImproperlyConfigured) as error:
            raise SettingError(
                f"wheel_transactional needs Django, which is not set up in this process ({error}). Set "
                "DJANGO_SETTINGS_MODULE and call django.setup(), or schedule with wheel={'transactional': False}"
            ) from error
        if self._alias not in found:
            raise SettingError(
                f"wheel_store must name an entry of DATABASES, got django://{self._alias}; there are: "
                f"{', '.join(sorted(found))}"
            )
        if not apps.is_installed("django_wheel"):
            raise SettingError('wheel_transactional needs INSTALLED_APPS += ["django_wheel"], got none of that name')

    @property
    def in_transaction(self) -> bool:
        return bool(connections[self._alias].in_atomic_block or not connections[self._alias].get_autocommit())

    def put_command(self, shard: int, kind: str, payload: bytes) -> int:
        from django_wheel.models import InboxRow  # models need the apps to be ready

        self._check_alias()
        self._revive()
        item: int = InboxRow.objects.using(self._alias).create(shard=shard, kind=kind, payload=payload).pk
        self._ring_after_commit()
        return item

    def _ring_after_commit(self) -> None:
        """Tell the schedulers, once for a transaction.

        With autocommit off Django has no hook for the commit. There PostgreSQL itself notifies at the commit, and on
        SQLite the scheduler looks within a second.
        """
        connection, ring = connections[self._alias], _Ring(self._alias)
        if not (connection.in_atomic_block or connection.get_autocommit()):
            if connection.vendor == "postgresql":
                ring()
        elif all(hook[1] != ring for hook in connection.run_on_commit):
            transaction.on_commit(ring, using=self._alias)

    def _check_alias(self) -> None:
        if connections[self._alias].in_atomic_block:
            return
        others = sorted(one.alias for one in connections.all(initialized_only=True) if one.in_atomic_block)
        if others:
            raise SettingError(
                f"wheel_transactional needs a transaction on {self._alias!r}, where the wheel's tables are, got one on "
                f"{', '.join(map(repr, others))} only, whose rollback would not reach them. Nothing was scheduled. "
                f"Open transaction.atomic(using={self._alias!r}), or schedule with wheel={{'transactional': False}}"
            )

    def _revive(self) -> None:
        """Close a connection that the server has ended: a process without requests would keep it for ever."""
        connection = connections[self._alias]
        if connection.in_atomic_block or connection.connection is None or not connection.errors_occurred:
            return
        if not connection.is_usable():
            connection.close()
