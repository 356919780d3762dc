"""The durable store: its tables are the log, and each lane has an offset in it.

::

    model         the values                         ports          the methods that other rooms call
    url           a URL ─► SqlStore                  place          a URL's database, and the command for its tables
    sql           the store on any SQL database      message_pack   many messages in few bytes
    sqlite        a SQLite file as its database      postgresql     a PostgreSQL database
    block         messages of a kind, as columns

``model`` and ``ports`` need nothing but Python; the other modules are imported when a store is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_wheel.store.sql.store import SqlStore
    from celery_wheel.store.store_model import MovedStore, Progress


def open_store(
    url: str, *, durability: str = "disk", shards: int | None = 1, create: bool = True, lease_ms: int = 2_000
) -> SqlStore:
    """Open or make the store at ``url``; see ``celery_wheel.store.url``."""
    from celery_wheel.store import url as opening  # SQLAlchemy takes long to import

    return opening.open_store(url, durability=durability, shards=shards, create=create, lease_ms=lease_ms)


def migrate_store(url: str) -> list[int]:
    """Bring an older store's tables to this version; see ``celery_wheel.store.url``."""
    from celery_wheel.store import url as opening  # as above

    return opening.migrate_store(url)


def move_store(old_url: str, new_url: str, now_ms: int, progress: Progress) -> MovedStore:
    """Move a store to another database; see ``celery_wheel.store.url``."""
    from celery_wheel.store import url as opening  # as above

    return opening.move_store(old_url, new_url, now_ms, progress)
