"""CPU of ``apply_async(countdown=…)`` through the wheel, beside the same call of plain Celery.

::

    plain   celery.Celery          task message with an eta ──► the task's queue
    wheel   celery_wheel.Celery    the same, with an envelope ──► the wheel queue

The calls alternate in short turns: on kombu's memory transport, which shows the Python part alone, and on Redis. A
figure is the median of the turns' CPU; the ratio of two figures holds where others use the cores, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import celery
from kombu.transport.memory import Channel

from celery_wheel import Celery
from celery_wheel.operations.bench import pace
from celery_wheel.operations.figure import Figure
from tests.kit.servers.redis import RedisServer

TURNS, CALLS = 40, 250

#: CPU of the wheel's call, as a multiple of the plain call's.
TARGET = 1.15

#: 600 bytes of body.
ARGUMENTS = ("x" * 520,)


def run(folder: Path, _rows: int) -> Iterator[Figure]:
    yield from _compare("memory", "memory://", Channel.queues.clear)
    with RedisServer(folder / "redis") as server:
        yield from _compare("Redis", server.url, server.client().flushall)


def _compare(transport: str, broker: str, empty: Callable[[], object]) -> Iterator[Figure]:
    plain, wheel = _sender(celery.Celery, broker), _sender(Celery, broker)
    spent: dict[Callable[[], None], list[float]] = {plain: [], wheel: []}
    for _ in range(TURNS):
        for send, found in spent.items():
            found.append(pace(send, CALLS).cpu_us)
            empty()
    ours, theirs = statistics.median(spent[wheel][2:]), statistics.median(spent[plain][2:])  # the first turns connect
    what = f"{transport}: apply_async(countdown)"
    yield Figure("producer", what, ours, "µs/call", "plain Celery", theirs, TARGET * theirs, less_is_better=True)


def _sender(app_class: Any, broker: str) -> Callable[[], None]:
    """Return a function that calls ``apply_async`` many times, on an app of its own."""
    app = app_class("bench", broker=broker, set_as_current=False)
    app.conf.task_ignore_result = True

    @app.task(name="shop.orders.tasks.cancel_unless_paid")
    def task(order: str) -> None:
        raise AssertionError(f"no worker runs {order}")

    def send() -> None:
        for _ in range(CALLS):
            task.apply_async(ARGUMENTS, countdown=3_600)

    return send
