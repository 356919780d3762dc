"""Packed messages of the inbox and of bulk loads, read as blocks of rows' values: 2 µs of CPU each in place of 12.

A form is made of one decoded message whose values are marks. Its messages are, byte for byte, those that ``decode``
returns: one of them is compared, the values are JSON as Python writes it, and ids and instants keep the rules of the
envelope. Messages of which that is not certain are decoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from celery_wheel.store.message_pack import (
    BODY,
    CREATED_MS,
    ENVELOPE,
    ETA_MS,
    EXPIRES_MS,
    ID,
    KEY,
    MAX_CHUNK_BYTES,
    MAX_ITEM_BYTES,
    OWN_HEADERS,
    PackedKind,
    PackTemplate,
    unpack,
)
from celery_wheel.store.model import Arrival, BulkLoadChunk, Message, MessageBlock, Unreadable, each
from celery_wheel.values.error_text import error_text
from celery_wheel.values.text import END_OF_TIME_MS, MAX_TEXT, group_name_rule, text_rule

Decode = Callable[[bytes], Message | Unreadable]

#: From the name of something in the store to an envelope id (see ``Store.derived_id``).
DerivedId = Callable[[str], str]

#: Fewer messages of a kind are decoded: to make their form takes as long.
FEW = 4

_Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
_Instant = Annotated[int, Meta(ge=0, lt=END_OF_TIME_MS)]

#: The fields of a Message that are values, with their types; only EXPIRES_MS may be missing.
_FIELDS: dict[str, Any] = {
    ENVELOPE: Annotated[str, Meta(min_length=36, max_length=36)],
    ID: _Text,
    ETA_MS: _Instant,
    CREATED_MS: _Instant,
    KEY: _Text | None,
    BODY: str,
    EXPIRES_MS: _Instant | None,
}
_REQUIRED = tuple(name for name in _FIELDS if name != EXPIRES_MS)
_readers = {name: msgspec.json.Decoder(list[of]).decode for name, of in _FIELDS.items()}  # type: ignore[valid-type]
_read_texts = msgspec.json.Decoder(list[str]).decode

#: Values that a message whose values are marks has all the same: of the envelope, where marks would be refused.
_UNMARKED = (ENVELOPE, ETA_MS, CREATED_MS, EXPIRES_MS, KEY)

_SEPARATOR = "\x1e"

_are_uuids = re.compile(r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})*").fullmatch
_encode = msgspec.json.Encoder().encode
_dumps = json.JSONEncoder(separators=(",", ":")).encode


class StoredForm:
    """The messages of one kind, with places for the values of a row; ``stored_form`` makes one."""

    def __init__(self, template: PackTemplate, marked: Message, marks: dict[str, str]) -> None:
        if marked.task_id != json.loads(marks[ID]) or marked.body.decode() != json.loads(marks[BODY]):
            raise ValueError("its id and its body must be values")
        if marked.watch is not None or marked.unique is not None:
            raise ValueError("it must claim no key")
        self._constant = marked
        self._names = template.names
        text = f"{marked.headers.decode()}{_SEPARATOR}{marked.properties.decode()}{_SEPARATOR}"
        self._text, self._in_text = _split(text, marks)

    def block(self, columns: Sequence[Sequence[str]]) -> MessageBlock | None:
        """Return the messages of some columns; None where they must be decoded."""
        texts = dict(zip(self._names, columns, strict=True))
        found: dict[str, list[Any]] = {}
        for name, column in texts.items():
            if name != OWN_HEADERS and (values := _read_column(name, column)) is not None:
                found[name] = values
        if len(found) < len(texts) - (OWN_HEADERS in texts):
            return None
        envelopes, task_ids, eta_ms, created_ms, keys, bodies = [found[name] for name in _REQUIRED]
        groups = [None] * len(keys) if self._constant.group is None else keys
        if not _are_ids(envelopes, [*task_ids, *filter(None, keys)]):
            return None
        if self._constant.group is not None and not "".join(keys).isprintable() and any(map(group_name_rule, keys)):
            return None
        expires_ms = found.get(EXPIRES_MS) or [self._constant.expires_ms] * len(bodies)
        if OWN_HEADERS in texts:
            texts[OWN_HEADERS] = [one[:-2] for one in texts[OWN_HEADERS]]  # without a comma
        format_, rows = self._text.__mod__, zip(*[texts[name] for name in self._in_text], strict=True)
        plain = [(format_(row) + body).encode() for row, body in zip(rows, bodies, strict=True)]
        return MessageBlock(self._constant, envelopes, task_ids, eta_ms, created_ms, keys, groups, expires_ms, plain)


def stored_form(kind: PackedKind, decode: Decode) -> StoredForm | None:
    """Return the form of a template, proven by the last of its messages with as many bytes as the largest may have (or
    ``decode`` would refuse some); None for a kind that must be decoded."""
    template = kind.template
    if not set(template.names) >= {*_REQUIRED}:
        return None
    own = {name: column[0] for name, column in zip(template.names, kind.columns, strict=True)}
    last = [column[-1] for column in kind.columns]
    bound = template.size([" " * max(map(len, column)) for column in kind.columns])
    expected = decode(template.fill(last).ljust(bound))
    if not isinstance(expected, Message):
        return None
    unmarked = _UNMARKED if expected.group is None else [name for name in _UNMARKED if name != KEY]  # in a header, too
    marks = {name: f'"@{number} {own[ENVELOPE][1:]}' for number, name in enumerate(own) if name not in unmarked}
    if OWN_HEADERS in marks:
        marks[OWN_HEADERS] += ": null, "
    marked = decode(template.fill([marks.get(name, value) for name, value in own.items()]))
    if not isinstance(marked, Message):
        return None
    try:
        form = StoredForm(template, marked, marks)
        block = form.block([[value] for value in last])
    except (ValueError, LookupError):
        return None
    found = block and block.messages()[0]
    return form if all(getattr(found, name, None) == getattr(expected, name) for name in Message.__slots__) else None


def read_messages(kind: PackedKind, decode: Decode) -> list[Arrival]:
    """Return the messages of a template, as a block by its form or decoded one by one."""
    form = stored_form(kind, decode) if kind.length >= FEW else None
    block = None if form is None else form.block(kind.columns)
    return [decode(kind.template.fill(row)) for row in kind.rows()] if block is None else [block]


def _read_column(name: str, column: Sequence[str]) -> list[Any] | None:
    """Return the values of a column; None where they are not of its type, or not as Python writes JSON."""
    text = f"[{','.join(column)}]"
    try:
        found: list[Any] = _readers.get(name, _read_texts)(text)
    except ValueError:
        return None
    return found if len(found) == len(column) and (_encode(found) == text.encode() or _dumps(found) == text) else None


def _are_ids(envelopes: Sequence[str], texts: Sequence[str]) -> bool:
    """Whether the envelopes' ids are UUIDs, and the texts are such that every store holds."""
    joined = "".join(texts)
    is_plain = joined.isascii() and "\0" not in joined
    return bool(_are_uuids("".join(envelopes))) and (is_plain or not any(map(text_rule, texts)))


