"""Publishing to RabbitMQ with hundreds of confirms outstanding: ten times the rate of waiting for each.

::

    a message that may close   is sent alone: the first to an exchange (which may be missing, internal or forbidden), a
    the channel                large one, one that names a user. If the channel closes, that message has failed
    the channel dies           once: unconfirmed messages are sent again, marked; twice: they are sent one at a time,
    otherwise                  and the message over which the channel closes has failed
    the connection dies        PublishInterrupted, with the rows confirmed until then
    memory or disk alarm       the server reads nothing more: PublishInterrupted or BrokerError after ``TIMEOUT_S``
    ``may_send`` is False      nothing more is written, also in the middle of a chunk: PublishInterrupted

A call that fails ends its connection. The messages that it had written may arrive when an alarm is over, so the next
call first sends a probe, a message to no queue: however often a chunk is tried, at most one copy waits there.

A worker gets the message that Celery would have sent without a delay. Headers and properties are kept as kombu's JSON;
a message with a value that AMQP or kombu's JSON cannot represent is rejected.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import takewhile
from json import JSONDecoder
from math import isfinite
from typing import Any, NamedTuple

import amqp
from amqp import spec
from kombu.utils import json

from celery_wheel.broker.amqp import frames
from celery_wheel.broker.amqp.link import CONNECTION_ERRORS, TIMEOUT_S, AmqpLink
from celery_wheel.broker.envelope import REDELIVERED
from celery_wheel.broker.errors import UnencodableMessage, stopped
from celery_wheel.broker.reader import NOT_STORED, QueuedMessageReader, read_or_reject, stored_properties
from celery_wheel.engine.port import Confirmed
from celery_wheel.errors import BrokerError, PublishInterrupted
from celery_wheel.store.model import Message, Row, Unreadable
from celery_wheel.store.schedule_model import SLOT
from celery_wheel.values.error_text import MAX_ERROR, Malformed, error_text
from celery_wheel.values.format import printable
from celery_wheel.values.ids import dispatch_ids

_dumps_any: Any = json.dumps
_loads_typed: Any = json.loads
_dumps = json.JSONEncoder().encode
_decode_json = JSONDecoder().decode
#: Marks a value that kombu's JSON reads as an object of Python.
_TYPED = b"__type__"

_PERSISTENT = 2

#: The header that has the bytes of properties that cannot be read.
UNREADABLE = "unreadable"

#: Longest name of an exchange or routing key, in bytes.
_MAX_NAME_BYTES = 255

#: Numbers in kombu's JSON that AMQP does not allow.
_NOT_FINITE = (b"NaN", b"Infinity")


def decode(raw: frames.RawMessage, reader: QueuedMessageReader) -> Message | Unreadable:
    """Read a delivery of the wheel queue."""
    properties: dict[str, Any] = {"application_headers": {UNREADABLE: raw.encoded}}

    def read() -> Message:
        nonlocal properties
        try:
            properties = raw.decode_properties()
        except Exception as error:
            raise Malformed("its properties cannot be read: they are no AMQP") from error
        reader.check_size(raw.body_size)
        headers = properties.get("application_headers")
        if type(headers) is not dict:
            raise Malformed(f"headers must be an object, not {type(headers).__name__}")
        stored = stored_properties(properties, properties.get("content_type"), properties.get("content_encoding"))
        return reader.message(dict(headers), _dumps(stored).encode(), raw.body, _dumps)

    return read_or_reject(read, lambda: _as_virtual(properties, raw.body), reader.max_kept_bytes)


def _as_virtual(properties: dict[str, Any], body: bytes) -> bytes:
    """Return the whole message in the form of kombu's virtual transports, which can be read and sent again."""
    rest = {name: value for name, value in properties.items() if name not in NOT_STORED}
    message = {
        "body": b64encode(body).decode(),
        "content-encoding": properties.get("content_encoding"),
        "content-type": properties.get("content_type"),
        "headers": properties.get("application_headers"),
        "properties": {**rest, "body_encoding": "base64"},
    }
    encoded: bytes = _dumps_any(_with_text_names(message), default=repr).encode()
    return encoded


