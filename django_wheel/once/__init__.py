"""``once`` for tasks that change a database of Django, in Django's transactions: see ``celery_wheel.worker.once``.

``"django_wheel.once"`` in ``INSTALLED_APPS`` brings the table; each database that tasks name has one of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from django.apps import apps as installed  # the module ``apps`` of this package has that name
from django.db import IntegrityError, connections, transaction

from celery_wheel.errors import SettingError
from celery_wheel.worker.once import NAME, RETENTION, F, IsDone, once_in


def once(*, using: str = "default", retention: timedelta = RETENTION) -> Callable[[F], F]:
    """Return the decorator for tasks that change a database of Django. It stands below ``@app.task``.

    Args:
        using: the entry of ``DATABASES``, in whose transaction the task runs.
        retention: for so long a copy of the task's message is known.
    """
    return once_in(DjangoLedger(using), retention)


class DjangoLedger:
    """Implements ``Ledger``."""

    gives: str | None = None

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def check(self) -> None:
        if not installed.is_installed("django_wheel.once"):
            raise SettingError('INSTALLED_APPS must have "django_wheel.once", the table of once; nothing was run')
        if NAME not in connections[self._alias].introspection.table_names():
            raise SettingError(
                f"DATABASES[{self._alias!r}] must have the table {NAME}, got none; nothing was run; run: python "
                f"manage.py migrate django_wheel_once --database={self._alias}"
            )

    def transaction(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using=self._alias)

    def add(self, given: Any, id_: str, until_ms: int) -> None:
        try:
            with transaction.atomic(using=self._alias):
                self._markers.create(id=id_, until_ms=until_ms)
        except IntegrityError as error:
            raise IsDone from error

    def keep(self, given: Any, id_: str, result: bytes) -> None:
        self._markers.filter(id=id_).update(result=result)

    def result(self, id_: str) -> bytes | None:
        found: bytes | None = self._markers.filter(id=id_).values_list("result", flat=True).first()
        return found

    def remove(self, now_ms: int, most: int) -> None:
        old = self._markers.filter(until_ms__lt=now_ms).values_list("id", flat=True)
        self._markers.filter(id__in=list(old[:most])).delete()

    @property
    def _markers(self) -> Any:
        from django_wheel.once.models import Marker  # models exist only where the app is installed

        return Marker.objects.using(self._alias)
