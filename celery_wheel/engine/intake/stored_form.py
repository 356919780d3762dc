"""The stored form of a kind of messages: a ``Message`` of a row's values, without the bytes of the wheel queue between.

::

    PackTemplate   values ─► fill ─► bytes ─► decode ─► Message      one by one        12 µs of CPU
    StoredForm     values ────────────────────────────► Message      many at a time    4 µs

A form is made of one decoded message whose values are marks. Its messages are, byte for byte, those that ``decode``
returns: one of them is compared, the values are JSON as Python writes it, and ids and instants keep the rules of the
envelope. Messages of which that is not certain are decoded.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
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
    OWN_HEADERS,
    PackTemplate,
)
from celery_wheel.store.model import Message, Unreadable
from celery_wheel.values.text import END_OF_TIME_MS, MAX_TEXT, text_rule

Decode = Callable[[bytes], Message | Unreadable]

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
_REQUIRED = _FIELDS.keys() - {EXPIRES_MS}

#: Values that a message whose values are marks has all the same: of the envelope, where marks would be refused.
_UNMARKED = (ENVELOPE, ETA_MS, CREATED_MS, EXPIRES_MS, KEY)

_SEPARATOR = "\x1e"

_are_uuids = re.compile(r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})*").fullmatch
_encode = msgspec.json.Encoder().encode
_dumps = json.JSONEncoder(separators=(",", ":")).encode


class StoredForm:
    """The messages of one kind, with places for the values of a row; ``stored_form`` makes one."""

    def __init__(self, template: PackTemplate, marked: Message, marks: dict[str, str]) -> None:
        names = [name for name in template.names if name != OWN_HEADERS]
        if marked.task_id != json.loads(marks[ID]) or marked.body.decode() != json.loads(marks[BODY]):
            raise ValueError("its id and its body must be values")
        self._constant = marked
        self._own = template.names.index(OWN_HEADERS) if OWN_HEADERS in template.names else None
        self._read = msgspec.json.Decoder(list[tuple[*(_FIELDS.get(name, str) for name in names)]]).decode  # type: ignore[misc]
        self._fields = itemgetter(*map(names.index, [*_FIELDS] if EXPIRES_MS in names else [*_FIELDS][:-1]))
        text = f"{marked.headers.decode()}{_SEPARATOR}{marked.properties.decode()}"
        self._text, places = _split(text, marks)
        self._in_text: Callable[[Sequence[str]], Any] = _getter(list(map(template.names.index, places)))

    def messages(self, rows: Sequence[Sequence[str]]) -> list[Message] | None:
        """Return the messages of some rows; None where they must be decoded."""
        if self._own is not None:
            texts = [[*row[: self._own], *row[self._own + 1 :]] for row in rows]
            rows = [[*row[: self._own], row[self._own][:-2], *row[self._own + 1 :]] for row in rows]  # without a comma
        else:
            texts = list(rows)  # type: ignore[arg-type]
        text = f"[[{'],['.join(map(','.join, texts))}]]"
        try:
            found = self._read(text)
        except ValueError:
            return None
        if _encode(found) != text.encode() and _dumps(found) != text:
            return None
        fields = list(map(self._fields, found))
        if not _are_ids(fields):
            return None
        return list(map(self._message, fields, rows))

    def _message(self, fields: tuple[Any, ...], row: Sequence[str]) -> Message:
        one, (envelope_id, task_id, eta_ms, created_ms, key, body, *expires) = self._constant, fields
        headers, properties = (self._text % self._in_text(row)).encode().split(b"\x1e")
        return Message(  # by position, which takes a third of the time
            envelope_id,
            task_id,
            one.task,
            eta_ms,
            created_ms,
            one.exchange,
            one.exchange_type,
            one.routing_key,
            one.queue,
            one.priority,
            key,
            expires[0] if expires else one.expires_ms,
            one.queue_expires_ms,
            headers,
            properties,
            body.encode(),
            one.misfire_ms,
            one.watch,
            one.unique,
            one.on_conflict,
        )


def stored_form(template: PackTemplate, rows: Sequence[Sequence[str]], decode: Decode) -> StoredForm | None:
    """Return the form of a template, proven by the last of these rows; None for a kind that must be decoded.

    The proof has as many bytes as the largest message of the rows may have, since ``decode`` refuses large ones.
    """
    if not template.names or not set(template.names) >= _REQUIRED:
        return None
    own = dict(zip(template.names, rows[0], strict=True))
    marks = {name: f'"@{number} {own[ENVELOPE][1:]}' for number, name in enumerate(own) if name not in _UNMARKED}
    if OWN_HEADERS in marks:
        marks[OWN_HEADERS] += ": null, "
    most = max(Counter(template.places).values()) * max(map(len, map("".join, rows)))
    bound = template.size([""] * len(template.names)) + most
    marked = decode(template.fill([marks.get(name, value) for name, value in own.items()]))
    expected = decode(template.fill(rows[-1]).ljust(bound))
    if not isinstance(marked, Message) or not isinstance(expected, Message):
        return None
    try:
        form = StoredForm(template, marked, marks)
        found = form.messages(rows[-1:])
    except (ValueError, LookupError):
        return None
    is_same = found and all(getattr(found[0], name) == getattr(expected, name) for name in Message.__slots__)
    return form if is_same else None


def read_messages(
    template: PackTemplate, rows: Sequence[Sequence[str]], decode: Decode
) -> list[Message] | list[Message | Unreadable]:
    """Return the messages of a template, by its form or decoded one by one."""
    form = stored_form(template, rows, decode) if len(rows) >= FEW else None
    found = None if form is None else form.messages(rows)
    return [decode(template.fill(values)) for values in rows] if found is None else found


def _are_ids(fields: Sequence[tuple[Any, ...]]) -> bool:
    """Whether the envelopes' ids are UUIDs, and task ids and keys are text that every store holds."""
    columns = list(zip(*fields, strict=True))
    texts = [*columns[1], *filter(None, columns[4])]
    joined = "".join(texts)
    is_plain = joined.isascii() and "\0" not in joined
    return bool(_are_uuids("".join(columns[0]))) and (is_plain or not any(map(text_rule, texts)))


def _getter(places: list[int]) -> Callable[[Sequence[str]], Any]:
    get: Any = itemgetter(*places)
    return get if len(places) > 1 else lambda values: (get(values),)


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
