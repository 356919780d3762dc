"""The replies of Redis as bytes: an item that is far too large passes by, and only its two ends are held.

Another process may push a message of any size, and memory must stay bounded. Redis has no command for the size of an
item of a list, and a script that measures items copies each of them three times more, while Redis serves nobody else.
So ``ReplyReader`` measures the items as they arrive. CPU time of Redis 7.0:

::

                                          LRANGE       a script with LRANGE
    5,000 messages of 600 bytes           0.5 µs       2.3 µs      each
    5,000 messages of 5 kB                2.6 µs       16 µs       each
    one message of 100 MB                 0.10 s       0.43 s

Promises: a reply is what redis-py's own parser makes of it, and takes no more time. Memory holds
``END`` bytes at each end of an item above ``max_item``.

Non-promises: Redis makes a reply as a whole before it sends it, and the network carries all of it.
"""

from __future__ import annotations

import select
from typing import Any

from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse

from celery_wheel.broker.reader import BEGINNING

#: Bytes that are held of the end of a cut item: ``trim.lua`` compares at most as many.
END = 2**16

#: Bytes that one read asks the socket for.
READ_BYTES = 2**16

#: A class that differs by the version of redis-py and by whether hiredis is installed.
_parser: Any = DefaultParser


class Cut(bytes):
    """The beginning of an item that is larger than ``max_item``."""

    size: int  #: of the whole item
    end: bytes


class ReplyReader(_parser):  # type: ignore[misc]
    """Takes the place of redis-py's parser of RESP2, from which it takes the classes of errors."""

    def __init__(self, max_item: int, socket_read_size: int) -> None:
        self._max_item = max(max_item, BEGINNING + END)  # the two ends do not overlap
        self._sock: Any = None
        self._data = b""
        self._at = 0

    def on_connect(self, connection: Any) -> None:
        self._sock, self._data, self._at = connection._sock, b"", 0

    def on_disconnect(self) -> None:
        self._sock, self._data, self._at = None, b"", 0

    def can_read(self, timeout: float = 0) -> bool:
        """Whether a reply, or the end of the connection, can be read within the seconds."""
        if self._at < len(self._data) or (hasattr(self._sock, "pending") and self._sock.pending()):
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(timeout * 1_000))

    def read_response(self, disable_decoding: bool = False, **_: Any) -> Any:
        """Return the next reply, whose texts stay bytes; an error is returned, or raised if it ends the connection."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return self._item(int(rest))
        if kind == b"*":
            return [self.read_response() for _ in range(int(rest))] if rest != b"-1" else None
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        if kind != b"-":
            raise InvalidResponse(f"a reply of Redis begins with {line[:20]!r}")
        error = self.parse_error(rest.decode("utf-8", "replace"))
        if isinstance(error, RedisConnectionError):
            raise error
        return error

    def _line(self) -> bytes:
        while (stop := self._data.find(b"\r\n", self._at)) < 0:
            self._data, self._at = self._data[self._at :] + self._receive(), 0
        at, self._at = self._at, stop + 2
        return self._data[at:stop]

    def _item(self, size: int) -> bytes | None:
        if size < 0:
            return None
        if size <= self._max_item:
            return self._take(size + 2)[:-2]
        item = Cut(self._take(BEGINNING))
        self._skip(size - BEGINNING - END)
        item.size, item.end = size, self._take(END + 2)[:-2]
        return item

    def _take(self, size: int) -> bytes:
        at, self._at = self._at, self._at + size
        if self._at <= len(self._data):
            return self._data[at : self._at]
        parts, missing = [self._data[at:]], self._at - len(self._data)
        while missing > 0:
            parts.append(self._receive())
            missing -= len(parts[-1])
        self._data, self._at = parts[-1], len(parts[-1]) + missing
        parts[-1] = self._data[: self._at]
        return b"".join(parts)

    def _skip(self, size: int) -> None:
        self._at += size
        while (missing := self._at - len(self._data)) > 0:
            self._data, self._at = self._receive(), missing

    def _receive(self) -> bytes:
        data: bytes = self._sock.recv(READ_BYTES)
        if not data:
            raise RedisConnectionError("Connection closed by server.")
        return data