def _split(text: str, marks: dict[str, str]) -> tuple[str, list[str]]:
    """Return the text with %s for each mark, and the names of the marks in order."""
    text = text.replace("%", "%%")
    places: list[tuple[int, str]] = []
    for name, mark in marks.items():
        mark, at = mark.removesuffix(", "), -1
        while (at := text.find(mark, at + 1)) >= 0:
            places.append((at, name))
    for mark in marks.values():
        text = text.replace(mark.removesuffix(", "), "%s")
    return text, [name for _, name in sorted(places)]


def unpack_chunk(chunk: BulkLoadChunk, decode: Decode, derived_id: DerivedId) -> list[Arrival]:
    try:
        return unpack_messages(chunk.payload, decode, MAX_CHUNK_BYTES)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        envelope_id = derived_id(f"load chunk {chunk.id} {chunk.payload.hex()}")
        reason = f"{chunk.rows:,} messages of a bulk load (chunk {chunk.id}) cannot be read: {error_text(error)}"
        return [Unreadable(envelope_id, reason, chunk.payload)]


def unpack_messages(payload: bytes, decode: Decode, max_bytes: int = MAX_ITEM_BYTES) -> list[Arrival]:
    """Return packed messages in their order. Raises ValueError and its like for bytes that ``pack`` did not make."""
    found = unpack(payload, max_bytes)
    arrivals = [read_messages(kind, decode) for kind in found.kinds]
    return found.in_order(arrivals if found.order is None else map(each, arrivals))
