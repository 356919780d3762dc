"""Many messages in few bytes: their common template once, and the values in which each message differs.

::

    PackTemplate   {"id": %s, …, "root_id": %s}  +  the index of the value for each %s, and the names of the values
      fill(values)   one message                                        size(values)   its bytes, without making it

    pack     some hundred messages of a shard
      zlib ─► {"v": 1, "kinds": [[text, [value of each %s], names], …]}  RS  0 US value US value …  RS  1 US value …  RS
                                                                             └ number of the template

    unpack ─► the templates and the values, in the same order; ``fill`` makes the messages of them, as producers put
              them into the wheel queue

Values are JSON, so they contain neither separator: JSON escapes control characters. A message that shares nothing with
others is one value of the template WHOLE. All text is ASCII. Standard library only.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

RS, US = "\x1e", "\x1f"

#: Names of values. OWN_HEADERS are members of an object, and the body of some serializers is base64.
BODY, ID, ARGSREPR, KWARGSREPR, ETA, EXPIRES, OWN_HEADERS, ENVELOPE, ETA_MS, CREATED_MS, EXPIRES_MS, KEY = PLACES = (
    "body",
    "id",
    "argsrepr",
    "kwargsrepr",
    "eta",
    "expires",
    "own headers",
    "envelope",
    "eta_ms",
    "created_ms",
    "expires_ms",
    "key",
)

VERSION = 1

#: The most bytes of separators, templates and values together, unpacked; ``pack`` is called for far fewer.
MAX_BYTES = 256 * 2**20


def _getter(places: Sequence[int]) -> Any:
    """Return a function that gets these values as a tuple, the operand of %."""
    get = itemgetter(*places)
    return get if len(places) > 1 else lambda values: (get(values),)


class PackTemplate:
    """``text`` has a %s for each of ``places``, the indexes of the values.

    ``names`` are those of the values; a template without names makes messages that must be decoded one by one.
    """

    def __init__(self, text: str, places: Sequence[int], names: Sequence[str] = ()) -> None:
        self.text = text
        self.places = tuple(places)
        self.names = tuple(names)
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
    head = json.dumps({"v": VERSION, "kinds": [[one.text, one.places, one.names] for one in numbers]})
    return zlib.compress(RS.join((head, *lines)).encode(), 1)


def unpack(payload: bytes) -> list[tuple[PackTemplate, list[str]]]:
    """Return the templates and values of ``pack``. Raises ValueError and its like for bytes that it did not make."""
    head, *lines = _text(payload).split(RS)
    header = json.loads(head)
    if type(header) is not dict or header.get("v") != VERSION:
        raise ValueError(f"packed messages must be of version {VERSION}; a newer celery-wheel may have written them")
    templates = {str(number): PackTemplate(*kind) for number, kind in enumerate(header["kinds"])}
    messages = []
    for one in lines:
        number, *values = one.split(US)
        messages.append((templates[number], values))
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
