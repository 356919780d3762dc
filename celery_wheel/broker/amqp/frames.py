"""Frames of a py-amqp connection, many in one call of the socket: py-amqp reads each by three calls.

::

    message_frames   a message as bytes: the publisher joins some dozens of them for one write
    FrameReader      reads all that the socket has, and returns it frame by frame
    frame_handler    py-amqp's, with messages whose properties stay bytes until they are needed
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from ssl import SSLWantReadError
from typing import Any

import amqp
from amqp import method_framing, spec
from amqp.serialization import dumps

from celery_wheel.broker.amqp.properties import Properties, decode_properties

Frame = tuple[int, int, bytes]

#: Bytes that one read asks the socket for.
READ_BYTES = 2**16
#: Bytes of a frame beside its payload.
OVERHEAD = 8
#: Bytes of a header frame before the properties: class, weight and the body's size.
BEFORE_PROPERTIES = 12

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_END_BYTE = bytes([_END])

_start = struct.Struct(">BHI")
_header = struct.Struct(">BHIHHQ")
_CONTENT = {struct.pack(">HH", *method): method for method in (spec.Basic.Deliver, spec.Basic.Return, spec.Basic.GetOk)}


def publish_method(exchange: str, routing_key: str) -> bytes:
    """Return the payload of ``basic.publish`` with ``mandatory``."""
    arguments: bytes = dumps("Bssbb", (0, exchange, routing_key, True, False))
    return struct.pack(">HH", *spec.Basic.Publish) + arguments


def message_frames(channel: int, frame_max: int, method: bytes, properties: bytes, body: bytes) -> bytes:
    """Return the frames of a message; its properties fit into one frame."""
    size, most = len(body), frame_max - OVERHEAD
    parts = [
        _start.pack(_METHOD, channel, len(method)),
        method,
        _END_BYTE,
        _header.pack(_HEADER, channel, BEFORE_PROPERTIES + len(properties), spec.Basic.CLASS_ID, 0, size),
        properties,
        _END_BYTE,
    ]
    for at in range(0, size, most):
        part = body if size <= most else body[at : at + most]
        parts += (_start.pack(_BODY, channel, len(part)), part, _END_BYTE)
    return b"".join(parts)


class FrameReader:
    """Takes the place of the transport's ``read_frame``."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._data = b""
        self._at = 0

    def take(self) -> Frame | None:
        """Return the next frame that was read; None if it was not read as a whole."""
        data, at = self._data, self._at
        if len(data) - at < OVERHEAD:
            return None
        kind, channel, size = _start.unpack_from(data, at)
        stop = at + OVERHEAD - 1 + size
        if stop >= len(data):
            return None
        if data[stop] != _END:
            raise amqp.exceptions.UnexpectedFrame(f"a frame ends with {data[stop]:#04x} instead of 0xce")
        self._at = stop + 1
        return kind, channel, data[at + OVERHEAD - 1 : stop]

    def read(self) -> None:
        """Read once from the socket. Raises TimeoutError by the socket's timeout."""
        sock = self._transport.sock
        if sock is None:
            raise amqp.exceptions.RecoverableConnectionError("the connection has ended")
        try:
            data = sock.recv(READ_BYTES)
        except (BlockingIOError, SSLWantReadError) as error:
            raise TimeoutError("no answer") from error
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._data = self._data[self._at :] + data
        self._at = 0

    def read_frame(self) -> Frame:
        while (frame := self.take()) is None:
            self.read()
        return frame


class RawMessage(amqp.Message):  # type: ignore[misc]
    """A message of the server; reading its properties may raise any error, as they may be any bytes."""

    def __init__(self, method: tuple[int, int], arguments: bytes) -> None:
        super().__init__(b"", frame_method=method, frame_args=arguments)
        self.encoded = b""

    def _load_properties(self, class_id: int, data: bytes, offset: int) -> int:
        self.encoded = data[offset:]
        return len(data)

    def decode_properties(self) -> Properties:
        return decode_properties(self.encoded)


def frame_handler(connection: Any, callback: Any) -> Callable[[Frame], Any]:
    """Return a frame handler for py-amqp that delivers a RawMessage.

    py-amqp's own reads the properties at once: one message whose properties it cannot read would end every connection
    to which the message is delivered.
    """
    handle = method_framing.frame_handler(connection, callback)
    incomplete: dict[int, RawMessage] = {}

    def on_frame(frame: Frame) -> Any:
        kind, channel, payload = frame
        message = incomplete.get(channel)
        if message is None:
            method = _CONTENT.get(payload[:4]) if kind == _METHOD else None
            if method is None:
                return handle(frame)
            incomplete[channel] = RawMessage(method, payload)
            return False
        if kind == _HEADER:
            message.inbound_header(payload)
        elif kind == _BODY:
            message.inbound_body(payload)
        else:
            raise amqp.exceptions.UnexpectedFrame(f"a frame of type {kind} came within a message")
        if not message.ready:
            return False
        connection.bytes_recv += 1  # it counts as a heartbeat
        del incomplete[channel]
        callback(channel, message.frame_method, message.frame_args, message)
        return True

    return on_frame
