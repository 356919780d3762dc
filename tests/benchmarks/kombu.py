"""kombu's own consume and publish, as a worker and a producer use them: the yardstick of ingest and dispatch.

::

    consume    Consumer(on_message=ack), the message not decoded           against ingest
    publish    Producer.publish of a body serialised before, one by one    against dispatch
    batch      the same within Producer.batch(500)

Neither makes anything durable, and neither knows when a message is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import redis
from kombu import Connection, Consumer, Queue

from celery_wheel.console.output import progress
from celery_wheel.operations.bench import Pace, pace
from celery_wheel.operations.figure import Figure
from tests.benchmarks.letters import Letter

QUEUE = "bench.kombu"
BATCH = 500


@dataclass(frozen=True, slots=True)
class Yardstick:
    consume: Pace
    publish: Pace
    batch: Pace

    def figures(self) -> Iterator[Figure]:
        for name, each in (("consume", self.consume), ("publish", self.publish), (f"batch({BATCH})", self.batch)):
            yield Figure("kombu", name, each.per_s, "messages/s")
            yield Figure("kombu", f"{name}, CPU", each.cpu_us, "µs/message")


def measure(url: str, client: redis.Redis, letter: Letter, count: int) -> Yardstick:
    with Connection(url) as connection, progress("kombu", 3) as bar:
        paces = []
        for what in (_consume, _publish, _batch):
            bar(0, doing=what.__name__.strip("_"))
            paces.append(what(connection, client, letter, count))
            client.delete(QUEUE)
            bar(0, done=len(paces))
    return Yardstick(*paces)


def _consume(connection: Any, client: redis.Redis, letter: Letter, count: int) -> Pace:
    for _ in range(0, count, 1_000):
        client.lpush(QUEUE, *[letter.raw] * 1_000)
    done = 0

    def take(message: Any) -> None:
        nonlocal done
        message.ack()
        done += 1

    def work() -> None:
        with Consumer(connection.channel(), [Queue(QUEUE)], on_message=take):
            while done < count:
                connection.drain_events(timeout=10)

    return pace(work, count)


def _publish(connection: Any, _client: redis.Redis, letter: Letter, count: int) -> Pace:
    return _produce(connection, letter, count, lambda _: nullcontext())


def _batch(connection: Any, _client: redis.Redis, letter: Letter, count: int) -> Pace:
    return _produce(connection, letter, count, lambda producer: producer.batch(BATCH))


def _produce(connection: Any, letter: Letter, count: int, within: Callable[[Any], Any]) -> Pace:
    producer = connection.Producer()
    kept = {name: letter.properties[name] for name in ("correlation_id", "reply_to")}

    def work() -> None:
        with within(producer):
            for _ in range(count):
                producer.publish(
                    letter.body,
                    routing_key=QUEUE,
                    headers=letter.headers,
                    content_type="application/json",
                    content_encoding="utf-8",
                    **kept,
                )

    return pace(work, count)
