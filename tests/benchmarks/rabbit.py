"""Publishing to a RabbitMQ of its own, every message confirmed: the wheel's window against kombu's one by one.

::

    window      the edge's publish, chunks of 1,000, hundreds of confirms outstanding
    kombu       Producer.publish with confirm_publish, which waits for each

One real message of a delayed task, 600 bytes of body, into a classic and a quorum queue, both durable, on one node.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kombu.utils import json

from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.console.output import progress
from celery_wheel.engine.port import Chunk, Confirmed
from celery_wheel.operations.bench import Pace, pace
from celery_wheel.operations.figure import Figure
from celery_wheel.store.model import ORIGIN, Message, Row
from tests.benchmarks import rabbit_ingest
from tests.benchmarks.letters import BODY_BYTES
from tests.benchmarks.parts import make_app
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
        app = make_app(url, "sqlite:///")
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
            yield from rabbit_ingest.figures(app, edge, url, folder, 2 * count)
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
