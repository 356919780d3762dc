"""Some hundred messages in few bytes: what they have in common once, and of each what is its own. Standard library.

::

    zlib ─► {"v": 1, "kinds": [[format, [value of each %s]], …]}  RS  0 US value US value …  RS  1 US value …  RS  …
                                                                      └ number of the kind

    unpack ─► one message each, in the form in which producers put it into the wheel queue

Values are parts of JSON, so neither separator can be in one: JSON has no control characters but in escapes. A message
that shares nothing with others is of a kind whose format is %s alone.

Measured with 500 reminders (1.3 kB each as whole messages): 262 bytes a message before zlib and 61 after, against 80
for whole ones; 1.0 against 2.0 µs to compress it, and 2.0 µs to make it whole again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

RS, US = "\x1e", "\x1f"

VERSION = 1

#: Of separators, kinds and values together, unpacked: far more than whoever packs puts into one.
MAX_BYTES = 256 * 2**20

#: The format of whole messages, and what it takes of its values.
WHOLE = ("%s", (0,))


def pack(kinds: Iterable[tuple[str, Sequence[int]]], lines: Iterable[str]) -> bytes:
    """``kinds``: format and, for each %s in it, which value. ``lines``: see ``line``."""
    head = json.dumps({"v": VERSION, "kinds": [[text, list(places)] for text, places in kinds]})
    return zlib.compress(RS.join((head, *lines)).encode(), 1)


def line(kind: int, *values: str) -> str:
    return US.join((str(kind), *values))


def unpack(payload: bytes) -> list[bytes]:
    """The messages. Raises ValueError for what ``pack`` did not make."""
    head, *lines = _text(payload).split(RS)
    given = json.loads(head)
    if type(given) is not dict or given.get("v") != VERSION:
        raise ValueError(f"packed messages must be of version {VERSION}; a newer celery-wheel may have written them")
    kinds = [(text, _getter(places)) for text, places in given["kinds"]]
    messages = []
    for one in lines:
        number, *values = one.split(US)
        text, in_order = kinds[int(number)]
        messages.append((text % in_order(values)).encode())
    return messages


def _text(payload: bytes) -> str:
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(payload, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"packed messages cannot be read: {error}") from error
    if not unpacking.eof:
        raise ValueError(f"packed messages must be whole, and at most {MAX_BYTES:,} bytes when unpacked")
    return text.decode()


def _getter(places: list[int]) -> Any:
    """As a tuple, which % wants."""
    get = itemgetter(*places)
    return get if len(places) > 1 else lambda values: (get(values),)
