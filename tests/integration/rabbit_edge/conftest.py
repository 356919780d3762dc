"""One RabbitMQ for the folder, a virtual host for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import amqp
import pytest

from celery_wheel import Celery
from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.engine.port import Published
from celery_wheel.store.model import Position, Row
from tests.rabbit import RabbitServer


@pytest.fixture
def server(rabbit_server: RabbitServer) -> RabbitServer:
    return rabbit_server


class Yard:
    """A virtual host, an app that publishes to it, an edge, and a look at what is in its queues."""

    def __init__(self, server: RabbitServer) -> None:
        self.server = server
        self.url = server.fresh()
        self.app = Celery("yard", broker=self.url, set_as_current=False)
        self.app.conf.update(task_ignore_result=True, broker_transport_options={"confirm_publish": True})
        self._edges: list[AmqpBroker] = []
        self.connection = self.app.connection_for_write()
        self.connection.connect()
        self.channel: Any = self.connection.default_channel
        self._at = Position(0, 0)

    def edge(self) -> AmqpBroker:
        edge = AmqpBroker(self.app.connection_for_write, namespace="wheel", max_message_bytes=2**26)
        self._edges.append(edge)
        return edge

    def cut_all(self) -> None:
        """End every connection of the virtual host, this one's as well."""
        self.server.ctl("close_all_connections", "--vhost", self.url.rpartition("/")[2], "the test")
        self.connection.collect()
        self.connection = self.app.connection_for_write()
        self.channel = self.connection.default_channel

    def queue(self, name: str, **arguments: Any) -> str:
        self.channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        return name

    def take(self, queue: str, count: int = 1_000) -> list[amqp.Message]:
        """What is in a queue, oldest first, at most so many."""
        found: list[amqp.Message] = []
        while len(found) < count and (message := self.channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
        return found

    def publish(self, edge: AmqpBroker, rows: list[Row], **options: Any) -> Published:
        start, self._at = self._at, Position(self._at.due_ms + 1, 0)
        return edge.publish(0, 1, 0, start, self._at, rows, 1_000, **options)

    def restart(self) -> None:
        self.server.restart()

    def close(self) -> None:
        for edge in self._edges:
            edge.close()
        self.connection.release()
        self.app.close()


@pytest.fixture
def yard(server: RabbitServer) -> Iterator[Yard]:
    found = Yard(server)
    yield found
    found.close()


def row(row_id: int, queue: str = "mail", **parts: Any) -> Row:
    values: dict[str, Any] = {
        "id": row_id,
        "lane": 0,
        "due_ms": row_id,
        "seq": row_id,
        "eta_ms": row_id,
        "task": "tasks.add",
        "exchange": "",
        "exchange_type": "direct",
        "routing_key": queue,
        "queue": queue,
        "priority": None,
        "expires_ms": None,
        "queue_expires_ms": None,
        "headers": b'{"id": "task-%d", "task": "tasks.add", "eta": null}' % row_id,
        "properties": b'{"content_type": "application/json", "content_encoding": "utf-8", "delivery_mode": 2}',
        "body": b"[[%d], {}, {}]" % row_id,
        **parts,
    }
    return Row(**values)


def ids(messages: list[amqp.Message]) -> list[str]:
    return [message.properties["application_headers"]["id"] for message in messages]


Make = Callable[[], AmqpBroker]
