"""What ``wheel_store`` names: a database of its own, or one that another package knows, like ``django://default``.

::

    sqlite:///… postgresql://…  ──────────────────────────────►  Place(that URL, tables made by the first scheduler)
    django://default ──► entry point "django" of the group     ►  Place(URL of the entry of DATABASES,
                         ``celery_wheel.stores``                         tables made by "python manage.py migrate")

Whoever adds a scheme gives a function from the name behind ``://`` to a Place. It is loaded when such a URL is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from socket import gethostname

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from celery_wheel.errors import SettingError
from celery_wheel.store.postgresql.place import with_hosts_apart

EXAMPLES = "sqlite:////var/lib/wheel/wheel.sqlite3, postgresql://user@host/database or django://default"

#: Of the ways to name a store that other packages add.
GROUP = "celery_wheel.stores"

BEAT = "celery beat -S wheel"

#: And this brings those of an older version to this one.
MIGRATE = "celery -A proj wheel migrate"


@dataclass(frozen=True, slots=True)
class Place:
    """``made_by``: the command that makes the tables there. With BEAT that is a scheduler, by opening the store."""

    url: URL
    made_by: str = BEAT

    @property
    def own(self) -> bool:
        """Whether opening may make the tables."""
        return self.made_by == BEAT


def place_of(url: str) -> Place:
    """Raises SettingError for what names no database; passwords are not shown."""
    scheme, separator, name = url.partition("://")
    if separator:
        for added in entry_points(group=GROUP, name=scheme):
            found: Place = added.load()(name)
            return found
    try:
        return Place(read_url(url))
    except (ArgumentError, ValueError):  # a port that is no number is a ValueError, and shows what stands there
        raise SettingError(f"wheel_store must be a database URL like {EXAMPLES}, got no URL") from None


def shown_place(url: str) -> str:
    """Return where a store is, for people on other hosts: without a password, a file with its host."""
    found = place_of(url).url
    if found.drivername.startswith("sqlite"):
        return f"{Path(found.database or '').absolute()} on {gethostname()}"
    hosts = {name: value for name, value in found.query.items() if name == "host"}
    return URL.create(found.drivername, None, None, found.host, found.port, found.database, hosts).render_as_string()


def read_url(url: str) -> URL:
    """Raises ArgumentError, or ValueError, for what is no URL."""
    return make_url(with_hosts_apart(url))
