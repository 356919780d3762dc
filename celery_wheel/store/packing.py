"""The bytes of a message as one value: plain here, or packed by a dictionary of the store. Standard library only.

::

    headers, properties, body ──pack──► b'{"lang": …}\\x1e{"content_type": …}\\x1e[[1], {}, …]'     PLAIN
                                   └──► 60 bytes instead of 720                                    a dictionary's
    Row.packed ──Row.parts()──► headers, properties, body                                          when published

Rows stay packed in the store and in the window, and are unpacked when they are published or shown. Headers and
properties are JSON texts, which have no control characters, so the first two separators are those between the parts.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

SEPARATOR = b"\x1e"


class Parts(NamedTuple):
    """The bytes of a message."""

    headers: bytes
    properties: bytes
    body: bytes


class Packing(Protocol):
    """A way to pack messages; ``number`` tells a store by which way a row is packed."""

    number: int

    def unpack(self, packed: bytes) -> bytes:
        """Return what ``join`` returned. Raises ValueError for damaged bytes."""


class Plain:
    number = 0

    def unpack(self, packed: bytes) -> bytes:
        return packed


PLAIN = Plain()


def join(headers: bytes, properties: bytes, body: bytes) -> bytes:
    """Return the three parts as one value, which ``split`` takes apart again."""
    if SEPARATOR in headers or SEPARATOR in properties:
        raise ValueError("headers and properties must be JSON texts, which have no control characters")
    return b"%b\x1e%b\x1e%b" % (headers, properties, body)


def split(plain: bytes) -> Parts:
    """Return the three parts. Raises ValueError for other bytes."""
    headers, properties, body = plain.split(SEPARATOR, 2)
    return Parts(headers, properties, body)
