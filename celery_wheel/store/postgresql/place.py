"""The place of a PostgreSQL store: from its URL to a database, without a connection."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlalchemy import URL

from celery_wheel.errors import SettingError

if TYPE_CHECKING:
    from celery_wheel.store.postgresql.database import PostgresqlDatabase

#: ``postgres://``, which libpq and hosting providers write as well; SQLAlchemy has no such dialect.
_SHORT = re.compile(r"^postgres(?=://)")

_HOSTS = re.compile(r"(postgresql[^:/]*://(?:[^@/?]*@)?)([^/?@]*,[^/?@]*)(/[^?]*)(?:\?(.*))?").fullmatch


def sqlalchemy_form(url: str) -> str:
    """Turn ``postgres://h1:5432,h2:5433/db``, which libpq reads, into the form that SQLAlchemy reads."""
    url = _SHORT.sub("postgresql", url)
    found = _HOSTS(url)
    if found is None:
        return url
    before, hosts, database, query = found.groups()
    apart = [f"host={host}" for host in hosts.split(",")]
    return f"{before}{database}?{'&'.join(apart + ([query] if query else []))}"


def open_database(url: URL, durability: str, lease_ms: int) -> PostgresqlDatabase:
    if not url.database:
        raise SettingError("wheel_store must name a database, like postgresql://user@host/database, got none")
    try:
        import psycopg  # noqa: F401 - alone, so that no other missing module is reported as the driver
    except ImportError:
        raise SettingError(
            "wheel_store must be a database whose driver is installed, got postgresql://…; "
            "run: pip install 'celery-wheel[postgresql]'"
        ) from None
    from celery_wheel.store.postgresql.database import PostgresqlDatabase

    return PostgresqlDatabase(url, durability=durability, lease_ms=lease_ms)
