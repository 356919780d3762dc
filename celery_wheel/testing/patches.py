"""The patches of an app during a test: parts that are replaced, and restored exactly.

Each patch records the state before it changes anything, and restores it in reverse order, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from celery import states
from celery.backends.cache import CacheBackend
from celery.exceptions import TimeoutError as NotReady
from kombu.pools import ProducerPool
from kombu.utils.functional import LRUCache

from celery_wheel.app import WheelApp, install

_ABSENT = object()
_producers: Any = ProducerPool


@contextmanager
def _updated(mapping: dict[str, Any], values: dict[str, Any]) -> Iterator[None]:
    before = {key: mapping.get(key, _ABSENT) for key in values}
    mapping.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            mapping.pop(key, None) if value is _ABSENT else mapping.update({key: value})


def attributes(thing: Any, **values: Any) -> AbstractContextManager[None]:
    return _updated(vars(thing), values)


def settings(app: Any, **values: Any) -> AbstractContextManager[None]:
    """Set settings, in every spelling that the app reads, and restore earlier changes."""
    return _updated(app.conf.changes, {key: value for name, value in values.items() for key in app.conf._to_keys(name)})


@contextmanager
def installed(app: Any) -> Iterator[None]:
    had_amqp = "amqp" in vars(app)
    classes = type(app), type(app.amqp)
    with mock.patch.dict(vars(app.amqp)):
        if not isinstance(app, WheelApp):
            install(app)
        try:
            yield
        finally:
            app.__class__ = classes[0]
            if had_amqp:
                app.amqp.__class__ = classes[1]
            else:
                vars(app).pop("amqp", None)


@contextmanager
def connected(app: Any, connection: Any) -> Iterator[None]:
    """Send all messages of the app to ``connection``; the app's own connections are neither used nor closed."""
    pool = connection.Pool(limit=None)
    producers = _producers(connections=pool, limit=None)
    with (
        attributes(app, _pool=pool),
        mock.patch.dict(vars(app.amqp)),
        attributes(app.amqp, Connection=lambda *args, **options: connection.clone(), _producer_pool=producers),
    ):
        try:
            yield
        finally:
            producers.force_close_all()
            pool.force_close_all()
            connection.release()


def eager(app: Any, run: Callable[[str], object]) -> AbstractContextManager[None]:
    send = app.send_task

    def send_and_run(*args: Any, **options: Any) -> Any:
        result = send(*args, **options)
        run(result.id)
        return result

    return attributes(app, send_task=send_and_run)


class MemoryResults(CacheBackend):  # type: ignore[misc]  # celery carries no types
    """The backend of one test; ``describe`` returns a sentence about the task of an id."""

    thread_safe = True

    def __init__(self, app: Any, run_due: Callable[[], object], describe: Callable[[str], str]) -> None:
        super().__init__(app=app, backend="memory", url="memory://")
        self.client.cache = LRUCache()  # type: ignore[no-untyped-call]  # Celery's is shared by the whole process
        self._run_due = run_due
        self._describe = describe

    def wait_for(self, task_id: str, *args: Any, **options: Any) -> Any:
        self._run_due()
        return self._ready(task_id)

    def get_many(self, task_ids: Iterable[str], *args: Any, **options: Any) -> Iterator[Any]:
        ids = list(task_ids)
        self._run_due()
        for task_id in ids:
            self._ready(task_id)
        found: Iterator[Any] = super().get_many(ids, *args, **options)
        return found

    def _ready(self, task_id: str) -> Any:
        meta = self.get_task_meta(task_id)
        if meta["status"] not in states.READY_STATES:
            raise NotReady(
                f"task {task_id} has no result, and waiting brings none: {self._describe(task_id)}; call "
                "wheel.advance(…) or wheel.run_all() first"
            )
        return meta