def _with_text_names(value: Any) -> Any:
    """Return a copy whose names are text: in AMQP they may be any bytes."""
    if isinstance(value, dict):
        return {
            name.decode("latin-1") if isinstance(name, bytes) else name: _with_text_names(item)
            for name, item in value.items()
        }
    return [_with_text_names(item) for item in value] if isinstance(value, list) else value


class EncodedMessage(NamedTuple):
    """A message whose values are encoded at once: a value that AMQP cannot carry fails here, not within a frame."""

    exchange: str
    routing_key: str
    method: bytes
    properties: bytes
    body: bytes
    is_checked: bool  #: the server checks one of its properties or headers, and may close the channel over it


def encode(row: Row, now_ms: int, redelivered: bool, message_id: str) -> EncodedMessage:
    """Return the message of a row. Raises UnencodableMessage."""
    address = row.route.exchange, row.route.routing_key
    method = _method(*address)
    try:
        encoded_headers, encoded_properties, body = row.parts()
        headers, properties = _loads(encoded_headers), _loads(encoded_properties)
        if type(headers) is not dict or type(properties) is not dict:
            raise Malformed("they must be objects")
        if any(word in encoded_headers for word in _NOT_FINITE):
            _check_finite(headers)
        if redelivered:
            headers[REDELIVERED] = True
        if row.reports:
            headers[SLOT] = row.id  # a retry has inherited another one
        properties.setdefault("delivery_mode", _PERSISTENT)
        properties.setdefault("message_id", message_id)
        if row.expires_ms is not None:
            properties["expiration"] = str(max(0, row.expires_ms - now_ms))
        properties["priority"], properties["application_headers"] = row.route.priority or 0, headers
        is_checked = "user_id" in properties or "CC" in headers or "BCC" in headers
        return EncodedMessage(*address, method, frames.encode_properties(properties), body, is_checked)
    except Exception as error:
        raise UnencodableMessage(f"its headers or properties cannot be sent by AMQP: {error_text(error)}") from error


@lru_cache(1_024)
def _method(exchange: str, routing_key: str) -> bytes:
    for name, value in (("exchange", exchange), ("routing key", routing_key)):
        if (size := len(value.encode())) > _MAX_NAME_BYTES:
            raise UnencodableMessage(f"{name} must be at most {_MAX_NAME_BYTES} bytes in AMQP, got {size}: {value!r}")
    return frames.publish_method(exchange, routing_key)


def _loads(data: bytes) -> Any:
    """Read JSON as kombu does, whose function calls another one for each object to find types of its own."""
    return _loads_typed(data) if _TYPED in data else _decode_json(data.decode())


