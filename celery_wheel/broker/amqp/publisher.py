"""Publishing with hundreds of confirms outstanding: ten times the rate of waiting for each.

::

    rows ──write──► channel ──► server          tag → row, outstanding
                       ▲          │
                       └── ack, nack (of one or of all up to a tag), return ── confirmed, refused, failed

    a message that may close   goes alone: the first one to an exchange (which may be missing, internal or forbidden),
    the channel                a large one, one that names a user. If the channel closes, that message has failed
    the channel dies           once: unconfirmed messages are sent again, marked; twice: they are sent one at a time,
    otherwise                  and the message over which the channel closes has failed
    the connection dies        Interrupted, with the rows confirmed until then
    memory or disk alarm       the server reads nothing more: Interrupted or BrokerError after ``TIMEOUT_S``
    ``may_send`` is False      nothing more is written, also in the middle of a chunk: Interrupted

A call that fails ends its connection, so no confirm of it can be taken for a confirm of the next call. Messages that it
had written may lie in the server's socket and arrive when the alarm is over. So the next call first sends a message to
no queue, and its own messages once that was answered: however often a chunk is tried, at most one copy waits there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import amqp
from amqp import spec

from celery_wheel.broker.amqp.link import LOST, TIMEOUT_S, Link
from celery_wheel.broker.amqp.message import Ready, Unwritable, write
from celery_wheel.engine.port import Confirmed
from celery_wheel.errors import BrokerError, Interrupted
from celery_wheel.store.model import Row

WINDOW = 500
#: Messages written between two looks for acks.
LOOK_EVERY = 50
#: Seconds for which an exchange that took a message is assumed to take others.
BELIEVED_S = 30.0
#: Larger messages go alone: a server refuses a message over its configured size by closing the channel.
ALONE_BYTES = 2**19
#: Bytes of a header frame beside the properties: the frame's own fields, and the fields before the properties.
FRAME_OVERHEAD = 8 + 12

#: The server looks into these properties and headers, and may close the channel over them.
_LOOKED_INTO = ("user_id", "CC", "BCC")


class Sent(NamedTuple):
    row: Row
    message: Ready


class Publisher:
    """Publishes rows on a connection of its own, which no other code may use."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel: Any = None
        self._generation = 0
        self._tag = 0
        self._outstanding: dict[int, Sent] = {}
        self._written: set[int] = set()  #: ids of this call's rows that were written, at least in part
        self._exchanges: dict[str, float] = {}
        self._closed: dict[tuple[str, str], str] = {}  #: (exchange, routing key) → why it closed this call's channel
        self._wary = False  #: the last call was not answered: its messages may still lie in the server's socket
        self._may_send: Callable[[], bool] = bool
        self._result = Confirmed()
        self._confirmed: set[int] = set()

    def publish(self, rows: Sequence[Row], now_ms: int, redelivered: bool, may_send: Callable[[], bool]) -> Confirmed:
        """``may_send`` is asked before each message."""
        with self._link.lock:
            self._begin()
            self._may_send = may_send
            try:
                return self._publish(rows, now_ms, redelivered)
            except BrokerError:
                self._link.drop()
                raise
            except (*LOST, amqp.exceptions.ChannelError) as error:
                self._link.drop()
                raise self._interrupted(str(error)) from error
            except BaseException:
                self._link.drop()
                raise

    def _interrupted(self, why: str) -> BrokerError:
        self._wary = True
        text = f"{self._link.describe()} did not confirm every message ({why}); those in doubt are sent again, marked"
        if self._written:
            return Interrupted(text, self._confirmed)
        return BrokerError(f"{self._link.describe()} took nothing ({why}); nothing was sent; it will be tried again")

    def _begin(self) -> None:
        self._result, self._confirmed, self._written = Confirmed(), set(), set()
        self._closed = {}

    def _publish(self, rows: Sequence[Row], now_ms: int, redelivered: bool) -> Confirmed:
        self._open()
        left = rows
        for size in (WINDOW, WINDOW, 1):
            try:
                self._send(left, now_ms, redelivered, size)
                return self._result
            except amqp.exceptions.ChannelError as error:
                if size == 1:
                    raise
                reason, redelivered = str(error), True
            self._channel = None
            self._exchanges.clear()
            self._open()
            settled = self._confirmed | self._result.failed.keys() | self._result.refused.keys()
            left = [row for row in rows if row.id not in settled]
        raise AssertionError(reason)

    def _send(self, rows: Sequence[Row], now_ms: int, redelivered: bool, size: int) -> None:
        for number, row in enumerate(rows):
            message = self._written_as(row, now_ms, redelivered)
            if message is None:
                continue
            if not self._may_send():
                self._wary = bool(self._written)
                raise Interrupted("the lease is over or the shard was given up: nothing more is sent", self._confirmed)
            alone = size == 1 or self._goes_alone(row, message)
            if alone:
                self._wait(0)
            self._tag += 1
            self._outstanding[self._tag] = Sent(row, message)
            self._written.add(row.id)
            values = (0, row.exchange, row.routing_key, True, False)
            try:
                self._channel.send_method(spec.Basic.Publish, "Bssbb", values, message)
                if alone:
                    self._wait(0)
                    self._exchanges[row.exchange] = time.monotonic() + BELIEVED_S
                elif len(self._outstanding) >= size:
                    self._wait(size // 2)
                elif number % LOOK_EVERY == 0:
                    self._look()
            except amqp.exceptions.ChannelError as error:
                if not alone:
                    raise
                self._killed(row, error)
        self._wait(0)

    def _written_as(self, row: Row, now_ms: int, redelivered: bool) -> Ready | None:
        """Return the message of a row; None where it cannot be sent, and the row has failed."""
        reason = self._closed.get((row.exchange, "")) or self._closed.get((row.exchange, row.routing_key))
        if reason is None:
            try:
                message = write(row, now_ms, redelivered)
            except Unwritable as error:
                reason = str(error)
            else:
                if len(message.encoded) + FRAME_OVERHEAD <= self._link.connection.frame_max:
                    return message
                reason = f"its headers have {len(message.encoded):,} bytes, more than a frame of this connection takes"
        self._result.failed[row.id] = reason
        return None

    def _goes_alone(self, row: Row, message: Ready) -> bool:
        if self._exchanges.get(row.exchange, 0.0) <= time.monotonic() or len(row.body) > ALONE_BYTES:
            return True
        return any(name in message.properties or name in message.headers for name in _LOOKED_INTO)

    def _killed(self, row: Row, error: amqp.exceptions.ChannelError) -> None:
        """Reject a row over which the server closed the channel; it was sent alone."""
        reason = f"RabbitMQ closes the channel over it: {error}"
        self._result.failed[row.id] = reason
        if isinstance(error, amqp.exceptions.NotFound):
            reason = self._result.failed[row.id] = f"exchange {row.exchange!r} is not there"
            self._closed[row.exchange, ""] = reason
        elif isinstance(error, amqp.exceptions.AccessRefused):  # of the exchange, or of this key in it
            self._closed[row.exchange, row.routing_key] = reason
        self._channel = None
        self._open()

    # -- confirms ------------------------------------------------------------------------------------

    def _look(self) -> None:
        while self._link.drain(0):
            pass

    def _wait(self, until: int) -> None:
        """Wait until at most ``until`` messages are outstanding; raises where none is answered for ``TIMEOUT_S``."""
        moved_at, before = time.monotonic(), len(self._outstanding)
        while len(self._outstanding) > until:
            self._link.drain(0.2)
            if len(self._outstanding) < before:
                moved_at, before = time.monotonic(), len(self._outstanding)
            elif time.monotonic() > moved_at + TIMEOUT_S:
                blocked = "its memory or disk alarm is on" if self._link.blocked else f"no confirm for {TIMEOUT_S} s"
                raise self._interrupted(blocked)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for row in self._settled(tag, multiple):
            if row.id not in self._result.failed:
                self._confirmed.add(row.id)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for row in self._settled(tag, multiple):
            self._result.refused[row.id] = "RabbitMQ refused it: its queue is full, or has not enough nodes"

    def _settled(self, tag: int, multiple: bool) -> list[Row]:
        tags = [one for one in self._outstanding if one <= tag] if multiple else [tag]
        return [self._outstanding.pop(one).row for one in tags if one in self._outstanding]

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: amqp.Message) -> None:
        """Fail the row of a returned message, which has no tag: its destination, body and headers tell the row.

        Of messages that are all alike it does not matter which one is meant.
        """
        headers = message.properties.get("application_headers")
        there = [one for one in self._outstanding.values() if one.row.id not in self._result.failed]
        there = [one for one in there if (one.row.exchange, one.row.routing_key) == (exchange, routing_key)]
        same = [one for one in there if one.row.body == message.body] or there
        same = [one for one in same if one.message.headers == headers] or same
        if not same:
            raise self._interrupted(f"it gave back what was not sent, to {exchange!r} with key {routing_key!r}")
        self._result.failed[same[0].row.id] = f"no queue takes it: {error}"

    # -- channels ------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._link.is_up:
            self._look()  # the connection may be blocked or have ended: nothing is in doubt before the first write
        connection = self._link.connection
        if self._link.blocked:
            raise self._unanswered()
        if self._channel is not None and self._generation == self._link.generation:
            return
        self._channel = channel = self._confirming(connection)
        if self._generation != self._link.generation:
            self._exchanges.clear()
        self._generation = self._link.generation
        if self._wary:
            self._probe()
            channel = self._channel = self._confirming(connection)
            self._wary = False
        self._tag = 0
        self._outstanding = {}
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)

    def _confirming(self, connection: Any) -> Any:
        channel = connection.channel()
        channel.auto_decode = False  # a returned body is compared with the body that was sent
        channel.confirm_select()
        return channel

    def _probe(self) -> None:
        """Check that the server reads and answers, by a message to no queue.

        Under an alarm it reads the first message of a connection and nothing after it, so the answer to the call behind
        that message counts.
        """
        channel = self._channel
        try:
            channel.send_method(spec.Basic.Publish, "Bssbb", (0, "", "", False, False), amqp.Message(b""))
            channel.close()
        except amqp.exceptions.ChannelError:
            return  # an error is an answer too
        except TimeoutError as error:
            raise self._unanswered() from error

    def _unanswered(self) -> BrokerError:
        why = (
            "its memory or disk alarm is on; free memory or disk there" if self._link.blocked else "it does not answer"
        )
        return BrokerError(f"{self._link.describe()} takes nothing: {why}; nothing was sent; it will be tried again")
