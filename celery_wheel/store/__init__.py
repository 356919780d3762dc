"""The durable store: the table is the log, the offset is the offset.

::

    model       the values                       ports       what everybody else asks of a store, and its answers
    opening     a URL ─► SqlStore                sql         the engine's port; with desk, changes, history, archived
    browse, loads, handover, maintenance         the other ports, reached from the store by these names
    statements  the SQL by name                  sqlite, postgresql    what only one dialect has
    schema      the tables                       text, packed          rules for texts; messages in few bytes

``model`` and ``ports`` need nothing but Python; what opens a real store is loaded only when a store is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_wheel.store.sql import SqlStore


def open_store(
    url: str, *, durability: str = "disk", shards: int | None = 1, create: bool = True, lease_ms: int = 2_000
) -> SqlStore:
    """Open or make the store at ``url``; see ``celery_wheel.store.opening``."""
    from celery_wheel.store import opening

    return opening.open_store(url, durability=durability, shards=shards, create=create, lease_ms=lease_ms)


def migrate_store(url: str) -> list[int]:
    """Bring an older store's tables to this version; see ``celery_wheel.store.opening``."""
    from celery_wheel.store import opening

    return opening.migrate_store(url)
