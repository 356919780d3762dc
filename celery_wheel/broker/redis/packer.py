"""A command for Redis as one buffer: redis-py's own packer makes a buffer, and so a system call, of every 6 kB.

::

    EVALSHA …, 1,000 messages of 2 kB ──► *1013 CRLF $7 CRLF EVALSHA CRLF … ──► one sendall
"""

from __future__ import annotations

from typing import Any


class OneBufferPacker:
    """Implements ``pack`` of redis-py's serializers, for keys and values that are text, bytes or numbers."""

    def pack(self, *arguments: Any) -> list[bytes]:
        name, *rest = arguments
        values = [*(name.encode() if isinstance(name, str) else name).split(), *rest]  # "CONFIG GET" is two words
        parts = [b"*%d\r\n" % len(values)]
        for value in values:
            data = value if isinstance(value, bytes) else str(value).encode()
            parts += (b"$%d\r\n" % len(data), data, b"\r\n")
        return [b"".join(parts)]
