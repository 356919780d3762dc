"""The durable store: its tables are the log, and each lane has an offset in it.

::

    model, schedule_model, audit_model, store_model   the values      message_pack   many messages in few bytes
    ports         the methods that the engine calls                   place          a URL's database
    url           a URL ─► SqlStore                                   bell           wakes schedulers
    sql           the store on any SQL database, by feature           sqlite, postgresql   what differs

Values and ``ports`` need nothing but Python; the other modules are imported when a store is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheel.store.url import migrate_store as migrate_store
    from celery_wheel.store.url import move_store as move_store
    from celery_wheel.store.url import open_store as open_store


def __getattr__(name: str) -> Any:
    """Import ``url`` at the first use of one of its functions: SQLAlchemy takes long."""
    if name not in ("migrate_store", "move_store", "open_store"):
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    from celery_wheel.store import url

    return getattr(url, name)
