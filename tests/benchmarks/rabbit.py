"""A RabbitMQ of its own: publishing, every message confirmed, and ingest into an fsynced file of SQLite.

::

    window      the edge's publish, chunks of 1,000, hundreds of confirms outstanding
    kombu       Producer.publish with confirm_publish, which waits for each

    ingest      from the first message that is accepted to the last; messages are acknowledged after their commit
    kombu       Consumer(on_message=ack) of the same messages in a queue of their own; nothing is decoded or stored

A real message of a delayed task, 600 bytes of body, is published into a classic and a quorum queue, both durable, on
one node. The messages to ingest are in their queue before the scheduler starts, with etas at random over 30 days.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kombu import Consumer, Queue
from kombu.utils import json

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.console.output import progress
from celery_wheel.engine.port import Chunk, Confirmed
from celery_wheel.operations.bench import Pace, pace
from celery_wheel.operations.figure import Figure
from celery_wheel.store.model import ORIGIN, Message, Row
from celery_wheel.values.ids import uuid7
from tests.benchmarks.child import Child
from tests.benchmarks.letters import BODY_BYTES
from tests.benchmarks.parts import make_app
from tests.benchmarks.spine import DAY_MS, PENDING_DAYS, SEED
from tests.kit.chunks import make_row
from tests.kit.patience import wait_until
from tests.kit.servers.rabbit import RabbitServer

CHUNK = 1_000
#: The least number of messages that the window publishes; kombu, one by one, publishes fewer by this factor.
MIN_COUNT, SLOWER = 5_000, 10


def run(folder: Path, rows: int) -> Iterator[Figure]:
    if not (shutil.which("rabbitmq-server") or Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists()):
        print("rabbit: no RabbitMQ server is installed; nothing is measured (make services)", file=sys.stderr)
        return
    count = max(MIN_COUNT, rows // 40)
    with RabbitServer(folder) as server, progress("rabbit", 4) as bar:
        url = server.fresh()
        app = make_app(url, f"sqlite:///{folder}/none.sqlite3")
        edge = AmqpBroker(app.connection_for_write, QueuedMessageReader(max_message_bytes=2**20))
        try:
            message = _example(app, edge)
            for done, kind in enumerate(("classic", "quorum")):
                queue = _queue(app, kind)
                bar(0, doing=f"{kind}, window")
                mine = _window(edge, message, queue, count)
                bar(0, done=2 * done + 1)
                bar(0, doing=f"{kind}, kombu")
                other = _one_by_one(app, message, queue, count // SLOWER)
                edge.close()  # its heartbeats have stopped meanwhile; the next use makes another
                bar(0, done=2 * done + 2)
                yield from _figures(kind, mine, other)
            yield from _ingest_figures(app, edge, url, folder, 2 * count)
        finally:
            edge.close()
            app.close()


def _figures(kind: str, mine: Pace, other: Pace) -> Iterator[Figure]:
    yardstick = "kombu's confirm_publish"
    yield Figure("rabbit", f"dispatch, {kind}", mine.per_s, "messages/s", yardstick, other.per_s)
    cpu = mine.cpu_us, "µs/message", yardstick, other.cpu_us
    yield Figure("rabbit", f"dispatch, {kind}, CPU", *cpu, less_is_better=True)


def _example(app: Any, edge: AmqpBroker) -> Message:
    """Return the message of a delayed task that has passed the wheel queue."""
    app.send_task("shop.mail.tasks.send", ("x" * BODY_BYTES,), countdown=60)
    edge.adopt(0, 1)
    found: list[Message] = []

    def has_come() -> bool:
        found.extend(one for one in edge.peek(0, 1, 2**20).arrivals if isinstance(one, Message))
        return bool(found)

    wait_until(has_come, "the message")
    return found[0]


def _queue(app: Any, kind: str) -> str:
    name = f"bench.{kind}"
    with app.connection_for_write() as connection:
        arguments = {"x-queue-type": kind}
        connection.default_channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
    return name


def _window(edge: AmqpBroker, message: Message, queue: str, count: int) -> Pace:
    there = replace(message, exchange="", routing_key=queue, queue=queue)
    rows = [Row.of(there, n, 0, n, n) for n in range(CHUNK)]
    chunk = Chunk(0, 1, 0, 1, ORIGIN, rows[-1].position, rows, message.created_ms)

    def work() -> None:
        for _ in range(0, count, CHUNK):
            assert edge.publish(chunk, lambda: True) == Confirmed()

    edge.publish(chunk, lambda: True)  # connects, and warms both sides
    return pace(work, count)


def _one_by_one(app: Any, message: Message, queue: str, count: int) -> Pace:
    headers, properties = json.loads(message.headers), json.loads(message.properties)
    with app.connection_for_write() as connection:
        connection.transport_options = {"confirm_publish": True}
        producer = connection.Producer()

        def work() -> None:
            for _ in range(count):
                producer.publish(message.body, routing_key=queue, headers=headers, **properties)

        producer.publish(message.body, routing_key=queue, headers=headers, **properties)
        return pace(work, count)


#: kombu consumes fewer messages by this factor.
CONSUME_SLOWER = 5
KOMBU_QUEUE = "bench.kombu"
TARGET_PER_S = 7_000


def _ingest_figures(app: Any, edge: AmqpBroker, url: str, folder: Path, count: int) -> Iterator[Figure]:
    filler = Filler(app, edge)
    with progress("rabbit, ingest", 2) as bar:
        bar(0, doing="kombu")
        other = _consume(app, filler, count // CONSUME_SLOWER)
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
