"""Frames, properties and headers have the bytes that py-amqp writes, and are read as py-amqp reads them."""

import socket
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp import spec
from amqp.method_framing import frame_writer
from amqp.serialization import decode_properties_basic, dumps
from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheel.broker.amqp.frames import (
    FrameReader,
    decode_properties,
    encode_properties,
    frame_handler,
    message_frames,
    publish_method,
)

names = st.text(max_size=20) | st.just("\ud800") | st.just("x" * 300)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.sampled_from([2**31 - 1, 2**31, -(2**31), -(2**31) + 1, 2**63 - 1, -(2**63)])
    | st.floats(allow_nan=False)
    | st.text(max_size=30)
    | st.just("\ud800")
    | st.binary(max_size=10)
    | st.just(Decimal("1.25"))
    | st.just(datetime(2030, 1, 1, tzinfo=UTC))
    | st.just({1, 2})
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=8
)
texts = st.text(max_size=20) | st.just("x" * 256) | st.just("") | st.integers(0, 2) | st.just(b"bytes")
numbers = st.integers(-1, 256) | st.booleans() | st.just("2")
fields = {
    name: {"s": texts, "o": numbers, "L": st.integers(-1, 2**64), "F": st.dictionaries(names, values, max_size=6)}[kind]
    for name, kind in amqp.Message.PROPERTIES
}
properties = st.fixed_dictionaries({}, optional={**fields, "unknown": texts})


def outcome(work: Any) -> Any:
    """Return the result of a call; any error is the same outcome."""
    try:
        return repr(work())
    except Exception:
        return "an error"


@given(properties)
@example({"application_headers": {"id": "ü", "n": [None, None], "own": {"a": {"b": True}}}, "priority": 0})
@example({"application_headers": {"n": 2**31}, "correlation_id": "x" * 255, "delivery_mode": True})
def test_the_bytes_are_those_of_py_amqp(given: dict[str, Any]) -> None:
    def of_py_amqp() -> bytes:
        return amqp.Message(b"", **given)._serialize_properties()  # type: ignore[no-any-return]

    assert outcome(lambda: encode_properties(given)) == outcome(of_py_amqp)


@given(properties)
@example({"application_headers": {"timelimit": [None, None], "more": [None, 86]}})
def test_the_values_are_those_of_py_amqp(given: dict[str, Any]) -> None:
    try:
        data = amqp.Message(b"", **given)._serialize_properties()
    except Exception:
        return  # the test above compares errors
    assert outcome(lambda: decode_properties(data)) == outcome(lambda: decode_properties_basic(data, 0)[0])


@given(st.binary(max_size=60))
@example(b"\x20\x00\x00\x00\x00\x04\x02\xff\xfet\x01")
@example(b"\x20\x00\x00\x00\x00\x05\x01aA\x00\x00\x00\x00")
def test_any_bytes_are_read_as_by_py_amqp(data: bytes) -> None:
    assert outcome(lambda: decode_properties(data)) == outcome(lambda: decode_properties_basic(data, 0)[0])


@pytest.mark.parametrize("code", [b"L", b"l", b"I", b"i", b"b", b"B", b"U", b"u", b"d", b"f", b"s", b"T", b"D", b"x"])
def test_every_type_of_a_header_is_read_as_by_py_amqp(code: bytes) -> None:
    table = b"\x01n" + code + b"\x00\x00\x00\x01" * 2
    for size in range(2, len(table)):
        data = b"\x20\x00" + size.to_bytes(4, "big") + table[:size]
        assert outcome(lambda d=data: decode_properties(d)) == outcome(lambda d=data: decode_properties_basic(d, 0)[0])


FRAME_MAX = 4_096
PROPERTIES = {"application_headers": {"id": "ü"}, "priority": 0}


def written_by_py_amqp(channel: int, body: bytes) -> bytes:
    written: list[bytes] = []
    transport = SimpleNamespace(write=lambda data: written.append(bytes(data)))
    connection = SimpleNamespace(frame_max=FRAME_MAX, bytes_sent=0)
    arguments = dumps("Bssbb", (0, "news", "käy", True, False))
    write = frame_writer(connection, transport)
    write(1, channel, spec.Basic.Publish, arguments, amqp.Message(body, **PROPERTIES))
    return b"".join(written)


def message(channel: int, body: bytes) -> bytes:
    properties = amqp.Message(b"", **PROPERTIES)._serialize_properties()
    return message_frames(channel, FRAME_MAX, publish_method("news", "käy"), properties, body)


@pytest.mark.parametrize("size", [0, 1, 600, FRAME_MAX - 9, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX])
@pytest.mark.parametrize("channel", [1, 65_535])
def test_frames_have_the_bytes_of_py_amqp(channel: int, size: int) -> None:
    body = bytes(n % 251 for n in range(size))
    assert message(channel, body) == written_by_py_amqp(channel, body)


class Cut:
    """A socket that gives its bytes in pieces of given sizes, and then nothing."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes

    def recv(self, at_most: int) -> bytes:
        size = min(self._sizes.pop(0) if self._sizes else at_most, at_most)
        part, self._data = self._data[:size], self._data[size:]
        return part


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.lists(st.integers(1, 300), max_size=20))
@example([b"\xce" * 50, b""], [1] * 20)
def test_messages_are_read_whole_however_they_are_cut(bodies: list[bytes], sizes: list[int]) -> None:
    found: list[Any] = []
    connection = SimpleNamespace(bytes_recv=0)
    handle = frame_handler(2**63, connection, lambda channel, method, arguments, content: found.append(content))
    deliver = spec.Basic.Deliver
    stream = b"".join(message(1, body).replace(b"\x00\x3c\x00\x28", b"\x00\x3c\x00\x3c", 1) for body in bodies)
    reader = FrameReader(SimpleNamespace(sock=Cut(stream, sizes)))
    while len(found) < len(bodies):
        handle(reader.read_frame())
    assert [(one.frame_method, one.body) for one in found] == [(deliver, body) for body in bodies]
    assert all(one.decode_properties() == PROPERTIES for one in found)
    assert connection.bytes_recv >= len(bodies), "messages count as heartbeats"
    with pytest.raises(ConnectionResetError):
        reader.read_frame()


def test_a_wrong_end_and_a_silent_socket_are_errors() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = FrameReader(SimpleNamespace(sock=ours))
        ours.settimeout(0.001)
        with pytest.raises(TimeoutError):
            reader.read_frame()
        theirs.sendall(b"\x08\x00\x00\x00\x00\x00\x00\xcd")
        with pytest.raises(amqp.exceptions.UnexpectedFrame, match="0xcd"):
            reader.read_frame()
