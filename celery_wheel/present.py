"""Values as people read them: instants, durations, and text that came with a message.

Text from a message may hold anything. It is cut, and what cannot be seen (control characters, marks that turn the
direction of writing) is shown as its code, so that it can neither hide nor rearrange what stands beside it, nor do
anything to a terminal. Escaping for HTML is the template's. Standard library only.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise

#: Characters of a message's part that are shown; the whole of a body can be had.
PART_CUT = 10_000
#: JSON of more bytes is shown as it came: it would take seconds to lay it out.
LAID_OUT_BYTES = 200_000
NAME_CUT = 80
DUMP_BYTES = 1_024

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def when(at_ms: int) -> datetime | None:
    """The instant; None for one that no calendar has."""
    try:
        return _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return None


def utc(at_ms: int | None) -> str:
    """ISO 8601, to the millisecond: 2027-01-15T08:00:00.007Z."""
    if at_ms is None:
        return "-"
    moment = when(at_ms)
    return f"{at_ms} ms" if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(ms: int | None) -> str:
    """Two figures at most: 340 ms, 12.5 s, 3 min 20 s, 4 d 2 h."""
    if ms is None:
        return "-"
    sign, ms = ("-" if ms < 0 else ""), abs(ms)
    if ms < 1_000:
        return f"{sign}{ms} ms"
    if ms < 60_000:
        return f"{sign}{ms / 1_000:.1f} s".replace(".0 s", " s")
    for (unit, name), (smaller, its_name) in pairwise(_UNITS):
        if ms >= unit:
            whole, rest = divmod(ms, unit)
            part = f" {rest // smaller} {its_name}" if rest >= smaller else ""
            return f"{sign}{whole:,} {name}{part}"
    raise AssertionError(ms)


def many(count: int, noun: str) -> str:
    """1 task, 12,034 tasks."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def seen(text: object, cut: int = NAME_CUT) -> str:
    """Text as it can be seen, of so many characters at most."""
    whole = str(text)
    shown = "".join(one if one.isprintable() else _code(one) for one in whole[:cut])
    return shown + "…" if len(whole) > cut else shown


def part(raw: bytes) -> str:
    """A part of a message: JSON laid out, other text as it is, the rest as a dump of its first bytes."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return dump(raw)
    with suppress(ValueError, RecursionError):  # no JSON, or too deep to lay out
        return _readable(_laid_out(text), "more, in the whole body")
    return _readable(text, f"{len(text) - PART_CUT:,} more characters")


def _readable(text: str, more: str) -> str:
    shown = "\n".join(seen(line, PART_CUT) for line in text[:PART_CUT].splitlines())
    return f"{shown}\n… {more}" if len(text) > PART_CUT else shown


def _laid_out(text: str) -> str:
    """JSON with a line a value, up to a little more than is shown. Raises ValueError for what is better shown raw."""
    if len(text) > LAID_OUT_BYTES:
        raise ValueError("too long")
    pieces: list[str] = []
    length = 0
    for piece in _JSON.iterencode(json.loads(text, object_pairs_hook=_named_once)):
        pieces.append(piece)
        length += len(piece)
        if length > PART_CUT:  # deep JSON is many times as long when it is indented
            break
    return "".join(pieces)


def _named_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A name that comes twice would be shown once, and not what a reader of the message may take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


_JSON = json.JSONEncoder(indent=2, ensure_ascii=False)


def dump(raw: bytes) -> str:
    """Sixteen bytes a line, as hexadecimal and as far as they are letters."""
    rows = []
    for start in range(0, min(len(raw), DUMP_BYTES), 16):
        row = raw[start : start + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):47}  {letters}")
    if len(raw) > DUMP_BYTES:
        rows.append(f"… {len(raw) - DUMP_BYTES:,} more bytes")
    return "\n".join(rows)


def _code(one: str) -> str:
    return f"\\x{ord(one):02x}" if ord(one) < 256 else f"\\u{ord(one):04x}"
