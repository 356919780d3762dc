"""What an installation can do: tasks in and out at once, on its own broker and beside its own store.

::

    send       apply_async(countdown=…) by one producer           Celery and the broker
    ingest     wheel queue ─► store                               the broker and the disk's fsync
    move       app.wheel.run_now of all of them                   the store
    dispatch   store ─► the task's own queue                      the store and the broker

Everything has names of its own: a wheel_namespace and a queue that nobody else has, and a store that is made beside the
configured one (a file in its folder, a schema in its database) and removed in the end, whatever happens. Meanwhile
the app has other settings in this process. One engine is driven step by step; a scheduler does these things at once, in
several threads.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kombu.entity import Queue
from sqlalchemy import URL, create_engine, text

from celery_wheel.broker import broker_for
from celery_wheel.broker.answering import answering
from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.broker.queues import ANONYMOUS
from celery_wheel.conf import Conf
from celery_wheel.engine.context import Round, RoundSteps
from celery_wheel.engine.engine import Engine
from celery_wheel.errors import StoreUnusable, WheelError
from celery_wheel.service import limits_of, open_store_of
from celery_wheel.store.model import MOVE
from celery_wheel.store.place import place_of
from celery_wheel.timing import SystemClock

#: Far enough that nothing is due by itself meanwhile, and within no window of the wheel.
COUNTDOWN_S = 86_400
MOVED_AT_ONCE = 1_000
#: Seconds without any progress after which a step is given up.
PATIENCE_S = 30.0

Progress = Callable[[str, int], None]


#: Whatever the app is set to, these tasks take the way through one wheel queue, and nothing holds them up.
BY_THE_QUEUE = {
    "wheel_enabled": True,
    "wheel_min_delay": 0,
    "wheel_transactional": False,
    "wheel_shards": 1,
    "wheel_rate_limits": {},
}


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    count: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.count / max(self.seconds, 1e-9)


def measure(app: Any, count: int, body_bytes: int, progress: Progress) -> list[Figure]:
    """Raises WheelError where store or broker do not do their part; what was made is removed then, too."""
    conf = Conf(app)
    conf.check()
    name = f"wheel-bench-{secrets.token_hex(4)}"
    with _store_beside(conf.store, name) as url:
        changed = {**BY_THE_QUEUE, "wheel_store": url, "wheel_namespace": name}
        with (
            _settings(app, changed),
            closing(open_store_of(conf)) as store,
            _queues(app, name),
            closing(broker_for(app, conf, store.uuid)) as broker,
        ):
            engine = Engine(0, name, store, broker, SystemClock(), limits_of(conf))
            try:
                return list(_Run(app, engine, store, name, progress).figures(count, "x" * body_bytes))
            finally:
                with suppress(WheelError):
                    _run(engine.release())


@contextmanager
def _settings(app: Any, changed: dict[str, Any]) -> Iterator[None]:
    """Settings of the app for a while."""
    before = {name: app.conf.get(name) for name in changed}
    app.conf.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:  # it was not there
                app.conf.changes.pop(name, None)
            else:
                app.conf[name] = value


class _Run:
    def __init__(self, app: Any, engine: Engine, store: Any, name: str, progress: Progress) -> None:
        self._app, self._engine, self._store, self._name, self._progress = app, engine, store, name, progress
        self._tended = 0.0

    def figures(self, count: int, body: str) -> Iterator[Figure]:
        stats = self._engine.stats
        self._until("taking the shard", 1, lambda: int(self._engine.held))
        task_ids: list[str] = []

        def send() -> int:
            place = {"exchange": "", "exchange_type": "direct", "routing_key": self._name}
            sent = self._app.send_task("celery_wheel.bench", (body,), countdown=COUNTDOWN_S, **place)
            task_ids.append(sent.id)
            return len(task_ids)

        yield self._until("send", count, send)
        yield self._until("ingest", count, lambda: stats.accepted, self._engine.ingest, self._engine.load)
        for start in range(0, count, MOVED_AT_ONCE):
            asked = json.dumps({"task_ids": task_ids[start : start + MOVED_AT_ONCE], "eta_ms": None}).encode()
            self._store.put_inbox(0, [(MOVE, asked)])
        yield self._until("move", count, lambda: stats.moved, self._engine.ingest)
        sending = (self._engine.load, self._engine.dispatch, self._engine.settle)
        yield self._until("dispatch", count, lambda: stats.dispatched, *sending)

    def _until(self, what: str, count: int, done: Callable[[], int], *activities: Callable[[], RoundSteps]) -> Figure:
        """Do rounds until ``done`` has grown by ``count``, and keep the shard meanwhile."""
        began = changed = time.monotonic()
        start = done() if activities else 0
        reached = 0
        while reached < count:
            self._tend()
            for activity in activities:
                _run(activity())
            before, reached = reached, done() - start
            self._progress(what, reached - before)
            now = time.monotonic()
            changed = now if reached > before else changed
            if now - changed > PATIENCE_S:
                raise StoreUnusable(
                    f"{what}: {reached:,} of {count:,} in {now - began:.0f} s, and no more for {PATIENCE_S:g} s; run "
                    "`celery wheel doctor`, and see what was logged"
                )
        return Figure(what, count, time.monotonic() - began)

    def _tend(self) -> None:
        if time.monotonic() - self._tended > 0.4 or not self._engine.held:
            self._tended = time.monotonic()
            _run(self._engine.tend())


def _run(steps: RoundSteps) -> Round:
    return [step for step in steps if isinstance(step, Round)][-1]


# -- what is made, and removed ------------------------------------------------------------------------


@contextmanager
def _store_beside(url: str, name: str) -> Iterator[str]:
    """The URL of a store in the same place as another one."""
    place = place_of(url).url
    beside = _file if place.drivername.startswith("sqlite") else _schema
    with beside(place, name) as found:
        yield found.render_as_string(hide_password=False)


@contextmanager
def _file(url: URL, name: str) -> Iterator[URL]:
    path = Path(url.database or "").absolute().parent / f"{name}.sqlite3"
    try:
        yield url.set(database=str(path))
    finally:
        for one in path.parent.glob(f"{path.name}*"):
            one.unlink(missing_ok=True)


@contextmanager
def _schema(url: URL, name: str) -> Iterator[URL]:
    url = url.set(drivername="postgresql+psycopg")
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


@contextmanager
def _queues(app: Any, name: str) -> Iterator[None]:
    """Bound to no exchange, so that nothing but the queues is there to be removed."""
    with app.connection_for_write() as connection, answering(connection), connection.channel() as channel:
        Queue(name, ANONYMOUS, routing_key=name)(channel).declare()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        _remove_queues(app, name)


def _remove_queues(app: Any, name: str) -> None:
    """On transports other than Redis and RabbitMQ, empty queues may stay: kombu deletes only what it has bound."""
    with app.connection_for_write() as connection, answering(connection):
        names = (name, wheel_queue_name(name, 0))
        if connection.transport.driver_type == "redis":
            from celery_wheel.broker.redis.layout import Layout
            from celery_wheel.broker.redis.offsets import offset_key

            channel = connection.default_channel
            layout = Layout.from_options(app.conf.broker_transport_options or {}, 0, "")
            keys = [key for one in names for key in layout.list_keys(one)]
            channel.client.execute_command("DEL", *keys, offset_key(layout.prefix, name, 0))
            return
        for one in names:
            with suppress(connection.channel_errors), connection.channel() as channel:  # it was never made
                channel.queue_purge(one)
                channel.queue_delete(one)
