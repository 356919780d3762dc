"""A RabbitMQ of its own: publishing, every message confirmed, and ingest into an fsynced file of SQLite.

::

    publish     the edge's, hundreds of confirms outstanding; kombu's Producer.publish, which waits for each
    ingest      acknowledged after the commit; kombu's Consumer(on_message=ack), nothing decoded or stored

A real message of a delayed task, 600 bytes of body, is published into a classic and a quorum queue, both durable, on
one node. The messages to ingest are in their queue before the scheduler starts, with etas at random over 30 days.
"""

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
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.port import Confirmed
from celery_wheel.operations.bench import Pace
from celery_wheel.store.model import DAY_MS, Row
from celery_wheel.values.ids import uuid7
from tests.benchmarks.child import Child
from tests.benchmarks.figure import Figure, pace
from tests.benchmarks.letters import BODY_BYTES
from tests.benchmarks.parts import make_app
from tests.kit.chunks import make_chunk, make_row
from tests.kit.servers.rabbit import RabbitServer

CHUNK = 1_000
#: The least number of messages that the window publishes; kombu publishes and consumes fewer by these factors.
MIN_COUNT, SLOWER, CONSUME_SLOWER = 5_000, 10, 5
WHEEL_QUEUE, KOMBU_QUEUE = wheel_queue_name("wheel", 0), "bench.kombu"


def run(folder: Path, rows: int) -> Iterator[Figure]:
    count = max(MIN_COUNT, rows // 40)
    with RabbitServer(folder) as server, make_app(url := server.fresh(), f"sqlite:///{folder}/none.sqlite3") as app:
        messages = Messages(app)
        for kind in ("classic", "quorum"):
            queue = f"bench.{kind}"
            with app.connection_for_write() as connection:
                arguments = {"x-queue-type": kind}
                connection.default_channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
            mine, other = messages.window(queue, count), messages.one_by_one(queue, count // SLOWER)
            yield from _figures(f"dispatch, {kind}", "messages", "", mine, "kombu's confirm_publish", other)
        other = messages.consume(2 * count // CONSUME_SLOWER)
        messages.fill(WHEEL_QUEUE, 2 * count)
        with Child(url, f"sqlite:///{folder / 'wheel.sqlite3'}") as child:
            first, began = child.until("accepted", 1), time.monotonic()
            last = child.until("accepted", 2 * count)
            mine = Pace(2 * count - first.accepted, time.monotonic() - began, last.cpu_s - first.cpu_s)
        yield from _figures("ingest", "rows", " of the scheduler", mine, "kombu's consume", other, 7_000)


def _figures(
    what: str, unit: str, whose: str, mine: Pace, yardstick: str, other: Pace, target: float | None = None
) -> Iterator[Figure]:
    yield Figure("rabbit", what, mine.per_s, f"{unit}/s", yardstick, other.per_s, target)
    cpu = mine.cpu_us, f"µs/{unit[:-1]}", yardstick, other.cpu_us
    yield Figure("rabbit", f"{what}, CPU{whose}", *cpu, less_is_better=True)


class Messages:
    def __init__(self, app: Any) -> None:
        self._app, self._random = app, random.Random(11)
        app.send_task("shop.mail.tasks.send", ("x" * BODY_BYTES,), countdown=60)
        with app.connection_for_write() as connection:
            channel = connection.default_channel
            channel.auto_decode = False
            found = channel.basic_get(WHEEL_QUEUE, no_ack=True)
            assert found is not None
        self._body, properties = bytes(found.body), dict(found.properties)
        self._headers = properties.pop("application_headers")
        properties.pop("priority")  # a row has it in a column
        self._properties = properties

    def _row(self, queue: str, number: int) -> Row:
        task_id = uuid7()
        eta_ms = int(time.time() * 1_000) + self._random.randrange(DAY_MS, 30 * DAY_MS)
        envelope = {**self._headers["wheel"], "id": uuid7(), "task_id": task_id, "eta_ms": eta_ms}
        headers = {**self._headers, "id": task_id, "root_id": task_id, "wheel": envelope}
        texts = {"headers": json.dumps(headers).encode(), "properties": json.dumps(self._properties).encode()}
        return make_row(number, queue, eta_ms=eta_ms, body=self._body, **texts)

    def fill(self, queue: str, count: int) -> None:
        with self._app.connection_for_write() as connection:
            bound = wheel_queue("wheel", 0)(connection.default_channel)
            bound.name = queue
            bound.declare()
        self.window(queue, count)

    def window(self, queue: str, count: int) -> Pace:
        """Publish by the edge, whose rows are made beforehand."""
        numbers = range(1, count + 1, CHUNK)
        rows = [[self._row(queue, n) for n in range(first, first + CHUNK)] for first in numbers]
        now_ms = int(time.time() * 1_000)
        chunks = [make_chunk(n - 1, n + CHUNK - 1, each, now_ms=now_ms) for n, each in zip(numbers, rows, strict=True)]
        edge = AmqpBroker(self._app.connection_for_write, QueuedMessageReader(max_message_bytes=2**20))

        def work() -> None:
            for chunk in chunks[1:]:
                assert edge.publish(chunk, lambda: True) == Confirmed()

        try:
            assert edge.publish(chunks[0], lambda: True) == Confirmed()  # connects, and warms both sides
            return pace(work, max(CHUNK, count - CHUNK))
        finally:
            edge.close()

    def one_by_one(self, queue: str, count: int) -> Pace:
        with self._app.connection_for_write() as connection:
            connection.transport_options = {"confirm_publish": True}
            producer = connection.Producer()

            def work(times: int = count) -> None:
                for _ in range(times):
                    producer.publish(self._body, routing_key=queue, headers=self._headers, **self._properties)

            work(1)
            return pace(work, count)

    def consume(self, count: int) -> Pace:
        self.fill(KOMBU_QUEUE, count)
        done = 0

        def take(message: Any) -> None:
            nonlocal done
            message.ack()
            done += 1

        with self._app.connection_for_write() as connection:

            def work() -> None:
                with Consumer(connection.channel(), [Queue(KOMBU_QUEUE, no_declare=True)], on_message=take):
                    while done < count:
                        connection.drain_events(timeout=10)

            return pace(work, count)
