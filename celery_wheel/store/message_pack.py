"""Many messages in few bytes: their common template once, and the values in which each message differs.

::

    PackTemplate   {"id": %s, …, "root_id": %s}  +  the index of the value for each %s
      fill(values)   one message                                        size(values)   its bytes, without making it

    pack     some hundred messages of a shard
      zlib ─► {"v": 1, "kinds": [[text, [value of each %s]], …]}  RS  0 US value US value …  RS  1 US value …  RS  …
                                                                      └ number of the template

    unpack ─► the messages, as producers put them into the wheel queue

Values are parts of JSON, so they contain neither separator: JSON escapes control characters. A message that shares
nothing with others is one value of the template WHOLE. All text is ASCII. Standard library only.

Measured with 500 reminders (1.3 kB each as whole messages): 262 bytes a message before zlib and 61 after, against 80
for whole messages; 1.0 against 2.0 µs to compress one, and 2.0 µs to unpack one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

RS, US = "\x1e", "\x1f"

VERSION = 1

#: The most bytes of separators, templates and values together, unpacked; ``pack`` is called for far fewer.
MAX_BYTES = 256 * 2**20


def _getter(places: Sequence[int]) -> Any:
    """Return a function that gets these values as a tuple, the operand of %."""
    get = itemgetter(*places)
    return get if len(places) > 1 else lambda values: (get(values),)


class PackTemplate:
    """``text`` has a %s for each of ``places``, the indexes of the values."""

    def __init__(self, text: str, places: Sequence[int]) -> None:
        self.text = text
        self.places = tuple(places)
        self._get = _getter(self.places)
        self._bytes = len(text % (("",) * len(self.places)))

    def fill(self, values: Sequence[str]) -> bytes:
        text: str = self.text % self._get(values)
        return text.encode()

    def size(self, values: Sequence[str]) -> int:
        return self._bytes + sum(map(len, self._get(values)))


#: The template of whole messages.
WHOLE = PackTemplate("%s", (0,))


def pack(messages: Iterable[tuple[PackTemplate, Sequence[str]]]) -> bytes:
    """Pack messages, each given as its template and its values."""
    numbers: dict[PackTemplate, int] = {}
    lines = [f"{numbers.setdefault(template, len(numbers))}{US}{US.join(values)}" for template, values in messages]
    head = json.dumps({"v": VERSION, "kinds": [[one.text, one.places] for one in numbers]})
    return zlib.compress(RS.join((head, *lines)).encode(), 1)


def unpack(payload: bytes) -> list[bytes]:
    """Return the messages. Raises ValueError for bytes that ``pack`` did not make."""
    head, *lines = _text(payload).split(RS)
    header = json.loads(head)
    if type(header) is not dict or header.get("v") != VERSION:
        raise ValueError(f"packed messages must be of version {VERSION}; a newer celery-wheel may have written them")
    templates = [(text, _getter(places)) for text, places in header["kinds"]]
    messages = []
    for one in lines:
        number, *values = one.split(US)
        text, get = templates[int(number)]
        messages.append((text % get(values)).encode())
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
