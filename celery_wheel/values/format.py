"""Values as people read them: instants, durations, counts, and the text of a message.

The text of a message may hold anything. These functions shorten it and show each invisible character (a control
character, a mark that turns the direction of writing) as its code, so that it can neither hide nor rearrange its
neighbours, nor act on a terminal. They do not escape HTML; the template does.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from itertools import pairwise

from celery_wheel.values.instants import utc

#: Characters shown of a message's headers, properties or body; the whole body can be downloaded.
PART_CUT = 10_000
#: Longer JSON is shown as it came, since indenting it would take seconds.
INDENTED_BYTES = 200_000
NAME_CUT = 80
DUMP_BYTES = 1_024

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_JSON = json.JSONEncoder(indent=2, ensure_ascii=False)


def to_datetime(at_ms: int) -> datetime | None:
    """Return the instant in UTC; None where no calendar has it."""
    try:
        return utc(at_ms)
    except OverflowError:
        return None


def format_utc(at_ms: int | None) -> str:
    """Return the instant as ISO 8601, to the millisecond: 2027-01-15T08:00:00.007Z."""
    if at_ms is None:
        return "-"
    moment = to_datetime(at_ms)
    return f"{at_ms} ms" if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_duration(ms: int | None) -> str:
    """Return the duration in one or two units: 340 ms, 12.5 s, 3 min 20 s, 4 d 2 h."""
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


def format_count(count: int, noun: str) -> str:
    """Return the count with its noun: 1 task, 12,034 tasks, 2 entries."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def printable(text: object, cut: int = NAME_CUT) -> str:
    """Return the first ``cut`` characters of the text, each of them visible."""
    whole = str(text)
    shown = whole[:cut]
    if not shown.isprintable():
        shown = "".join(one if one.isprintable() else _code(one) for one in shown)
    return shown + "…" if len(whole) > cut else shown


def format_part(raw: bytes) -> str:
    """Return headers, properties or a body for people: JSON indented, other text as it is, other bytes as a dump."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return hex_dump(raw)
    with suppress(ValueError, RecursionError):  # the text is no JSON, or is too deep to indent
        return _shortened(_indented(text), "more, in the whole body")
    return _shortened(text, f"{len(text) - PART_CUT:,} more characters")


def _shortened(text: str, more: str) -> str:
    shown = "\n".join(printable(line, PART_CUT) for line in text[:PART_CUT].splitlines())
    return f"{shown}\n… {more}" if len(text) > PART_CUT else shown


def _indented(text: str) -> str:
    """Return JSON with one value a line, a little more than is shown. Raises ValueError where raw text shows more."""
    if len(text) > INDENTED_BYTES:
        raise ValueError("too long")
    pieces: list[str] = []
    length = 0
    for piece in _JSON.iterencode(json.loads(text, object_pairs_hook=_unique_names)):
        pieces.append(piece)
        length += len(piece)
        if length > PART_CUT:  # deep JSON is many times as long when it is indented
            break
    return "".join(pieces)


def _unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a repeated name: it would be shown once, and a reader of the message may take its other value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("repeated name")
    return found


def hex_dump(raw: bytes) -> str:
    """Return sixteen bytes a line, as hexadecimal digits and as ASCII letters."""
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
