"""The URLs that name a store, told from other texts without SQLAlchemy: a process that only sends does not load it."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import entry_points

EXAMPLES = "sqlite:////var/lib/wheel/wheel.sqlite3, postgresql://user@host/database or django://default"

#: The group of the entry points by which packages add schemes.
SCHEMES = "celery_wheel.stores"

_FILE = re.compile(r"/(?!:memory:|file:)[^?]+").fullmatch
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?").fullmatch


def is_store_url(url: str) -> bool:
    """Whether a text is the URL of a file, of a PostgreSQL database, or of a scheme that a package adds."""
    scheme, separator, rest = url.partition("://")
    if scheme in ("sqlite", "sqlite+pysqlite"):
        return _FILE(rest) is not None
    if scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        place, _, database = rest.partition("?")[0].partition("/")
        return bool(database) and all(map(_HOST, place.rpartition("@")[2].split(",")))
    return bool(separator) and scheme in _added_schemes()


@cache
def _added_schemes() -> frozenset[str]:
    return frozenset(added.name for added in entry_points(group=SCHEMES))
