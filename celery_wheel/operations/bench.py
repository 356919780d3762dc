"""Measurements: for ``celery wheel bench``, and a rig for the project's own benchmarks.

1. The site's app is only read, once; its copy has a store beside the site's and the queues NAME and NAME.0. Written
   into the site's app, a value would lose against the site's own in some spelling, by the version of Celery.
2. ``check_own`` raises before the first write where the store or the queues are not NAME's. In the end, also after an
   error, NAME's folder or schema, queues and keys are removed, and nothing else.
3. The rig runs one round after the other in one thread, where a scheduler runs several at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery.app.defaults import DEFAULTS
from kombu.entity import Queue
from sqlalchemy import URL, create_engine, text

from celery_wheel import Celery
from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.errors import broker_errors
from celery_wheel.broker.queues import DEFAULT_EXCHANGE
from celery_wheel.broker.transport import broker_for
from celery_wheel.conf import Conf, settings
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import RoundSteps, run_round
from celery_wheel.errors import StoreUnusable, WheelError
from celery_wheel.scheduler.occurrences import ScheduleRenderer
from celery_wheel.scheduler.service import limits_of, open_store_of
from celery_wheel.store.audit_model import PROGRAM
from celery_wheel.store.model import MOVE
from celery_wheel.store.place import place_of
from celery_wheel.store.ports import FullStore
from celery_wheel.timing import Clock, SystemClock
from celery_wheel.values import parts

#: With these settings the tasks go through one wheel queue and send no events, whatever the site's settings are.
VIA_QUEUE = {
    "wheel_enabled": True,
    "wheel_min_delay": 0,
    "wheel_transactional": False,
    "wheel_shards": 1,
    "wheel_rate_limits": {},
    "wheel_destinations": None,
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


#: Seconds without progress after which a step fails.
PATIENCE_S = 30.0

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Pace:
    count: int
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.count / max(self.wall_s, 1e-9)

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.count * 1e6


class BenchRig:
    """An engine and its store, which run rounds until a counter has reached a number."""

    def __init__(self, engine: Engine, store: FullStore, progress: Progress) -> None:
        self.engine, self.store = engine, store
        self._progress = progress
        self._tended = 0.0

    def acquire(self) -> None:
        self.until("acquiring the shard", 1, lambda: int(self.engine.held))

    def until(self, step: str, count: int, counted: Callable[[], int], *activities: Callable[[], RoundSteps]) -> Pace:
        """Run rounds until ``counted`` has grown by ``count``. Raises StoreUnusable after PATIENCE_S of no progress."""
        began, cpu, start = time.monotonic(), time.process_time(), counted() if activities else 0
        changed, reached = began, 0
        while reached < count:
            self.tend()
            for activity in activities:
                run_round(activity())
            before, reached = reached, counted() - start
            self._progress(step, reached - before)
            now = time.monotonic()
            changed = now if reached > before else changed
            if now - changed > PATIENCE_S:
                raise StoreUnusable(
                    f"{step}: {reached:,} of {count:,} in {now - began:.0f} s, and no progress for {PATIENCE_S:g} s; "
                    "run `celery -A proj wheel doctor`, and read the log"
                )
        return Pace(count, time.monotonic() - began, time.process_time() - cpu)

    def tend(self) -> None:
        if time.monotonic() - self._tended > 0.4 or not self.engine.held:  # seconds: the lease is renewed now and then
            self._tended = time.monotonic()
            run_round(self.engine.tend())


@contextmanager
def rig(
    app: Any,
    clock: Clock | None = None,
    progress: Progress = lambda step, more: None,
    *,
    schedules: bool = False,
    **limits: Any,
) -> Iterator[BenchRig]:
    """Yield a rig on the store and the broker that ``app`` names; ``limits`` replace those of its settings."""
    conf = Conf(app)
    conf.check()
    with closing(open_store_of(conf)) as store, closing(broker_for(app, conf, store)) as broker:
        all_limits = dataclasses.replace(limits_of(conf), **limits)
        renderer = ScheduleRenderer(app, conf.max_message_bytes, broker.decode) if schedules else None
        holder = f"bench/{os.getpid()}"
        engine = Engine(0, holder, store, broker, clock or SystemClock(), all_limits, renderer=renderer)
        try:
            yield BenchRig(engine, store, progress)
        finally:
            with suppress(WheelError):
                run_round(engine.release())
            if renderer is not None:
                renderer.close()


#: Beyond the time of the measurement, and beyond the window of the wheel.
COUNTDOWN_S = 86_400
MOVED_AT_ONCE = 1_000


def measure(app: Any, count: int, body_bytes: int, progress: Progress) -> dict[str, Pace]:
    """Return the pace of each step. Raises WheelError where the store or the broker fails."""
    conf = Conf(app)
    conf.check()
    name = f"wheel-bench-{secrets.token_hex(4)}"
    with own_store(conf.store, name) as (url, file), closing(own_app(app, url, name)) as own:
        check_own(Conf(own), name, file)
        with own_queue(own, name) as queue, rig(own, progress=progress) as driven:
            return dict(_steps(own, driven, queue, count, "x" * body_bytes))


def _steps(app: Any, driven: BenchRig, queue: Any, count: int, body: str) -> Iterator[tuple[str, Pace]]:
    engine, stats = driven.engine, driven.engine.stats
    task_ids: list[str] = []

    def send() -> int:
        sent = app.send_task(
            "celery_wheel.operations.bench", (body,), countdown=COUNTDOWN_S, queue=queue, ignore_result=True
        )
        task_ids.append(sent.id)
        return len(task_ids)

    driven.acquire()
    yield "send", driven.until("send", count, send)
    yield "ingest", driven.until("ingest", count, lambda: stats.accepted, engine.ingest, engine.prefetch)
    for part in parts(task_ids, MOVED_AT_ONCE):
        command = {"task_ids": part, "eta_ms": None, "audit": {"origin": PROGRAM}}
        driven.store.put_inbox(0, [(MOVE, json.dumps(command).encode())])
    yield "move", driven.until("move", count, lambda: stats.moved, engine.ingest)
    sending = (engine.prefetch, engine.dispatch, engine.settle)
    yield "dispatch", driven.until("dispatch", count, lambda: stats.dispatched, *sending)
