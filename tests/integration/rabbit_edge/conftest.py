"""The tests share one RabbitMQ, and each test has a virtual host of its own."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import amqp
import pytest

from celery_wheel import Celery
from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.port import Confirmed
from celery_wheel.store.model import ORIGIN, Row
from tests.kit.chunks import at, chunk_of
from tests.kit.servers.rabbit import RabbitServer


class Yard:
    """A virtual host with an app that publishes to it, an edge, and methods that read its queues."""

    def __init__(self, server: RabbitServer) -> None:
        self.server = server
        self.url = server.fresh()
        self.app = Celery("yard", broker=self.url, set_as_current=False)
        self.app.conf.update(task_ignore_result=True, broker_transport_options={"confirm_publish": True})
        self._edges: list[AmqpBroker] = []
        self.connection = self.app.connection_for_write()
        self.connection.connect()
        self.channel: Any = self.connection.default_channel

    def edge(self) -> AmqpBroker:
        edge = AmqpBroker(self.app.connection_for_write, QueuedMessageReader(max_message_bytes=2**26))
        self._edges.append(edge)
        return edge

    def adopted(self) -> AmqpBroker:
        edge = self.edge()
        edge.adopt(0, 1)
        return edge

    def send(self, count: int, **options: Any) -> list[str]:
        return [self.app.send_task("tasks.add", (n,), countdown=60, queue="mail", **options).id for n in range(count)]

    def cut_all(self) -> None:
        """End every connection of the virtual host, the yard's own as well."""
        self.server.ctl("close_all_connections", "--vhost", self.url.rpartition("/")[2], "the test")
        self.connection.collect()
        self.connection = self.app.connection_for_write()
        self.channel = self.connection.default_channel

    def limit_memory(self, share: str, *edges: AmqpBroker) -> None:
        """Set the share of memory above which the server raises its alarm.

        ``rabbitmqctl`` may take longer than the server waits for a heartbeat, so the edges go on sending theirs.
        """
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(self.server.ctl, "set_vm_memory_high_watermark", share)
            while wait([done], timeout=0.5).not_done:
                for edge in edges:
                    edge.keep_alive()
            done.result()

    def queue(self, name: str, **arguments: Any) -> str:
        self.channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        return name

    def take(self, queue: str, count: int = 1_000) -> list[amqp.Message]:
        found: list[amqp.Message] = []
        while len(found) < count and (message := self.channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
        return found

    def publish(
        self, edge: AmqpBroker, rows: list[Row], may_send: Callable[[], bool] = lambda: True, **options: Any
    ) -> Confirmed:
        return edge.publish(chunk_of(ORIGIN, at(1), rows, now_ms=1_000, **options), may_send)

    def restart(self) -> None:
        self.server.restart()

    def close(self) -> None:
        for edge in self._edges:
            edge.close()
        self.connection.release()
        self.app.close()


@pytest.fixture
def yard(rabbit_server: RabbitServer) -> Iterator[Yard]:
    found = Yard(rabbit_server)
    yield found
    found.close()


def ids(messages: list[amqp.Message]) -> list[str]:
    return [message.properties["application_headers"]["id"] for message in messages]
