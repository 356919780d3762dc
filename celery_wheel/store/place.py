"""The place that ``wheel_store`` names: a database of its own, or another package's, like ``django://default``.

A package adds a scheme by an entry point of the group ``SCHEMES``: a function from the name after ``://`` to a
StorePlace, imported when such a URL is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from socket import gethostname

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from celery_wheel.errors import SettingError
from celery_wheel.values.text import EXAMPLES, SCHEMES

#: ``postgres://``, which libpq and hosting providers write as well; SQLAlchemy has no such dialect.
_SHORT = re.compile(r"^postgres(?=://)")

_HOSTS = re.compile(r"(postgresql[^:/]*://(?:[^@/?]*@)?)([^/?@]*,[^/?@]*)(/[^?]*)(?:\?(.*))?").fullmatch

#: The command whose scheduler makes the tables of a new store.
BEAT = "celery -A proj beat -S wheel"

#: The command that brings the tables of an older version to this one.
MIGRATE = "celery -A proj wheel migrate"


@dataclass(frozen=True, slots=True)
class StorePlace:
    """``command`` returns the command of another package that makes the tables, for an error that needs it; ``make``
    makes them, where ``wheel_store`` names this place."""

    url: URL
    command: Callable[[], str] | None = None
    make: Callable[[], None] | None = None

    @property
    def made_by(self) -> str:
        """The command that makes the tables. With BEAT, a scheduler makes them when it opens the store."""
        return BEAT if self.command is None else self.command()

    @property
    def own(self) -> bool:
        """Whether opening may make the tables."""
        return self.command is None


def place_of(url: str) -> StorePlace:
    """Return the place of a store's URL. Raises SettingError, without passwords, for a text that names no database."""
    scheme, separator, name = url.partition("://")
    added = _added(scheme) if separator else None
    if added is not None:
        return added(name)
    try:
        return StorePlace(read_url(url))
    except (ArgumentError, ValueError):  # the ValueError of a wrong port quotes it, and it may be a part of a password
        raise SettingError(f"wheel_store must be a database URL like {EXAMPLES}, got no URL") from None


@cache  # a look at the metadata of all installed packages takes longer than opening a store
def _added(scheme: str) -> Callable[[str], StorePlace] | None:
    return next((added.load() for added in entry_points(group=SCHEMES, name=scheme)), None)


def shown_place(url: str) -> str:
    """Return the place of a store for people on other hosts: a file with its host, a database without its password."""
    found = place_of(url).url
    if found.drivername.startswith("sqlite"):
        return f"{Path(found.database or '').absolute()} on {gethostname()}"
    hosts = {name: value for name, value in found.query.items() if name == "host"}
    return URL.create(found.drivername, None, None, found.host, found.port, found.database, hosts).render_as_string()


def read_url(url: str) -> URL:
    """Parse the URL of a store. Raises ArgumentError or ValueError where it is no URL.

    libpq reads ``postgres://h1:5432,h2:5433/db``; SQLAlchemy takes several hosts as parameters.
    """
    url = _SHORT.sub("postgresql", url)
    found = _HOSTS(url)
    if found is not None:
        before, hosts, database, query = found.groups()
        apart = [f"host={host}" for host in hosts.split(",")]
        url = f"{before}{database}?{'&'.join(apart + ([query] if query else []))}"
    return make_url(url)
