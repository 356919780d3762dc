"""A measurement's own app, store and queues, which it makes and removes.

::

    the site's app    ── read once ──► own app      store, namespace and the settings of ``VIA_QUEUE``
    the site's store  ── beside it ──► NAME/        a folder with a file, or a schema in the same database
    the site's broker ──────────────► NAME, NAME.0  queues; on Redis the hash NAME.offset.0, too

1. The site's app is only read. Written into it, a value would lose against the site's own in some spelling:
   Celery 5.4 looks for CELERY_WHEEL_STORE before wheel_store, 5.7 does where both are set in the same place.
2. ``check_own`` checks the store and the queues of the own app before the first write. It raises where they are not
   NAME's.
3. The measurement removes NAME's folder or schema, and the queues and keys of ``own_queues``; nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from celery.app.defaults import DEFAULTS
from kombu.entity import Queue
from sqlalchemy import URL, create_engine, text

from celery_wheel import Celery
from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.errors import broker_errors
from celery_wheel.broker.queues import DEFAULT_EXCHANGE
from celery_wheel.conf import Conf, settings
from celery_wheel.errors import StoreUnusable
from celery_wheel.store.place import place_of

#: With these settings the tasks go through one wheel queue and send no events, whatever the site's settings are.
VIA_QUEUE = {
    "wheel_enabled": True,
    "wheel_min_delay": 0,
    "wheel_transactional": False,
    "wheel_shards": 1,
    "wheel_rate_limits": {},
    "task_routes": None,
    "task_send_sent_event": False,
}


def own_app(app: Any, url: str, name: str) -> Any:
    """Return an app with the settings of ``app``, whatever their prefix, and a store and a namespace of its own."""
    read = {key: app.conf.get(key, default) for key, default in DEFAULTS.items()}
    kept = {key: value for key, value in read.items() if value != DEFAULTS[key]}
    kept |= {key: app.conf.get(key) for key, _, _ in settings() if key in app.conf}
    own = Celery(name, set_as_current=False, amqp=app.amqp_cls)
    own.conf.update({**kept, **VIA_QUEUE, "wheel_store": url, "wheel_namespace": name})
    return own


def check_own(conf: Conf, name: str, file: Path | None) -> None:
    """Raise StoreUnusable unless ``conf`` names NAME's queues and store: the new ``file``, or NAME's schema."""
    url = place_of(conf.store).url
    if file is not None:
        found, is_own = url.database, file.samefile(url.database or "") and not file.stat().st_size
    else:
        engine = create_engine(url.set(drivername="postgresql+psycopg"))
        with engine.connect() as connection:
            found = connection.execute(text("SELECT current_schema()")).scalar()
        engine.dispose()
        is_own = found == name
    names = [conf.namespace, *own_queues(conf.namespace)]
    if not is_own or conf.shards != 1 or not all(one.startswith(name) for one in names):
        raise StoreUnusable(
            f"the measurement {name} would use the store {found} and the names {', '.join(names)} instead of its "
            "own; nothing was written; please report this as a defect"
        )


# -- the store ------------------------------------------------------------------------------------


@contextmanager
def own_store(url: str, name: str) -> Iterator[tuple[str, Path | None]]:
    """Yield the URL of a new store beside that of ``url``, and its empty file on SQLite."""
    place = place_of(url).url
    if place.drivername.startswith("sqlite"):
        with _folder(Path(place.database or "").absolute().parent / name) as file:
            yield place.set(database=str(file)).render_as_string(hide_password=False), file
    else:
        with _schema(place.set(drivername="postgresql+psycopg"), name) as found:
            yield found.render_as_string(hide_password=False), None


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StoreUnusable(
            f"no folder could be made beside the store of wheel_store ({error}); make {folder.parent} writable"
        ) from error
    try:
        file = folder / "wheel.sqlite3"
        file.touch(exist_ok=False)
        yield file
    finally:
        shutil.rmtree(folder)


@contextmanager
def _schema(url: URL, name: str) -> Iterator[URL]:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        try:
            with engine.connect() as connection:
                connection.execute(text(f'CREATE SCHEMA "{name}"'))
        except Exception as error:
            raise StoreUnusable(
                f"no schema could be made in the database of wheel_store ({error}); use a user who may (GRANT "
                "CREATE ON DATABASE)"
            ) from error
        try:
            yield url.update_query_dict({"options": f"-csearch_path={name}"})
        finally:
            with engine.connect() as connection:
                connection.execute(text(f'DROP SCHEMA "{name}" CASCADE'))
    finally:
        engine.dispose()


# -- the queues -----------------------------------------------------------------------------------


def own_queues(name: str) -> tuple[str, str]:
    return name, wheel_queue_name(name, 0)


@contextmanager
def own_queue(app: Any, name: str) -> Iterator[Queue]:
    """Yield a queue that is bound to no exchange, so that only the queues need be removed."""
    queue = Queue(name, DEFAULT_EXCHANGE, routing_key=name)  # type: ignore[no-untyped-call]
    with app.connection_for_write() as connection, broker_errors(connection), connection.channel() as channel:
        queue(channel).declare()  # type: ignore[no-untyped-call]
    try:
        yield queue
    finally:
        _remove_queues(app, name)


def _remove_queues(app: Any, name: str) -> None:
    """Remove the queues. On other transports than Redis and RabbitMQ empty ones may stay: kombu deletes bound ones."""
    with app.connection_for_write() as connection, broker_errors(connection):
        if connection.transport.driver_type == "redis":
            from celery_wheel.broker.redis.keys import Layout, offset_key

            layout = Layout.from_options(app.conf.broker_transport_options or {}, 0)
            keys = [key for one in own_queues(name) for key in layout.list_keys(one)]
            connection.default_channel.client.execute_command("DEL", *keys, offset_key(layout.prefix, name, 0))
            return
        own, wheel = own_queues(name)
        for one in (own, wheel, f"{wheel}.holder"):
            with suppress(connection.channel_errors), connection.channel() as channel:  # the queue was never made
                channel.queue_purge(one)
                channel.queue_delete(one)
