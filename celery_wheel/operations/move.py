"""``move``: the app's store to another database, while no scheduler runs; see ``celery_wheel.store.sql.upkeep``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError
from celery_wheel.store import move_store
from celery_wheel.store.place import place_of, read_url
from celery_wheel.store.store_model import MovedStore, Progress
from celery_wheel.timing import SystemClock
from celery_wheel.values.store_urls import EXAMPLES, is_store_url


def move(app: Any, to: str, source: str | None, progress: Progress) -> MovedStore:
    """Move a store to the database ``to``, whose tables are made, also in Django's databases.

    Args:
        source: URL of the old store; by default the one that wheel_store names.

    Raises StoreUnusable or SettingError, with the remedy; the old store is as before then. A move that was killed is
    continued by the next one.
    """
    conf = Conf(app)
    conf.check()
    source = source or conf.store
    for url in (to, source):
        if not is_store_url(url):
            raise SettingError(f"a store must be a database URL like {EXAMPLES}, got another value (not shown)")
    place = place_of(to)
    if place.make is not None:
        before = dict(app.conf.changes)
        app.conf.wheel_store = to  # Django's router lets migrations make the tables where the store is
        try:
            place.make()
        finally:
            app.conf.changes.clear()
            app.conf.changes.update(before)
    return move_store(source, to, SystemClock().now_ms(), progress)


def settings_line(conf: Conf, store: str) -> str:
    """Return the line that names a store in the project's settings, with PASSWORD for each password of its URL."""
    scheme = store.partition("://")[0]
    if scheme.startswith("sqlite"):
        store = f"sqlite:///{Path(read_url(store).database or '').absolute()}"  # in each process, whatever its folder
    elif scheme.startswith("postgres"):
        url = read_url(store)
        hidden = {name: "PASSWORD" for name in ("password", "sslpassword") if name in url.query}
        url = url.set(password=url.password and "PASSWORD").update_query_dict(hidden)
        store = url.render_as_string(hide_password=False)
    name = conf.spelling("wheel_store")
    plain = name == "wheel_store" and not conf.app._config_source
    return f"{'app.conf.' if plain else ''}{name} = {json.dumps(store)}"
