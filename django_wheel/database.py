"""``wheel_store = "django://default"``: the wheel's tables in a database that Django knows.

::

    DATABASES["default"] ──► place_of ──► Place(postgresql://…, tables made by "python manage.py migrate")
                         ──► store_alias ──► WheelRouter: django_wheel's tables are made there and nowhere else

The store has connections of its own to that database, with settings of its own; Django's are not used.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from sqlalchemy import URL

from celery_wheel.errors import SettingError
from celery_wheel.store.place import Place
from django_wheel.project import conf

SCHEME = "django://"

#: Of ``OPTIONS`` only what libpq itself reads goes along; Django's own words mean nothing to the store.
LIBPQ = {
    "application_name",
    "channel_binding",
    "connect_timeout",
    "gssencmode",
    "krbsrvname",
    "load_balance_hosts",
    "options",
    "passfile",
    "require_auth",
    "requirepeer",
    "service",
    "sslcert",
    "sslcertmode",
    "sslcrl",
    "sslcrldir",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
    "sslsni",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "target_session_attrs",
}


def place_of(alias: str) -> Place:
    """Where the entry ``alias`` of ``DATABASES`` is. Raises SettingError for one that cannot keep the tables."""
    try:
        connection: Any = connections[alias or "default"]
    except (ImproperlyConfigured, ConnectionDoesNotExist) as error:
        raise SettingError(f"wheel_store must name an entry of DATABASES, got {SCHEME}{alias} ({error})") from error
    settings = connection.settings_dict
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        raise SettingError(
            f"wheel_store must name a database that other processes can read, got {SCHEME}{alias}, which is in memory; "
            "Django's test runner does that to SQLite unless DATABASES has a NAME under TEST"
        )
    if connection.vendor == "sqlite":
        url = URL.create("sqlite", database=str(settings["NAME"]))
    elif connection.vendor == "postgresql":
        url = _postgresql(settings)
    else:
        raise SettingError(
            f"wheel_store must name a SQLite or PostgreSQL database, got {SCHEME}{alias} ({connection.vendor}); "
            "let it name another entry, or a file: sqlite:////var/lib/wheel/wheel.sqlite3"
        )
    return Place(url, made_by=f"python manage.py migrate django_wheel --database={alias or 'default'}")


def _postgresql(settings: dict[str, Any]) -> URL:
    """``HOST`` and ``PORT`` may be lists, as libpq has them: h1,h2 and 5432,5433."""
    hosts, ports = str(settings["HOST"] or ""), str(settings["PORT"] or "")
    query: dict[str, Any] = {name: str(value) for name, value in settings["OPTIONS"].items() if name in LIBPQ}
    several = "," in hosts
    if several:
        each = ports.split(",") * (1 if "," in ports else hosts.count(",") + 1)
        query["host"] = tuple(f"{host}:{port or 5432}" for host, port in zip(hosts.split(","), each, strict=True))
    return URL.create(
        "postgresql",
        username=settings["USER"] or None,
        password=settings["PASSWORD"] or None,
        host=None if several else hosts or None,
        port=int(ports) if ports and not several else None,
        database=settings["NAME"] or None,
        query=query,
    )


def store_alias() -> str | None:
    """The entry of ``DATABASES`` that has the wheel's tables; None where the store is a database of its own."""
    found = conf()
    if found is None or not found.store.startswith(SCHEME):
        return None
    return found.store.removeprefix(SCHEME) or "default"


class WheelRouter:
    """Django's migrations and queries of the wheel's tables go where the wheel is; the first of all routers."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        if model._meta.app_label != "django_wheel":
            return None
        alias = store_alias()
        if alias is None:
            raise ImproperlyConfigured(
                "the wheel's tables are in no entry of DATABASES, so its models cannot be queried; use "
                "`from django_wheel import wheel`, or let wheel_store be django://default"
            )
        return alias

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == store_alias() if app_label == "django_wheel" else None
