"""Ingest from a RabbitMQ: from the wheel queue to an fsynced file of SQLite, by the threads of a scheduler process.

::

    ingest      from the first message that is accepted to the last; messages are acknowledged after their commit
    kombu       Consumer(on_message=ack) of the same messages in a queue of their own; nothing is decoded or stored

The messages are in their queue before the scheduler starts, with etas at random over 30 days.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kombu import Consumer, Queue
from kombu.utils import json

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.console.output import progress
from celery_wheel.engine.port import Chunk, Confirmed
from celery_wheel.operations.bench import Pace, pace
from celery_wheel.operations.figure import Figure
from celery_wheel.store.model import ORIGIN, Row
from celery_wheel.values.ids import uuid7
from tests.benchmarks.child import Child
from tests.benchmarks.letters import BODY_BYTES
from tests.benchmarks.spine import DAY_MS, PENDING_DAYS, SEED
from tests.kit.chunks import make_row

CHUNK = 1_000
#: kombu consumes fewer messages by this factor.
SLOWER = 5
KOMBU_QUEUE = "bench.kombu"
TARGET_PER_S = 7_000


def figures(app: Any, edge: AmqpBroker, url: str, folder: Path, count: int) -> Iterator[Figure]:
    filler = Filler(app, edge)
    with progress("rabbit, ingest", 2) as bar:
        bar(0, doing="kombu")
        other = _consume(app, filler, count // SLOWER)
        bar(0, done=1, doing="the scheduler")
        filler.fill(wheel_queue_name("wheel", 0), count)
        edge.close()
        mine = _ingest(url, folder, count)
        bar(0, done=2)
    yardstick = "kombu's consume"
    yield Figure("rabbit", "ingest", mine.per_s, "rows/s", yardstick, other.per_s, TARGET_PER_S)
    cpu = mine.cpu_us, "µs/row", yardstick, other.cpu_us
    yield Figure("rabbit", "ingest, CPU of the scheduler", *cpu, less_is_better=True)


class Filler:
    """Fills a queue with delayed messages as producers make them, each with ids and an eta of its own."""

    def __init__(self, app: Any, edge: AmqpBroker) -> None:
        self._app, self._edge = app, edge
        app.send_task("shop.mail.tasks.send", ("x" * BODY_BYTES,), countdown=60)
        with app.connection_for_write() as connection:
            channel = connection.default_channel
            channel.auto_decode = False
            found = channel.basic_get(wheel_queue_name("wheel", 0), no_ack=True)
            assert found is not None
        self._body = bytes(found.body)
        properties = dict(found.properties)
        self._headers = properties.pop("application_headers")
        properties.pop("priority")  # a row has it in a column
        self._properties = json.dumps(properties).encode()
        self._random = random.Random(SEED)

    def fill(self, queue: str, count: int) -> None:
        with self._app.connection_for_write() as connection:
            bound = wheel_queue("wheel", 0)(connection.default_channel)
            bound.name = queue
            bound.declare()
        for first in range(1, count + 1, CHUNK):
            rows = [self._row(queue, n) for n in range(first, first + CHUNK)]
            chunk = Chunk(0, 1, 0, 1, ORIGIN, rows[-1].position, rows, int(time.time() * 1_000))
            assert self._edge.publish(chunk, lambda: True) == Confirmed()

    def _row(self, queue: str, number: int) -> Row:
        task_id = uuid7()
        eta_ms = int(time.time() * 1_000) + self._random.randrange(DAY_MS, PENDING_DAYS * DAY_MS)
        envelope = {**self._headers["wheel"], "id": uuid7(), "task_id": task_id, "eta_ms": eta_ms}
        headers = {**self._headers, "id": task_id, "root_id": task_id, "wheel": envelope}
        parts = {"headers": json.dumps(headers).encode(), "properties": self._properties, "body": self._body}
        return make_row(number, queue, eta_ms=eta_ms, **parts)


def _consume(app: Any, filler: Filler, count: int) -> Pace:
    filler.fill(KOMBU_QUEUE, count)
    done = 0

    def take(message: Any) -> None:
        nonlocal done
        message.ack()
        done += 1

    with app.connection_for_write() as connection:

        def work() -> None:
            with Consumer(connection.channel(), [Queue(KOMBU_QUEUE, no_declare=True)], on_message=take):
                while done < count:
                    connection.drain_events(timeout=10)

        return pace(work, count)


def _ingest(url: str, folder: Path, count: int) -> Pace:
    with Child({"broker": url, "store": f"sqlite:///{folder / 'wheel.sqlite3'}", "ahead_ms": 0}) as child:
        first, began = child.until("accepted", 1), time.monotonic()
        last = child.until("accepted", count)
        spent = Pace(count - first.accepted, time.monotonic() - began, last.cpu_s - first.cpu_s)
        child.stop()
    return spent
