"""Frames have the bytes that py-amqp writes, and are read however the socket cuts them."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp import spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheel.broker.amqp.frames import FrameReader, frame_handler, message_frames, publish_method

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
def test_the_bytes_are_those_of_py_amqp(channel: int, size: int) -> None:
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
    handle = frame_handler(connection, lambda channel, method, arguments, content: found.append(content))
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
