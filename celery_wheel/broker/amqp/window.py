"""Publishing with hundreds of confirms outstanding: ten times the rate of waiting for each.

::

    rows ──write──► channel ──► server          tag → row, outstanding
                       ▲          │
                       └── ack, nack (of one or of all up to a tag), return ── confirmed, refused, failed

    a missing exchange         closes the channel: each is asked for on a channel beside, before its first message
    the channel dies           once: what is not confirmed is sent again, marked; twice: one at a time, and the message
                               that kills it is the one that failed
    the connection dies        Interrupted, with what was confirmed until then
    memory or disk alarm       the server reads nothing more: Interrupted or BrokerError after ``TIMEOUT_S``

A call that fails ends its connection: no confirm of it can be taken for one of the next call's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import amqp
from amqp import spec

from celery_wheel.broker.amqp.link import LOST, TIMEOUT_S, Link
from celery_wheel.broker.amqp.message import Unwritable, write
from celery_wheel.engine.port import Published, Verdict
from celery_wheel.errors import BrokerError, Interrupted
from celery_wheel.store.model import Row

WINDOW = 500
#: Acks are looked for after so many messages.
LOOK_EVERY = 50
#: An exchange that was there is believed to be there for so long.
BELIEVED_S = 30.0


class Window:
    """One publishing connection. The caller's rows are its own business until they are confirmed or not."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel: Any = None
        self._generation = 0
        self._tag = 0
        self._outstanding: dict[int, Row] = {}
        self._written: set[int] = set()  #: ids of the rows of this call of which something went over the wire
        self._exchanges: dict[str, float] = {}
        self._result = Published(Verdict.PUBLISHED)
        self._confirmed: set[int] = set()

    def publish(self, rows: Sequence[Row], now_ms: int, again: bool) -> Published:
        with self._link.lock:
            self._begin()
            try:
                return self._publish(rows, now_ms, again)
            except (*LOST, amqp.exceptions.ChannelError) as error:
                self._link.drop()
                raise self._interrupted(str(error)) from error
            except BaseException:
                self._link.drop()
                raise

    def _interrupted(self, why: str) -> BrokerError:
        text = f"{self._link.describe()} did not confirm all that was sent ({why}); what is in doubt is sent again"
        if self._written:
            return Interrupted(text, self._confirmed)
        return BrokerError(f"{self._link.describe()} took nothing ({why}); nothing was sent, and it is tried again")

    def _begin(self) -> None:
        self._result, self._confirmed, self._written = Published(Verdict.PUBLISHED), set(), set()

    def _publish(self, rows: Sequence[Row], now_ms: int, again: bool) -> Published:
        self._open()
        left = self._routable(rows)
        for size in (WINDOW, WINDOW, 1):
            try:
                self._send(left, now_ms, again, size)
                return self._result
            except amqp.exceptions.ChannelError as error:
                if size == 1:
                    raise
                reason, again = str(error), True
            self._channel = None
            self._open()
            settled = self._confirmed | self._result.failed.keys() | self._result.refused.keys()
            left = [row for row in rows if row.id not in settled]
            if size == WINDOW:
                self._exchanges.clear()
                left = self._routable(left)
        raise AssertionError(reason)

    def _send(self, rows: Sequence[Row], now_ms: int, again: bool, size: int) -> None:
        for number, row in enumerate(rows):
            try:
                message = write(row, now_ms, again)
            except Unwritable as error:
                self._result.failed[row.id] = str(error)
                continue
            self._tag += 1
            self._outstanding[self._tag] = row
            self._written.add(row.id)
            values = (0, row.exchange, row.routing_key, True, False)
            try:
                self._channel.send_method(spec.Basic.Publish, "Bssbb", values, message)
                if size == 1 or len(self._outstanding) >= size:
                    self._wait(0 if size == 1 else size // 2)
                elif number % LOOK_EVERY == 0:
                    self._look()
            except amqp.exceptions.ChannelError as error:
                if size > 1:
                    raise
                self._result.failed[row.id] = f"RabbitMQ closes the channel over it: {error}"
                self._channel = None
                self._open()
        self._wait(0)

    # -- confirms ------------------------------------------------------------------------------------

    def _look(self) -> None:
        while self._link.drain(0):
            pass

    def _wait(self, until: int) -> None:
        """Until so few are outstanding. Nothing may stand still for longer than the time-out."""
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
        return [self._outstanding.pop(one) for one in tags if one in self._outstanding]

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: amqp.Message) -> None:
        """It comes before its confirm. Of messages that are all alike it does not matter which one is meant."""
        body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
        for row in self._outstanding.values():
            if row.id not in self._result.failed and (row.exchange, row.routing_key, row.body) == (
                exchange,
                routing_key,
                body,
            ):
                self._result.failed[row.id] = f"no queue takes it: {error}"
                return

    # -- channels ------------------------------------------------------------------------------------

    def _open(self) -> None:
        connection = self._link.connection
        if self._link.blocked:
            self._look()
        if self._link.blocked:
            raise BrokerError(
                f"{self._link.describe()} takes nothing while its memory or disk alarm is on; nothing was sent, and it "
                "is tried again; free memory or disk there"
            )
        if self._channel is not None and self._generation == self._link.generation:
            return
        self._channel = channel = connection.channel()
        self._generation = self._link.generation
        self._tag = 0
        self._outstanding = {}
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)

    def _routable(self, rows: Sequence[Row]) -> list[Row]:
        """Without those whose exchange is not there: these have failed."""
        found: list[Row] = []
        for row in rows:
            if not row.exchange or self._is_there(row.exchange):
                found.append(row)
            else:
                self._result.failed[row.id] = f"exchange {row.exchange!r} is not there"
        return found

    def _is_there(self, exchange: str) -> bool:
        if self._exchanges.get(exchange, 0.0) > time.monotonic():
            return True
        channel = self._link.connection.channel()
        try:
            channel.exchange_declare(exchange, "direct", passive=True)
        except amqp.exceptions.NotFound:
            return False
        channel.close()
        self._exchanges[exchange] = time.monotonic() + BELIEVED_S
        return True
