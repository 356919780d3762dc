"""Many messages in few bytes: their common template once, and the values in which each message differs.

::

    pack     some hundred messages of a shard, their values by columns
      zlib ─► {"v": 1, "kinds": [[text, [value of each %s], names, rows, columns], …], "order": [0, 0, 1, …] or null}
              RS  column  RS  column …        of the first kind, then of the next; a column is value US value US …

Values are JSON, so they contain neither separator: JSON escapes control characters. A message that shares nothing with
others is one value of the template WHOLE. All text is ASCII. Standard library only.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from celery_wheel.values.error_text import Malformed

_One = TypeVar("_One")

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

#: The most bytes of separators, templates and values together, unpacked: in an item of the inbox, for which
#: ``bulk_load`` packs 1 MiB of values; and in a chunk of a load, which has all of a slice's rows.
MAX_ITEM_BYTES, MAX_CHUNK_BYTES = 8 * 2**20, 256 * 2**20


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


class PackedKind(NamedTuple):
    """The messages of one template; a column has a value of each message."""

    template: PackTemplate
    length: int
    columns: Sequence[Sequence[str]]

    def rows(self) -> list[tuple[str, ...]]:
        """Return the values of each message."""
        return list(zip(*self.columns, strict=True))


class Pack(NamedTuple):
    kinds: list[PackedKind]
    order: list[int] | None  #: for each message the number of its kind; None: one kind after the other

    def in_order(self, of_kinds: Iterable[Iterable[_One]]) -> list[_One]:
        """Return the items of all kinds, one for each message, in the order of the messages."""
        if self.order is None:
            return list(chain.from_iterable(of_kinds))
        found = list(map(iter, of_kinds))
        return [next(found[number]) for number in self.order]


def pack(messages: Iterable[tuple[PackTemplate, Sequence[str]]]) -> bytes:
    """Pack messages, each given as its template and its values."""
    rows: dict[PackTemplate, list[Sequence[str]]] = {}
    order = []
    for template, values in messages:
        rows.setdefault(template, []).append(values)
        order.append(template)
    numbers = {template: number for number, template in enumerate(rows)}
    columns = [US.join(column) for of_kind in rows.values() for column in zip(*of_kind, strict=True)]
    kinds = [[one.text, one.places, one.names, len(found), len(found[0])] for one, found in rows.items()]
    alternate = len(list(groupby(order))) > len(rows)
    head = {"v": VERSION, "kinds": kinds, "order": [numbers[one] for one in order] if alternate else None}
    return zlib.compress(RS.join((json.dumps(head), *columns)).encode(), 1)


def unpack(payload: bytes, max_bytes: int = MAX_ITEM_BYTES) -> Pack:
    """Return the messages of ``pack``. Raises ValueError and its like for bytes that it did not make."""
    head, *columns = _text(payload, max_bytes).split(RS)
    header = json.loads(head)
    if type(header) is not dict or header.get("v") != VERSION:
        raise Malformed(f"packed messages must be of version {VERSION}; a newer celery-wheel may have written them")
    kinds, left = [], iter(columns)
    for text, places, names, count, width in header["kinds"]:
        found = [column.split(US) for column in islice(left, width)]
        if len(found) != width or any(len(column) != count for column in found):
            raise Malformed(f"packed messages must have {width} columns of {count:,} values; their bytes are damaged")
        kinds.append(PackedKind(PackTemplate(text, places, names), count, found))
    order, counts = header["order"], {number: kind.length for number, kind in enumerate(kinds)}
    if order is not None and Counter(order) != counts:
        raise Malformed("packed messages must have an order for each; their bytes are damaged")
    return Pack(kinds, order)


def _text(payload: bytes, max_bytes: int) -> str:
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(payload, max_bytes)
    except zlib.error as error:
        raise Malformed(f"packed messages cannot be read: {error}") from error
    if not unpacking.eof:
        raise Malformed(f"packed messages must be whole, and at most {max_bytes:,} bytes when unpacked")
    return text.decode()
