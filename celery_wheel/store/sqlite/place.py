"""The place of a SQLite store: from its URL to a file in a usable folder, before the file is opened."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL

from celery_wheel.errors import SettingError, StoreOutdated, StoreUnusable, StoreUnused
from celery_wheel.store.place import StorePlace
from celery_wheel.store.sqlite.database import SqliteDatabase
from celery_wheel.store.sqlite.errors import describe

EXAMPLE = "sqlite:////var/lib/wheel/wheel.sqlite3 (absolute) or sqlite:///wheel.sqlite3 (relative)"


def open_database(place: StorePlace, durability: str, create: bool) -> SqliteDatabase:
    url = place.url
    if not _names_a_file(url):
        raise SettingError(f"wheel_store must name a file and nothing else, like {EXAMPLE}, got {url}")
    path = Path(url.database or "").absolute()  # a daemon may change its working folder later
    try:
        _check_file(path, create, place)
    except StoreUnusable:  # an OSError too
        raise
    except OSError as error:
        raise StoreUnusable(describe(str(path), error)) from error
    return SqliteDatabase(str(path), durability=durability)


def _names_a_file(url: URL) -> bool:
    name = url.database or ""
    return bool(name) and name != ":memory:" and not name.startswith("file:") and not url.query and not url.host


def _check_file(path: Path, create: bool, place: StorePlace) -> None:
    if path.is_dir():
        raise StoreUnusable(
            f"the store {path} is a folder; nothing was read or written; let wheel_store name a file in it"
        )
    if path.exists():
        if create and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)):
            raise StoreUnusable(
                f"this user may not write to the store {path}; nothing was written; make the file and its folder "
                "writable, or set wheel_store to another file"
            )
        return
    if not place.own:
        raise StoreOutdated(f"there is no store at {path}; run: {place.made_by}")
    if not create:
        raise StoreUnused(
            f"there is no store at {path}; a scheduler makes it when it starts: {place.made_by}; start one, or "
            "give wheel_store an absolute path where a scheduler runs (in another folder, or on another machine)"
        )
    folder = path.parent
    if not folder.is_dir():
        raise StoreUnusable(
            f"the folder {folder} for the store does not exist; no store was made; make it, or set wheel_store to "
            "another"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreUnusable(
            f"this user may not write to the folder {folder} for the store; no store was made; change its owner or "
            "mode, or set wheel_store to another"
        )
