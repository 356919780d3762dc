"""``wheel_transactional``: what a call asks of the wheel is part of the caller's own database transaction.

::

    apply_async, cancel, … ──► inbox_of(app).ask ──► INSERT into wheel_inbox, on the caller's own connection
                                                        commit: a holder takes it in      rollback: it never was

So the database itself keeps the promise, savepoints included; nothing is sent afterwards that could fail. The store has
to be in that database: ``wheel_store = "django://default"``. Whose connection it is, the package knows that added the
scheme: its entry point in GROUP gives a function from the name behind ``://`` to an ``Inbox``.

Not here: SQLAlchemy, which a process that only schedules need not load.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol

from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError

#: Of the databases whose transactions calls can be part of, by the scheme of ``wheel_store``.
GROUP = "celery_wheel.transactions"


class Inbox(Protocol):
    """The store's inbox, as seen from the caller's transaction."""

    @property
    def in_transaction(self) -> bool:
        """Whether what is asked now can still be rolled back."""

    def check(self) -> None:
        """Raise SettingError where nothing could be asked."""

    def ask(self, shard: int, kind: str, payload: bytes) -> int:
        """As ``store.ask``. Raises what the database raises, and SettingError where the open transaction is on another
        database, whose rollback would not reach this one."""


def wanted(app: Any, asked: bool | None) -> bool:
    """Whether a call that says so (None: nothing) is to be part of a transaction."""
    return bool(Conf(app).transactional if asked is None else asked)


def inbox_of(app: Any) -> Inbox:
    """Raises SettingError, with what to do, where the store is in no database whose transactions could be joined."""
    borrowed: Inbox | None = vars(app).get("_wheel_inbox")  # by celery_wheel.testing
    if borrowed is not None:
        return borrowed
    scheme, _, name = Conf(app).store.partition("://")
    inbox: Inbox = _opener(scheme)(name)
    inbox.check()
    return inbox


@cache
def _opener(scheme: str) -> Any:
    for added in entry_points(group=GROUP, name=scheme):
        try:
            return added.load()
        except ImportError as error:
            raise SettingError(
                f"wheel_transactional needs what wheel_store = {scheme}://… names, which cannot be imported ({error}); "
                f"run: pip install 'celery-wheel[{scheme}]'"
            ) from error
    # Only the scheme is shown: the rest of it may hold a password.
    raise SettingError(
        "wheel_transactional needs wheel_store = django://default (or another entry of DATABASES): the store has to be "
        f"in the database of the caller's transaction, got {scheme}://…"
    )
