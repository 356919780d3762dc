"""The other side of an edge, for each kind of broker: its producers, its workers, and disturbances."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import amqp
import redis
from kombu.transport.memory import Channel, Transport

from celery_wheel import Celery
from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.redis import RedisBroker
from celery_wheel.broker.virtual import KombuBroker
from celery_wheel.errors import BrokerError
from celery_wheel.store.model import Row, Unreadable
from celery_wheel.store.ports import StoreIdentity
from celery_wheel.testing.engine import MemoryBroker
from tests.kit.chunks import BROKEN, NOW_MS, SHARD, make_row, number_in, number_of, raw, wire
from tests.kit.servers.rabbit import RabbitServer
from tests.simulation import model_rabbit, model_redis

QUEUE = wheel_queue_name("wheel", SHARD)
STORE, OTHER_STORE = "019a0000-0000-7000-8000-000000000001", "019a0000-0000-7000-8000-000000000002"

AT_A = StoreIdentity(STORE, "1", "/srv/a", "/srv/a on here")


def one_fault(usual: Callable[[str], None]) -> Callable[[str], None]:
    """Return a fault of a model that lets the next call fail, and then behaves as usual."""
    left = [BrokerError("simulated, the server is away")]

    def fault(point: str) -> None:
        if left:
            raise left.pop()
        usual(point)

    return fault


class Peer(ABC):
    """One server; each ``edge`` is another connection to it."""

    reads_raw = True  #: the edge has ``decode``, and gets its messages as bytes
    shows_oldest = True
    keeps_order = True  #: messages that are returned to the queue keep their order
    can_wait = True  #: the edge tells of messages
    blocks = False  #: ``await_message`` waits; that of a model answers at once

    def __init__(self) -> None:
        self.edges: list[Any] = []

    def edge(self) -> Any:
        self.edges.append(self.make())
        return self.edges[-1]

    @abstractmethod
    def make(self) -> Any: ...

    @abstractmethod
    def produce(self, number: int) -> None:
        """Put a message of about 100 bytes into the wheel queue."""

    @abstractmethod
    def produce_bytes(self, data: bytes) -> None:
        """Put bytes that are no message into the wheel queue."""

    @abstractmethod
    def dispatched(self, queue: str = "mail") -> list[int]:
        """Remove the rows of a queue; returns their numbers in the order in which a worker gets them."""

    def cut(self, edge: Any) -> None:
        """End the connections of the edge that waits, or let its next call get no answer."""
        raise NotImplementedError

    def disturb(self, edge: Any, epoch: int) -> None:
        """Replace the peeked messages by another message, or the connection by another."""
        edge.adopt(SHARD, epoch)

    def broken_row(self, number: int) -> Row:
        """Return a row that no queue accepts, mostly because no queue has its name."""
        return make_row(number, BROKEN)

    def close(self) -> None:
        for edge in self.edges:
            edge.close()


class RedisPeer(Peer):
    blocks = True

    def __init__(self, url: str, client: redis.Redis) -> None:
        super().__init__()
        self.url = url
        self.client = client
        client.flushall()

    def make(self, **options: Any) -> RedisBroker:
        return RedisBroker(self.url, **{"store": AT_A, "reader": QueuedMessageReader(), **options})

    def produce(self, number: int) -> None:
        self.produce_bytes(raw(number))

    def produce_bytes(self, data: bytes) -> None:
        self.client.lpush(QUEUE, data)

    def dispatched(self, queue: str = "mail") -> list[int]:
        return [number_in(one) for one in self._take(queue)]

    def headers(self) -> list[dict[str, Any]]:
        return [json.loads(one)["headers"] for one in self._take("mail")]

    def _take(self, queue: str) -> list[bytes]:
        found = self.client.lrange(queue, 0, -1)
        self.client.delete(queue)
        return found[::-1]

    def cut(self, edge: Any) -> None:
        self.client.client_kill_filter(_type="normal", skipme=True)

    def disturb(self, edge: Any, epoch: int) -> None:
        self.client.rpop(QUEUE)

    def broken_row(self, number: int) -> Row:
        self.client.set(BROKEN, "somebody's")
        return super().broken_row(number)

    def other_store(self) -> RedisBroker:
        self.edges.append(self.make(store=StoreIdentity(OTHER_STORE, "2", "/srv/b", "/srv/b on there")))
        return self.edges[-1]  # type: ignore[no-any-return]


class ModelRedisPeer(Peer):
    reads_raw = False

    def __init__(self) -> None:
        super().__init__()
        self.server = model_redis.RedisServer()

    def make(self, store: str = "a") -> model_redis.ModelRedis:
        return model_redis.ModelRedis(self.server, lambda: NOW_MS, store=store)

    def produce(self, number: int) -> None:
        self.server.keys.wheel.append(QueuedMessageReader().decode(raw(number)))

    def produce_bytes(self, data: bytes) -> None:
        self.server.keys.wheel.append(Unreadable("", "no message", data))

    def dispatched(self, queue: str = "mail") -> list[int]:
        return self.server.keys.queues.pop(queue, [])

    def cut(self, edge: Any) -> None:
        edge.fault = one_fault(edge.fault)

    def disturb(self, edge: Any, epoch: int) -> None:
        self.server.keys.wheel.pop(0)

    def broken_row(self, number: int) -> Row:
        self.server.wrong_types.add(BROKEN)
        return super().broken_row(number)

    def other_store(self) -> model_redis.ModelRedis:
        return self.make("b")


class MemoryTransportPeer(Peer):
    shows_oldest = False
    keeps_order = False
    can_wait = False

    def __init__(self) -> None:
        super().__init__()
        self.app = Celery("memory", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(task_queues=None)
        with self.app.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_declare(QUEUE)

    def make(self) -> Any:
        return KombuBroker(self.app, QueuedMessageReader())

    def produce(self, number: int) -> None:
        Channel.queues[QUEUE].put(wire(number))

    def produce_bytes(self, data: bytes) -> None:
        with self.app.connection_for_write() as connection:
            connection.Producer().publish(data, routing_key=QUEUE, content_type="x", content_encoding="binary")

    def dispatched(self, queue: str = "mail") -> list[int]:
        found = Channel.queues.get(queue)
        return [number_in(found.get_nowait()) for _ in range(found.qsize())] if found else []

    def headers(self) -> list[dict[str, Any]]:
        found = Channel.queues["mail"]
        return [found.get_nowait()["headers"] for _ in range(found.qsize())]

    def marks(self) -> list[Any]:
        return [headers.get("wheel_redelivered") for headers in self.headers()]

    def broken_row(self, number: int) -> Row:
        return make_row(number, BROKEN, exchange=BROKEN)

    def close(self) -> None:
        super().close()
        self.app.close()
        Channel.queues.clear()
        Transport.global_state.clear()


class MemoryBrokerPeer(MemoryTransportPeer):
    """Peer of the broker of ``celery_wheel.testing``, whose one object is server and connection."""

    shows_oldest = True
    keeps_order = True

    def __init__(self) -> None:
        super().__init__()
        self.broker = MemoryBroker(self.app, lambda headers, reason: None)

    def make(self) -> Any:
        return self.broker

    def produce(self, number: int) -> None:
        self.broker.arrive(wire(number))

    def produce_bytes(self, data: bytes) -> None:
        self.broker.arrivals.append(Unreadable("", "no message", data))

    def disturb(self, edge: Any, epoch: int) -> None:
        self.broker.arrivals.popleft()


class RabbitPeer(Peer):
    blocks = True

    def __init__(self, server: RabbitServer, queue_type: str = "classic") -> None:
        super().__init__()
        self.server, self.queue_type = server, queue_type
        self.app = Celery("yard", broker=server.fresh(), set_as_current=False)
        self.connection = self.app.connection_for_write()
        self.channel: Any = self.connection.default_channel
        self.channel.queue_declare("mail", durable=True, auto_delete=False)
        self.channel.queue_declare(QUEUE, durable=True, auto_delete=False, arguments={"x-queue-type": queue_type})

    def make(self) -> Any:
        return AmqpBroker(self.app.connection_for_write, QueuedMessageReader(), queue_type=self.queue_type)

    def produce(self, number: int) -> None:
        self.produce_bytes(b"x" * 100, application_headers=wire(number)["headers"])

    def produce_bytes(self, data: bytes, **properties: Any) -> None:
        self.channel.basic_publish_confirm(amqp.Message(data, **properties), routing_key=QUEUE)

    def dispatched(self, queue: str = "mail") -> list[int]:
        return [number_of(message.body) for message in self._take(queue)]

    def headers(self) -> list[dict[str, Any]]:
        return [message.properties["application_headers"] for message in self._take("mail")]

    def marks(self) -> list[Any]:
        return [headers.get("wheel_redelivered") for headers in self.headers()]

    def _take(self, queue: str) -> list[amqp.Message]:
        return list(iter(lambda: self.channel.basic_get(queue, no_ack=True), None))

    def cut(self, edge: Any) -> None:
        """End all connections of the virtual host, the peer's own as well."""
        self.server.ctl("close_all_connections", "--vhost", self.connection.virtual_host, "the test")
        self.connection.collect()
        self.connection = self.app.connection_for_write()
        self.channel = self.connection.default_channel

    def fill(self) -> str:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        self.channel.queue_declare("full", durable=True, auto_delete=False, arguments=arguments)
        for _ in range(2):
            self.channel.basic_publish(amqp.Message(b"[[0]]"), routing_key="full")
        self.channel.queue_declare("full", passive=True)  # it is full when the answer is here
        return "full"

    def close(self) -> None:
        super().close()
        self.connection.release()
        self.app.close()


class ModelRabbitPeer(Peer):
    reads_raw = False

    def __init__(self) -> None:
        super().__init__()
        self.server = model_rabbit.RabbitServer(missing={BROKEN})
        self._marks: list[bool] = []

    def make(self) -> Any:
        def pushed(_row: Row, _now_ms: int, redelivered: bool) -> None:
            self._marks.append(redelivered)

        return model_rabbit.ModelRabbit(self.server, lambda: NOW_MS, confirmed=set, pushed=pushed)

    def marks(self) -> list[Any]:
        return self._marks

    def produce(self, number: int) -> None:
        self.server.wheel.append(QueuedMessageReader().decode(raw(number)))

    def produce_bytes(self, data: bytes) -> None:
        self.server.wheel.append(Unreadable("", "no message", data))

    def dispatched(self, queue: str = "mail") -> list[int]:
        return self.server.queues.pop(queue, [])

    def cut(self, edge: Any) -> None:
        edge.cut_off()
        edge.fault = one_fault(edge.fault)

    def fill(self) -> str:
        self.server.full.add("full")
        return "full"
