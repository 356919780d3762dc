"""The consumer: takes every message from the queue of the tasks, in order, and writes it down before it is removed.

A message that it reads again, after a cut, has the same publication: the dispatch id, which the wheel makes anew for
each message that it publishes. So a second message of a task is told from a second delivery of one message.
"""

import json
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

import amqp
import kombu
import redis

from tests.soak.ledger import Ledger, number_of

QUEUE = "celery"

#: Messages in one transaction of the ledger.
AT_ONCE = 500

#: Seconds between two looks at an empty queue, and between two tries to reach the broker.
LOOK_S, TRY_S = 0.02, 0.5

_ERRORS = (redis.RedisError, amqp.AMQPError, kombu.exceptions.KombuError, OSError)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Consumer:
    queue_arguments: Mapping[str, Any] | None = None  #: of the queue of the tasks on RabbitMQ

    def __init__(self, url: str, ledger: Ledger, stop: threading.Event) -> None:
        self.url = url
        self.ledger = ledger
        self.stop = stop
        self.received = 0
        self._arrivals: list[tuple[Any, ...]] = []
        self._occurrences: list[tuple[Any, ...]] = []

    def run(self) -> None:
        consume = self._from_redis if self.url.startswith("redis") else self._from_rabbit
        while not self.stop.is_set():
            try:
                consume()
            except _ERRORS:
                self._arrivals, self._occurrences = [], []  # they come again
                self.stop.wait(TRY_S)

    def _from_redis(self) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=60) as client:
            while not self.stop.is_set():
                raw: Any = client.lrange(QUEUE, -AT_ONCE, -1)
                at_ms = now_ms()
                for one in reversed(raw):
                    message = json.loads(one)
                    self._note(message["headers"], message["properties"]["delivery_tag"], at_ms)
                self._write()
                if raw:
                    client.ltrim(QUEUE, 0, -len(raw) - 1)
                else:
                    self.stop.wait(LOOK_S)

    def _from_rabbit(self) -> None:
        with kombu.Connection(self.url, connect_timeout=5) as connection:
            channel = connection.default_channel
            last: list[Any] = []

            def take(message: Any) -> None:
                self._note(message.headers, message.properties.get("message_id", message.headers["id"]), now_ms())
                last[:] = [message.delivery_tag]

            queue = kombu.Queue(QUEUE, kombu.Exchange(QUEUE), QUEUE, queue_arguments=self.queue_arguments)
            with kombu.Consumer(channel, [queue], on_message=take, prefetch_count=AT_ONCE):
                while not self.stop.is_set():
                    self._drain(connection)
                    if last:
                        self._write()
                        channel.basic_ack(last.pop(), multiple=True)

    def _drain(self, connection: Any) -> None:
        """Receive what is there, half of the prefetch at most, so that the server has more to send meanwhile."""
        try:
            connection.drain_events(timeout=0.5)
            while len(self._arrivals) + len(self._occurrences) < AT_ONCE // 2:
                connection.drain_events(timeout=0.005)
        except TimeoutError:
            pass

    def _note(self, headers: Mapping[str, Any], publication: str, at_ms: int) -> None:
        number = uuid.UUID(publication).int
        rest = at_ms, (number >> 64 ^ number) & (1 << 63) - 1, bool(headers.get("wheel_redelivered"))
        occurrence = headers.get("wheel_occurrence")
        if occurrence:
            self._occurrences.append((occurrence["schedule"], occurrence["scheduled_for"], *rest))
        else:
            self._arrivals.append((number_of(headers["id"]), *rest))

    def _write(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        occurrences, self._occurrences = self._occurrences, []
        if arrivals:
            into = "INSERT INTO arrivals (number, at_ms, publication, marked) VALUES (?, ?, ?, ?)"
            self.ledger.write(into, arrivals)
        if occurrences:
            into = "INSERT INTO occurrences (name, instant_ms, at_ms, publication, marked) VALUES (?, ?, ?, ?, ?)"
            self.ledger.write(into, occurrences)
        self.received += len(arrivals) + len(occurrences)
