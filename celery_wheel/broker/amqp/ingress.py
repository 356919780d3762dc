"""The wheel queue: deliveries wait here, unacknowledged, until the store has them.

::

    queue ──deliveries, at most PREFETCH──► socket ──drain──► held ──peek──► engine ──commit──► store
      ▲                                                         └──trim: ack up to the token's tag, multiple──┘
      └── whatever was not acknowledged, when the connection ends: leave, death, silence for two heartbeats

What is held stays in order and is peeked again until it is trimmed. A token is of one connection; after another was
made ``trim`` says False, and the messages come again. Each shard has a connection of its own, so that one that is
adopted or given up disturbs no other. Nothing is read from the socket but what ``peek`` asks for: what it is bounded to
bounds the memory.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, NamedTuple

import amqp
from kombu.entity import Queue

from celery_wheel.broker.amqp.link import Link
from celery_wheel.errors import BrokerError

logger = logging.getLogger(__name__)

#: Deliveries under way at a time. They are read only as far as ``peek`` asks: the rest is in the socket.
PREFETCH = 10_000


_OTHERWISE = (
    "the wheel queue %s is there already, otherwise than the wheel makes it (%s), and is used as it is; a quorum queue "
    "must have x-delivery-limit=-1 from RabbitMQ 4 on, and none may have a maximal length or a time to live, or what "
    "waits in it is lost; producers, which declare it as well, are refused: delete it when it is empty"
)


class Token(NamedTuple):
    generation: int
    tag: int  #: of the last delivery
    size: int  #: how many deliveries


class Ingress:
    def __init__(self, link: Link, queue: Queue) -> None:
        self._link = link
        self._queue = queue
        self._held: deque[amqp.Message] = deque()
        self._channel: Any = None
        self._generation = 0
        self._epoch: int | None = None

    def adopt(self, epoch: int) -> None:
        with self._link.using(f"opening the wheel queue {self._queue.name}"):
            self._link.drop()
            self._epoch = epoch
            self._consume()

    def leave(self, epoch: int) -> None:
        with self._link.lock:
            if self._epoch == epoch:
                self._epoch = None
                self._held.clear()
                self._link.drop()

    def peek(self, max_count: int, max_bytes: int) -> tuple[list[amqp.Message], Token, bool]:
        """The oldest deliveries within the bounds, at least one if there is one; and whether there are more."""
        with self._link.using(f"reading the wheel queue {self._queue.name}"):
            if self._epoch is None:
                raise BrokerError("the wheel queue is not read: the shard was given up; nothing was taken")
            if not self._link.is_up or self._generation != self._link.generation:
                self._consume()
            self._read(max_count, max_bytes)
            held = self._held
        found: list[amqp.Message] = []
        weight = 0
        for message in held:
            weight += len(message.body)
            if found and (len(found) == max_count or weight > max_bytes):
                break
            found.append(message)
        tag = found[-1].delivery_tag if found else 0
        return found, Token(self._generation, tag, len(found)), len(held) > len(found)

    def _read(self, max_count: int, max_bytes: int) -> None:
        """Take in what has come, up to one more than the bounds."""
        held = self._held
        weight = sum(len(message.body) for message in held)
        while len(held) <= max_count and weight <= max_bytes:
            before = len(held)
            if not self._link.drain(0):
                self._link.connection.heartbeat_tick()  # it has heard the server, or has long heard nothing
                break
            weight += len(held[-1].body) if len(held) > before else 0

    def keep_alive(self) -> None:
        self._link.keep_alive(reads=False)

    def close(self) -> None:
        with self._link.lock:
            self._epoch = None
            self._held.clear()
            self._link.drop()

    def trim(self, token: Token) -> bool:
        if not token.size:
            return True
        with self._link.using("acknowledging what the store has"):
            if self._epoch is None or token.generation != self._link.generation or not self._link.is_up:
                return False
            self._channel.basic_ack(token.tag, multiple=True)
            for _ in range(token.size):
                self._held.popleft()
        return True

    def _consume(self) -> None:
        self._held.clear()
        connection = self._link.connection
        self._channel = channel = connection.channel()
        try:
            self._queue.bind(channel).declare()  # type: ignore[no-untyped-call]
        except amqp.exceptions.PreconditionFailed as error:
            # As somebody set it up by hand: a quorum queue, perhaps.
            logger.warning(_OTHERWISE, self._queue.name, error, extra={"action": "queue_otherwise"})
            self._channel = channel = connection.channel()
            channel.queue_declare(self._queue.name, passive=True)
        channel.auto_decode = False  # bodies are bytes, whatever their content encoding says
        channel.basic_qos(0, PREFETCH, False)
        channel.basic_consume(self._queue.name, callback=self._held.append, no_ack=False)
        self._generation = self._link.generation
