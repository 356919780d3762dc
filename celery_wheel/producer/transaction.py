"""``wheel_transactional``: a call's message or request is part of the caller's own database transaction.

It is an INSERT into wheel_inbox on the caller's own connection, so the database itself keeps the promise, savepoints
included. The store must be in that database: ``wheel_store = "django://default"``. A process that only schedules need
not load SQLAlchemy: it is not imported here.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol

from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError

#: Entry points of the databases whose transactions a call can join, by the scheme of ``wheel_store``.
GROUP = "celery_wheel.transactions"


class TransactionalInbox(Protocol):
    """The store's inbox, as seen from the caller's transaction."""

    @property
    def in_transaction(self) -> bool:
        """Whether a request of this moment can still be rolled back."""

    def check(self) -> None:
        """Raise SettingError where no request could be written."""

    def put_command(self, shard: int, kind: str, payload: bytes) -> int:
        """Write a request as ``store.put_command`` does.

        Raises the database's errors, and SettingError where the open transaction is on another database, whose rollback
        would not affect this one.
        """


def is_transactional(app: Any, option: bool | None) -> bool:
    """Whether a call is part of a transaction; ``option`` is the call's own, None without one."""
    return bool(Conf(app).transactional if option is None else option)


def inbox_of(app: Any) -> TransactionalInbox:
    """Return the inbox of the app's store. Raises SettingError where no transaction can include it."""
    replacement: TransactionalInbox | None = vars(app).get("_wheel_inbox")  # of celery_wheel.testing
    if replacement is not None:
        return replacement
    scheme, _, name = Conf(app).store.partition("://")
    inbox: TransactionalInbox = _opener(scheme)(name)
    inbox.check()
    return inbox


@cache
def _opener(scheme: str) -> Any:
    for entry_point in entry_points(group=GROUP, name=scheme):
        try:
            return entry_point.load()
        except ImportError as error:
            raise SettingError(
                f"wheel_transactional needs the package of wheel_store = {scheme}://…, which cannot be imported "
                f"({error}); run: pip install 'celery-wheel[{scheme}]'"
            ) from error
    # The text has the scheme only: the rest of the URL may contain a password.
    raise SettingError(
        "wheel_transactional needs wheel_store = django://default (or another entry of DATABASES): the store must be "
        f"in the database of the caller's transaction, got {scheme}://…"
    )
