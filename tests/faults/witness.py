"""A witness of a Redis: when it gave up a message of the wheel queue, and when it had the message of an occurrence.

::

    producer LPUSH ─► wheel queue ─► LTRIM by a scheduler     from then on only the store has the message
    scheduler LPUSH ─► queue celery                           a message of a schedule's instant: never made again

MONITOR prints each command with the wall clock at its execution, also the commands of scripts. A record of the log of
writes has the same clock, so each of the two has its place between the writes of the store.
"""

from __future__ import annotations

import codecs
import json
import re
import socket
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

_LINE = re.compile(rb"\+?(\d+)\.(\d+) \[\d+ [^\]]*\] (.*)")
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


class Promise(NamedTuple):
    """From this instant on a store has to have something, whatever happens to it."""

    us: int
    kind: str  #: "accepted" and "cancelled" of a task's id, "made" of a schedule's name
    name: str
    instant_ms: int = 0


class Witness:
    """Writes all commands of a server into a file, until it is closed."""

    def __init__(self, port: int, path: Path) -> None:
        self._path = path
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._copy)

    def __enter__(self) -> Self:
        self._socket.sendall(b"MONITOR\r\n")
        assert self._socket.recv(5) == b"+OK\r\n"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _copy(self) -> None:
        with self._path.open("wb") as file:
            while data := self._socket.recv(1 << 16):
                file.write(data)

    def commands(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the instant and the words of each command that was seen."""
        with self._path.open("rb") as lines:
            for line in lines:
                if (found := _LINE.match(line)) and line.endswith(b"\r\n"):
                    words = [codecs.escape_decode(word)[0] for word in _WORD.findall(found[3])]
                    yield int(found[1]) * 1_000_000 + int(found[2]), words

    def promises(self) -> Iterator[Promise]:
        queues = dict[bytes, deque[str]]()
        for us, (name, *values) in self.commands():
            if name.upper() == b"LPUSH":
                for value in values[1:]:
                    headers = json.loads(value)["headers"]
                    if values[0] != b"celery":
                        queues.setdefault(values[0], deque()).appendleft(headers["id"])
                    elif occurrence := headers.get("wheel_occurrence"):
                        yield Promise(us, "made", occurrence["schedule"], occurrence["scheduled_for"])
            elif name.upper() == b"LTRIM":
                queue = queues[values[0]]
                for _ in range(-int(values[2]) - 1):
                    yield Promise(us, "accepted", queue.pop())
