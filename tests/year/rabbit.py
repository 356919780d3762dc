"""RabbitMQ in a simulated year: the product's own edge, over links whose server is here.

::

    AmqpBroker ─► AmqpIngress, AmqpPublisher ─► YearLink ─► Connection ─► Rabbit: the queues of the simulation's model

A connection gets its events in the order in which the server writes them: deliveries, confirms (one for all messages of
a write), and the errors by which the server closes a channel. A server that refuses has ended all connections; one that
is silent takes what is written, and answers nothing. It ends the connection of a process that stands still.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import amqp

from celery_wheel.broker import shard_of
from celery_wheel.broker.amqp import edge
from celery_wheel.broker.amqp.link import HEARTBEAT_S, AmqpLink
from celery_wheel.broker.amqp.publisher import AmqpPublisher, EncodedMessage
from celery_wheel.broker.envelope import REDELIVERED
from celery_wheel.store.model import Message, Row
from tests.kit.virtual_machine import Host, Machine
from tests.simulation.model_rabbit import RabbitServer
from tests.year.servers import SILENT, UP, Server

#: A client or server that hears nothing for so long ends the connection.
SILENCE_S = 2 * HEARTBEAT_S


class Delivery(NamedTuple):
    delivery_tag: int
    body: bytes
    message: Message
    body_size: int = 0


class Rabbit:
    def __init__(self, machine: Machine, line: Server, shards: int) -> None:
        self.machine = machine
        self.line = line
        self.changed = machine.threading.Condition()
        self.shards = [RabbitServer() for _ in range(shards)]
        self.connections: list[Connection] = []
        self.consumers: list[Channel] = []
        self.pushed: Callable[[Row, bool], None] = lambda row, is_marked: None
        self.closes_next = False  #: the second of the next messages closes their channel
        self.in_doubt_ms = 0  #: when a message last closed its channel
        self._turn = itertools.count()

    def send(self, message: Message) -> None:
        shard = shard_of(message.key, message.task_id, len(self.shards))
        self.shards[shard].wheel.append(message)
        self.deliver(shard)

    def deliver(self, shard: int) -> None:
        """Give each message to one of the queue's consumers, by turns."""
        queue, there = self.shards[shard], [one for one in self.consumers if one.shard == shard]
        while queue.wheel and there and self.line.mode == UP:
            there[next(self._turn) % len(there)].take(queue.wheel.pop(0))
        self.changed.notify_all()

    def edge(self, pushed: Callable[[Row, bool], None]) -> Any:
        self.pushed = pushed
        return edge.AmqpBroker(self, SimpleNamespace(namespace="wheel", max_kept_bytes=2**31))  # type: ignore[arg-type]

    def lose(self, lost: list[Connection]) -> None:
        """End connections; what was delivered on them goes back."""
        for one in lost:
            one.is_lost = True
            self.connections.remove(one)
            for channel in one.channels:
                self.cancel(channel)
        self.changed.notify_all()

    def cancel(self, channel: Channel) -> None:
        channel.is_open = False
        if channel in self.consumers:
            self.consumers.remove(channel)
            self.shards[channel.shard].close(channel.number)
            self.deliver(channel.shard)

    def close_channels(self) -> None:
        """Close the channels of all consumers, and that of the next publisher."""
        self.closes_next = True
        for channel in list(self.consumers):
            self.cancel(channel)
            channel.fail(amqp.exceptions.NotFound("simulated: the queue was deleted"))

    def look(self) -> None:
        now_s = self.machine.now_s
        for one in self.connections:
            if not one.host.is_frozen:
                one.heard_s = now_s
        self.lose([one for one in self.connections if now_s > one.heard_s + SILENCE_S])

    def after_death(self, host: Host) -> None:
        self.lose([one for one in self.connections if one.host is host])

    def outage(self) -> None:
        if self.line.mode != SILENT:
            self.lose(self.connections[:])
        for shard in range(len(self.shards)):
            self.deliver(shard)


class Connection:
    frame_max, bytes_sent = 131_072, 0

    def __init__(self, server: Rabbit) -> None:
        server.line.gate()
        self.server, self.host = server, server.machine.host
        self.heard_s = self.answered_s = server.machine.now_s
        self.events: deque[Callable[[], object]] = deque()
        self.channels: list[Channel] = []
        self.is_lost = False
        server.connections.append(self)

    def check(self) -> None:
        if self.is_lost:
            self.server.line.gate()
            raise ConnectionResetError("simulated")

    def channel(self) -> Channel:
        self.check()
        self.server.line.gate()
        self.channels[:] = [one for one in self.channels if one.is_open]
        self.channels.append(Channel(self))
        return self.channels[-1]

    def wait(self, seconds: float) -> None:
        with self.server.changed:
            self.server.changed.wait_for(lambda: self.events or self.is_lost, seconds)

    def heartbeat_tick(self) -> None:
        self.check()
        now_s = self.server.machine.now_s
        if self.server.line.mode != SILENT:
            self.answered_s = now_s
        elif now_s > self.answered_s + SILENCE_S:
            raise amqp.exceptions.ConnectionForced("simulated: too many heartbeats missed")

    send_heartbeat = check

    def collect(self) -> None:
        if not self.is_lost:
            self.server.lose([self])


