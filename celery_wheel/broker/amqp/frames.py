"""AMQP as bytes: what py-amqp writes and reads, in less than half its time.

Text, null, booleans, integers, tables and arrays of nulls are handled here; all other values by py-amqp.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from ssl import SSLWantReadError
from struct import Struct, error
from typing import Any

import amqp
from amqp import Message, method_framing, spec
from amqp.serialization import decode_properties_basic, dumps

Properties = dict[str, Any]

_uint8, _uint16, _uint32, _uint64 = (Struct(f">{code}").pack for code in "BHIQ")
_int32, _int64 = (Struct(f">{code}").pack for code in "iq")
_read_uint16, _read_uint32, _read_uint64 = (Struct(f">{code}").unpack_from for code in "HIQ")
_read_int32, _read_int64 = (Struct(f">{code}").unpack_from for code in "iq")

#: Integers that py-amqp writes as 32 bits.
_LONG_MAX = 2**31 - 1


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


@lru_cache(1_024)
def _name(name: str) -> bytes:
    """Return a header's name as bytes. Raises struct.error for more than 255."""
    data = name.encode("utf-8", "surrogatepass")
    return _uint8(len(data)) + data


def encode_table(table: dict[str, Any]) -> bytes:
    parts: list[bytes] = []
    for name, value in table.items():
        kind = type(value)
        if kind is str:
            data = value.encode("utf-8", "surrogatepass")
            parts += (_name(name), b"S", _uint32(len(data)), data)
        elif value is None:
            parts += (_name(name), b"V")
        elif kind is bool:
            parts += (_name(name), b"t\x01" if value else b"t\x00")
        elif kind is int:
            write, code = (_int32, b"I") if -_LONG_MAX <= value <= _LONG_MAX else (_int64, b"L")
            parts += (_name(name), code, write(value))
        elif kind is dict:
            parts += (_name(name), b"F", encode_table(value))
        elif kind is list and not any(item is not None for item in value):
            parts += (_name(name), b"A", _uint32(len(value)), b"V" * len(value))  # ``timelimit`` mostly is one
        else:
            parts.append(dumps("F", [{name: value}])[4:])
    data = b"".join(parts)
    return _uint32(len(data)) + data


def _short_text(value: Any) -> bytes:
    data = value.encode("utf-8", "surrogatepass") if type(value) is str else value or b""
    return _uint8(len(data)) + data


_WRITERS = {"s": _short_text, "o": _uint8, "L": _uint64, "F": encode_table}
_FIELDS = [(name, 1 << 15 - place, _WRITERS[kind]) for place, (name, kind) in enumerate(Message.PROPERTIES)]


def encode_properties(properties: Properties) -> bytes:
    """Return the properties of a message as its header frame has them; unknown names are left out, as by py-amqp."""
    flags, parts = 0, [b""]
    for name, flag, write in _FIELDS:
        value = properties.get(name)
        if value is not None:
            flags |= flag
            parts.append(write(value))
    parts[0] = _uint16(flags)
    return b"".join(parts)


class _UnusualError(Exception):
    """A value that py-amqp reads."""


@lru_cache(1_024)
def _read_start(data: bytes) -> tuple[str, int]:
    """Return name and type of a header."""
    return data[1:-1].decode(), data[-1]


def _read_table(data: bytes, at: int, end: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    while at < end:
        start, at = at, at + 2 + data[at]
        name, kind = _read_start(data[start:at])
        if kind == 0x53:  # S
            start = at + 4
            at = start + _read_uint32(data, at)[0]
            table[name] = data[start:at].decode()
        elif kind == 0x56:  # V
            table[name] = None
        elif kind == 0x49:  # I
            table[name], at = _read_int32(data, at)[0], at + 4
        elif kind in b"Ll":
            table[name], at = _read_int64(data, at)[0], at + 8
        elif kind == 0x74:  # t
            table[name], at = data[at] != 0, at + 1
        elif kind == 0x46:  # F
            stop = at + 4 + _read_uint32(data, at)[0]
            table[name], at = _read_table(data, at + 4, stop), stop
        elif kind == 0x41:  # A: of nulls, which ``timelimit`` mostly is
            start, at = at + 4, at + 4 + _read_uint32(data, at)[0]
            if data[start:at].strip(b"V"):
                raise _UnusualError
            table[name] = [None] * (at - start)
        else:
            raise _UnusualError
    if at != end:
        raise _UnusualError
    return table


def decode_properties(data: bytes) -> Properties:
    """Return the properties that a header frame has. Raises errors of py-amqp, of struct and of datetime."""
    try:
        return _decode(data)
    except (_UnusualError, UnicodeDecodeError, IndexError, error):
        properties: Properties = decode_properties_basic(data, 0)[0]
        return properties


def _decode(data: bytes) -> Properties:
    found: Properties = {}
    (flags,) = _read_uint16(data, 0)
    at = 2
    for name, flag, write in _FIELDS:
        if not flags & flag:
            continue
        if write is _short_text:
            stop = at + 1 + data[at]
            found[name], at = data[at + 1 : stop].decode(), stop
        elif write is _uint8:
            found[name], at = data[at], at + 1
        elif write is encode_table:
            stop = at + 4 + _read_uint32(data, at)[0]
            found[name], at = _read_table(data, at + 4, stop), stop
        else:
            found[name], at = _read_uint64(data, at)[0], at + 8
    if at != len(data):
        raise _UnusualError
    return found


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

    def __init__(self, method: tuple[int, int], arguments: bytes, max_body: int) -> None:
        super().__init__(b"", frame_method=method, frame_args=arguments)
        self.encoded = b""
        self._max_body = max_body
        self._first = b""  #: frame of a larger body, which is not kept in memory as a whole

    def _load_properties(self, class_id: int, data: bytes, offset: int) -> int:
        self.encoded = data[offset:]
        return len(data)

    def inbound_body(self, data: bytes) -> None:
        if self.body_size <= self._max_body:
            super().inbound_body(data)
            return
        self._first = self._first or data
        self.body_received += len(data)
        if self.body_received >= self.body_size:
            self.body, self.ready = self._first, True

    def decode_properties(self) -> Properties:
        return decode_properties(self.encoded)


def frame_handler(max_body: int, connection: Any, callback: Any) -> Callable[[Frame], Any]:
    """Return a frame handler for py-amqp that delivers a RawMessage; of a body above ``max_body``, its first frame.

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
            incomplete[channel] = RawMessage(method, payload, max_body)
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