def _check_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinity, over which RabbitMQ ends the connection."""
    if isinstance(value, float) and not isfinite(value):
        raise Malformed(f"numbers must be finite, got {value}")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(item)


WINDOW = 500
#: Bytes of messages that are written to the socket at once; confirms are read after each write.
WRITE_BYTES = 2**16
#: Seconds for which an exchange that accepted a message is assumed to accept others.
EXCHANGE_CHECK_S = 30.0
#: Exchanges that are known at a time; an application may name one for each of its tasks.
MOST_EXCHANGES = 1_000
#: Larger messages go alone: a server refuses a message over its configured size by closing the channel.
ALONE_BYTES = 2**19

_SERVER_ERRORS = (*CONNECTION_ERRORS, amqp.exceptions.ChannelError)


class Outstanding(NamedTuple):
    """A message that is not yet confirmed."""

    row: Row
    message: EncodedMessage


class AmqpPublisher:
    """Publishes rows on a connection of its own, which no other code may use."""

    def __init__(self, link: AmqpLink) -> None:
        self._link = link
        self._channel: Any = None
        self._generation = 0
        self._tag = 0
        self._outstanding: dict[int, Outstanding] = {}
        self._unwritten: list[bytes] = []  #: frames of the latest outstanding messages
        self._unwritten_bytes = 0
        self._has_written = False  #: this call has written a message, at least in part
        self._exchanges: dict[str, float] = {}
        self._closed: dict[tuple[str, str], str] = {}  #: (exchange, routing key) → why it closed this call's channel
        self._probe_first = False  #: the last call got no answer: its messages may still be in the server's socket
        self._may_send: Callable[[], bool] = bool
        self._result = Confirmed()
        self._confirmed: set[int] = set()

    def publish(self, rows: Sequence[Row], now_ms: int, redelivered: bool, may_send: Callable[[], bool]) -> Confirmed:
        """Publish the rows; ``may_send`` is called before each message."""
        with self._link.lock:
            self._result, self._confirmed, self._has_written = Confirmed(), set(), False
            self._closed = {}
            self._may_send = may_send
            try:
                return self._publish(rows, now_ms, redelivered)
            except BaseException as error:
                self._link.drop()
                # BrokerError is an OSError as well, and has its text already.
                if isinstance(error, BrokerError) or not isinstance(error, _SERVER_ERRORS):
                    raise
                raise self._interruption(str(error)) from error

    def _interruption(self, why: str) -> BrokerError:
        self._probe_first = True
        server = self._link.describe()
        if not self._has_written:
            return BrokerError(f"{server} accepted no message ({why}); nothing was sent; the chunk is tried again")
        text = f"{server} did not confirm every message ({why}); messages in doubt are sent again, marked"
        return PublishInterrupted(text, self._confirmed)

    def _publish(self, rows: Sequence[Row], now_ms: int, redelivered: bool) -> Confirmed:
        self._open()
        remaining = rows
        for size in (WINDOW, WINDOW, 1):
            try:
                self._send(remaining, now_ms, redelivered, size)
                break
            except amqp.exceptions.ChannelError:
                if size == 1:
                    raise
            redelivered = True
            self._channel = None
            self._exchanges.clear()
            self._open()
            settled = self._confirmed | self._result.failed.keys() | self._result.refused.keys()
            remaining = [row for row in rows if row.id not in settled]
        return self._result

    def _send(self, rows: Sequence[Row], now_ms: int, redelivered: bool, size: int) -> None:
        for row, message_id in zip(rows, dispatch_ids(now_ms), strict=False):
            message = self._encode(row, now_ms, redelivered, message_id.decode())
            if message is None:
                continue
            if not self._may_send():
                self._probe_first = self._has_written
                raise stopped(self._confirmed)
            is_known = self._exchanges.get(message.exchange, 0.0) > time.monotonic()
            if size == 1 or not is_known or len(message.body) > ALONE_BYTES or message.is_checked:
                self._send_alone(row, message)
                continue
            self._add(row, message)
            if len(self._outstanding) >= size:
                self._await_confirms(size // 2)
            elif self._unwritten_bytes >= WRITE_BYTES:
                self._write()
                self._read_confirms()
        self._await_confirms(0)

    def _send_alone(self, row: Row, message: EncodedMessage) -> None:
        self._await_confirms(0)
        self._add(row, message)
        try:
            self._await_confirms(0)
            if len(self._exchanges) >= MOST_EXCHANGES:
                self._exchanges.clear()
            self._exchanges[message.exchange] = time.monotonic() + EXCHANGE_CHECK_S
        except amqp.exceptions.ChannelError as error:
            self._reject_closing(row, message, error)

    def _add(self, row: Row, message: EncodedMessage) -> None:
        data = frames.message_frames(self._channel.channel_id, self._link.connection.frame_max, *message[2:5])
        self._tag += 1
        self._outstanding[self._tag] = Outstanding(row, message)
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)

    def _write(self) -> None:
        if not self._unwritten:
            return
        data = b"".join(self._unwritten)
        self._unwritten, self._unwritten_bytes = [], 0
        self._has_written = True
        self._link.write(data)

    def _encode(self, row: Row, now_ms: int, redelivered: bool, message_id: str) -> EncodedMessage | None:
        """Return the message of a row; None where it cannot be sent and the row has failed."""
        try:
            message = encode(row, now_ms, redelivered, message_id)
        except UnencodableMessage as error:
            self._result.failed[row.id] = str(error)
            return None
        to = message.exchange, message.routing_key
        reason = self._closed.get((message.exchange, "")) or self._closed.get(to) if self._closed else None
        if len(message.properties) + frames.BEFORE_PROPERTIES + frames.OVERHEAD > self._link.connection.frame_max:
            reason = f"headers must fit into one frame of this connection, got {len(message.properties):,} bytes"
        if reason is None:
            return message
        self._result.failed[row.id] = reason
        return None

    def _reject_closing(self, row: Row, message: EncodedMessage, error: amqp.exceptions.ChannelError) -> None:
        """Reject a row over which the server closed the channel; it was sent alone."""
        said = error.reply_text or type(error).__name__
        if message.is_checked:  # the server quotes the property or header
            said = said.partition(" ")[0]
        reason = f"RabbitMQ closes the channel over it: {printable(said, MAX_ERROR)}"
        if isinstance(error, amqp.exceptions.NotFound):
            reason = self._closed[message.exchange, ""] = f"exchange {message.exchange!r} does not exist"
        elif isinstance(error, amqp.exceptions.AccessRefused):  # to the exchange, or to this key in it
            self._closed[message.exchange, message.routing_key] = reason
        self._result.failed[row.id] = reason
        self._channel = None
        self._open()

    def _read_confirms(self) -> None:
        while self._link.drain(0):
            pass

    def _await_confirms(self, at_most: int) -> None:
        """Write, and wait until at most so many are outstanding; raises where none is confirmed for ``TIMEOUT_S``."""
        self._write()
        moved_at, before = time.monotonic(), len(self._outstanding)
        while len(self._outstanding) > at_most:
            self._link.drain(0.2)
            if len(self._outstanding) < before:
                moved_at, before = time.monotonic(), len(self._outstanding)
            elif time.monotonic() > moved_at + TIMEOUT_S:
                why = "its memory or disk alarm is on" if self._link.blocked else f"no confirm for {TIMEOUT_S} s"
                raise self._interruption(why)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for row in self._pop_settled(tag, multiple):
            if row.id not in self._result.failed:
                self._confirmed.add(row.id)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for row in self._pop_settled(tag, multiple):
            self._result.refused[row.id] = "RabbitMQ refused it: its queue is full, or has not enough nodes"

    def _pop_settled(self, tag: int, multiple: bool) -> list[Row]:
        tags = list(takewhile(tag.__ge__, self._outstanding)) if multiple else [tag]
        return [self._outstanding.pop(tag).row for tag in tags if tag in self._outstanding]

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: frames.RawMessage) -> None:
        """Fail the row of a returned message, which has no tag: destination, body and headers identify the row.

        Any of several equal messages will do.
        """
        headers = message.decode_properties().get("application_headers")
        there = [
            sent
            for sent in self._outstanding.values()
            if sent.row.id not in self._result.failed
            and (sent.message.exchange, sent.message.routing_key) == (exchange, routing_key)
        ]
        same = [sent for sent in there if sent.message.body == message.body] or there
        same = [
            sent
            for sent in same
            if frames.decode_properties(sent.message.properties).get("application_headers") == headers
        ] or same
        if not same:
            raise self._interruption(f"it returned an unknown message, to {exchange!r} with key {routing_key!r}")
        self._result.failed[same[0].row.id] = f"no queue is bound: {error}"

    def _open(self) -> None:
        if self._link.is_up:
            self._read_confirms()  # the connection may be blocked or have ended: no message is in doubt yet
        connection = self._link.connection
        if self._link.blocked:
            raise self._unanswered()
        if self._channel is not None and self._generation == self._link.generation:
            return
        if self._probe_first:
            self._probe(connection.channel())
            self._probe_first = False
        self._channel = channel = connection.channel()
        channel.auto_decode = False  # a returned body is compared with the body that was sent
        channel.confirm_select()
        if self._generation != self._link.generation:
            self._exchanges.clear()
        self._generation = self._link.generation
        self._tag = 0
        self._outstanding, self._unwritten, self._unwritten_bytes = {}, [], 0
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)

    def _probe(self, channel: Any) -> None:
        """Check that the server reads and answers, by a message to no queue, without a confirm.

        Under an alarm the server reads the first message of a connection and nothing after it, so the answer to the
        call behind that message counts.
        """
        try:
            channel.send_method(spec.Basic.Publish, "Bssbb", (0, "", "", False, False), amqp.Message(b""))
            channel.close()
        except amqp.exceptions.ChannelError:
            return  # an error is an answer too
        except TimeoutError as error:
            raise self._unanswered() from error

    def _unanswered(self) -> BrokerError:
        alarm = "its memory or disk alarm is on; free memory or disk there"
        why = alarm if self._link.blocked else "it does not answer"
        return BrokerError(
            f"{self._link.describe()} accepts nothing: {why}; nothing was sent; the chunk is tried again"
        )
