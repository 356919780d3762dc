"""What of an app is exchanged while a test turns its wheel, and put back exactly as it was.

::

    settings      task_always_eager off (a delay never waits there), a store of the test's own, one shard
    now           virtual time
    connections   of the app, its pool and its producers: to the transport in memory
    backend       results in memory, unless the app is to keep its own
    send_task     where the app is eager: what needs not wait runs within the call
    class         an app that is a plain Celery becomes one with a wheel, as by ``install``

Everything is noted before it is changed, and undone in reverse, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kombu.pools import ProducerPool

from celery_wheel.app import WheelApp, install

_ABSENT = object()
_producers: Any = ProducerPool


@contextmanager
def attributes(thing: Any, **values: Any) -> Iterator[None]:
    """Set an object's own attributes, and put back what it had of its own."""
    own = vars(thing)
    before = {name: own.get(name, _ABSENT) for name in values}
    own.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            own.pop(name, None) if value is _ABSENT else own.update({name: value})


@contextmanager
def whole(thing: Any) -> Iterator[None]:
    """Put back all that an object has of its own, and take away what it was given meanwhile."""
    before = dict(vars(thing))
    try:
        yield
    finally:
        vars(thing).clear()
        vars(thing).update(before)


@contextmanager
def settings(app: Any, **values: Any) -> Iterator[None]:
    """Set settings, in every spelling in which the app would find them, and put back what was changed before."""
    changes = app.conf.changes
    spelt = {key: value for name, value in values.items() for key in app.conf._to_keys(name)}
    before = {key: changes.get(key, _ABSENT) for key in spelt}
    changes.update(spelt)
    try:
        yield
    finally:
        for key, value in before.items():
            changes.pop(key, None) if value is _ABSENT else changes.update({key: value})


@contextmanager
def installed(app: Any) -> Iterator[None]:
    """A plain Celery is one with a wheel meanwhile."""
    had_amqp = "amqp" in vars(app)
    classes = type(app), type(app.amqp)
    with whole(app.amqp):
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
    """Whatever the app sends goes to ``connection``; its own are neither used nor closed."""
    pool = connection.Pool(limit=None)
    producers = _producers(connections=pool, limit=None)
    with (
        attributes(app, _pool=pool),
        whole(app.amqp),
        attributes(app.amqp, Connection=lambda *args, **options: connection.clone(), _producer_pool=producers),
    ):
        try:
            yield
        finally:
            for one in (producers, pool):
                one.force_close_all()
            connection.release()


@contextmanager
def results(app: Any, backend: Any) -> Iterator[None]:
    with attributes(app, _backend_cache=backend):
        yield


@contextmanager
def eager(app: Any, run: Callable[[str], object]) -> Iterator[None]:
    """After each sending, ``run`` is called with the task's id."""
    with attributes(app, send_task=partial(_send_and_run, app.send_task, run)):
        yield


def _send_and_run(send: Callable[..., Any], run: Callable[[str], object], *args: Any, **options: Any) -> Any:
    result = send(*args, **options)
    run(result.id)
    return result