class Channel:
    channel_id = 1

    def __init__(self, connection: Connection) -> None:
        self.connection, self.server = connection, connection.server
        self.is_open = True
        self.events: dict[str, set[Callable[..., object]]] = defaultdict(set)
        self.unwritten: list[tuple[Row, bool]] = []
        self.shard = self.number = -1
        self.tag = self.acknowledged = 0

    def queue_declare(self, queue: str = "", **_: Any) -> Any:
        return SimpleNamespace(message_count=len(self.server.shards[int(queue.rpartition(".")[2])].wheel))

    def prepare_queue_arguments(self, arguments: Any, **_: Any) -> Any:
        return arguments

    def confirm_select(self) -> None: ...

    basic_qos = basic_get = lambda self, *_, **__: None

    def send_method(self, *_: Any) -> None:
        self.connection.check()
        self.server.line.gate()

    def close(self) -> None:
        self.is_open = False

    def fail(self, error: Exception) -> None:
        """Tell the client that the server has closed the channel."""

        def tell() -> NoReturn:
            raise error

        self.connection.events.append(tell)
        self.server.changed.notify_all()

    def basic_consume(self, queue: str, *, callback: Callable[[Delivery], object], no_ack: bool) -> None:
        self.shard, self.callback = int(queue.rpartition(".")[2]), callback
        self.number = self.server.shards[self.shard].open()
        self.server.consumers.append(self)
        self.server.deliver(self.shard)

    def take(self, message: Any) -> None:
        self.tag += 1
        self.server.shards[self.shard].unacked[self.number].append(message)
        self.connection.events.append(partial(self.callback, Delivery(self.tag, message.body, message)))

    def basic_ack(self, tag: int, *, multiple: bool) -> None:
        self.connection.check()
        if self.is_open and self.server.line.mode == UP:
            del self.server.shards[self.shard].unacked[self.number][: tag - self.acknowledged]
            self.acknowledged = tag

    def flush(self) -> None:
        rows, self.unwritten = self.unwritten, []
        if self.server.line.mode != UP or not self.is_open:
            return
        for n, (row, is_marked) in enumerate(rows):
            if self.server.closes_next and n:  # a message that is sent alone would be rejected, and rightly
                self.server.closes_next = self.is_open = False
                self.server.in_doubt_ms = self.server.machine.now_ms
                self.fail(amqp.exceptions.PreconditionFailed("simulated: a message that closes the channel"))
                return
            self.tag += 1
            self.server.pushed(row, is_marked)
        if rows:
            self.connection.events.append(partial(self._confirm, self.tag))

    def _confirm(self, tag: int) -> None:
        for told in self.events["basic_ack"]:
            told(tag, True)


class YearLink(AmqpLink):
    __growth__ = True

    @property
    def connection(self) -> Any:
        if self._connection is None:
            self._connection = Connection(self._connect)  # type: ignore[arg-type]  # the server itself
            self.generation += 1
        return self._connection

    def describe(self) -> str:
        return "RabbitMQ (simulated)"

    def write(self, data: bytes) -> None:
        self._connection.check()
        for channel in list(self._connection.channels):
            channel.flush()

    def drain(self, seconds: float) -> bool:
        connection = self.connection
        if not connection.events and seconds:
            connection.wait(seconds)
        connection.check()
        if not connection.events:
            return False
        connection.events.popleft()()
        return True

    def incoming(self) -> Any:
        connection = self.connection
        return SimpleNamespace(poll=lambda ms: connection.wait(ms / 1_000))


class YearPublisher(AmqpPublisher):
    __growth__ = True

    def _add(self, row: Row, message: EncodedMessage) -> None:
        super()._add(row, message)
        self._channel.unwritten.append((row, REDELIVERED.encode() in message.properties))


@contextmanager
def links_instead() -> Iterator[None]:
    parts = {"AmqpLink": YearLink, "AmqpPublisher": YearPublisher}
    parts |= {"HolderNote": lambda *_: SimpleNamespace(take=lambda *_: None), "decode": lambda one, _: one.message}
    with mock.patch.multiple(edge, **parts):
        yield
