"""The stored form of a kind of messages: a ``Message`` of a row's values, without the bytes of the wheel queue between.

::

    MessageTemplate   values ─► fill ─► bytes ─► decode ─► Message      45 µs
    StoredForm        values ─────────────────────────────► Message      7 µs

It is made of one decoded message whose values are marks, and used where it gives another message of the kind exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]  # its stub has no such name

from celery_wheel.bulk_load.message_template import (
    BODY,
    CREATED_MS,
    ENVELOPE,
    ETA_MS,
    EXPIRES_MS,
    KEY,
    OWN_HEADERS,
    MessageTemplate,
)
from celery_wheel.store.model import Message, Unreadable

Decode = Callable[[bytes], Message | Unreadable]

#: Places of the envelope, which are fields of a Message.
_OF_ENVELOPE = (ENVELOPE, ETA_MS, CREATED_MS, EXPIRES_MS, KEY)


class StoredForm:
    """The ``Message`` of one kind, with places for the values of a row; ``stored_form`` makes one."""

    def __init__(self, template: MessageTemplate, marked: Message, marks: dict[str, str]) -> None:
        self._names = template.names
        self._constant = {name: getattr(marked, name) for name in Message.__slots__}
        self._headers, self._in_headers = _split(marked.headers.decode(), marks)
        self._properties, self._in_properties = _split(marked.properties.decode(), marks)
        body = marked.body.decode()
        before, _, self._behind = body.partition(marks[BODY][1:])
        if before or not self._behind:
            raise ValueError("its body must be a text that begins with the arguments")

    def message(self, values: Sequence[str], task_id: str, envelope_id: str, eta_ms: int) -> Message:
        of = dict(zip(self._names, values, strict=True))
        if OWN_HEADERS in of:
            of[OWN_HEADERS] = of[OWN_HEADERS][:-2]  # the comma behind it
        found = Message(**self._constant)
        found.envelope_id, found.task_id, found.eta_ms = envelope_id, task_id, eta_ms
        found.created_ms = int(of[CREATED_MS])
        found.key = scanstring(of[KEY], 1)[0] if of[KEY] != "null" else None
        if EXPIRES_MS in of and of[EXPIRES_MS] != "null":
            found.expires_ms = int(of[EXPIRES_MS])
        found.headers = (self._headers % tuple([of[name] for name in self._in_headers])).encode()
        found.properties = (self._properties % tuple([of[name] for name in self._in_properties])).encode()
        found.body = (scanstring(of[BODY] + '"', 1)[0] + self._behind).encode()
        return found


def stored_form(
    template: MessageTemplate, values: Sequence[str], task_id: str, envelope_id: str, eta_ms: int, decode: Decode
) -> StoredForm | None:
    """Return the form of a template, proven by one row's values; None for a kind whose messages must be decoded."""
    own = dict(zip(template.names, values, strict=True))
    marks = {name: f'"@{number} {envelope_id}"' for number, name in enumerate(own) if name not in _OF_ENVELOPE}
    marks[BODY] = marks[BODY][:-1]
    if OWN_HEADERS in marks:
        marks[OWN_HEADERS] += ": null, "
    marked = decode(template.fill([marks.get(name, value) for name, value in own.items()]))
    expected = decode(template.fill(values))
    if not isinstance(marked, Message) or not isinstance(expected, Message):
        return None
    try:
        form = StoredForm(template, marked, marks)
        found = form.message(values, task_id, envelope_id, eta_ms)
    except (ValueError, LookupError, UnicodeDecodeError):
        return None
    is_same = all(getattr(found, name) == getattr(expected, name) for name in Message.__slots__)
    return form if is_same else None


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
