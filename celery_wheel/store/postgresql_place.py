"""Where a PostgreSQL store lives: from its URL to a database, before anything is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import URL

from celery_wheel.errors import SettingError

if TYPE_CHECKING:
    from celery_wheel.store.postgresql import PostgresqlDatabase


def open_database(url: URL, durability: str, lease_ms: int) -> PostgresqlDatabase:
    if not url.database:
        raise SettingError("wheel_store must name a database, like postgresql://user@host/database, got none")
    try:
        import psycopg  # noqa: F401 - asked for by itself, so that no other missing module is taken for it
    except ImportError:
        raise SettingError(
            "wheel_store must be a database whose driver is installed, got postgresql://…; "
            "run: pip install 'celery-wheel[postgresql]'"
        ) from None
    from celery_wheel.store.postgresql import PostgresqlDatabase

    return PostgresqlDatabase(url, durability=durability, lease_ms=lease_ms)
