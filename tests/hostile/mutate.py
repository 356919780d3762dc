"""Mutations of bytes that are mostly JSON: small damages, or values that a careless or hostile writer sends.

::

    head{"a": [1, "x"]}tail      the first "{" or "[" begins the JSON, if the bytes from there are JSON
      ├─ half:  a value is replaced, dropped, doubled, moved, wrapped, renamed; JSON and base64 inside of texts too
      └─ half:  bits, cuts, inserts, repeats, and parts of another message

Bytes in, bytes out, and a seeded generator beside them: the same seed makes the same message.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

#: Values that have broken readers of JSON, of SQL and of Python: each bound of a type, and one beyond it.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 255, 256, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 1e308, -0.0, 0.5,
    float("nan"), float("inf"), "", " ", "\0", "a\0b", "\ud800", "\udfff\ud800", "é" * 600, "x" * 5_000, "\u2028",
    "\x1e", "\x1f", "%s%n", "../../etc/passwd", "celery", "wheel.0", "wheel", "null", "None", "1e999", "-1",
    "all:", "group:",
    "00000000-0000-0000-0000-000000000000", "2026-02-30T25:61:61", "Europe/Nowhere", "*/0", "FREQ=SECONDLY", [], {},
    [[]], [None], {"": None}, {"v": 1}, {"__type__": "uuid", "__value__": "x"}, [0] * 300, {"a": {"a": {"a": 1}}},
    253_402_300_799_999, 253_370_764_800_000, 4_102_444_800, 1_700_000_000_000,
)  # fmt: skip

#: Bytes that begin, end or separate parts in one of the forms.
TOKENS: tuple[bytes, ...] = (
    b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"{", b"}", b"[", b"]", b'"', b",", b":",
    b"\n", b"\r", b"NaN", b"-Infinity", b"1e999", b"null", b'{"a":', b"\xef\xbb\xbf", b"9" * 5_000, b"*/0 ",
    b"@reboot ", b"%", b"\x80\x04", b"c__builtin__\neval\n", b"PAR1", b"\x1e", b"\x1f",
)  # fmt: skip


def mutated(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """Return a message with one to four mutations; ``others`` are messages of which parts may be taken."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        tree = _tree(data) if random.random() < 0.6 else None
        if tree is None:
            data = _bytes(data, random, others)
        else:
            head, value = tree
            other = _tree(random.choice(others)) if others and random.random() < 0.2 else None
            pool = [one for _, _, one in _places(other[1])] if other else ()
            data = head + _dumped(_value(value, random, pool), random)
    return data


def _tree(data: bytes) -> tuple[bytes, Any] | None:
    starts = [place for place in (data.find(b"{"), data.find(b"[")) if place >= 0]
    if not starts:
        return None
    try:
        value = json.loads(data[min(starts) :])
    except (ValueError, RecursionError):
        return None
    return data[: min(starts)], value


def _dumped(value: Any, random: Random) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=random.random() < 0.8)
    except (ValueError, RecursionError):
        text = "[" * 2_000
    if random.random() < 0.03 and ": " in text:  # the same key twice
        key = random.choice(text.split('"')[1::2] or ["a"])
        text = text[:-1] + f', "{key}": {json.dumps(random.choice(VALUES[:10]))}' + text[-1]
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> list[tuple[Any, Any, Any]]:
    """Return (container, key, value) of each value below one."""
    found: list[tuple[Any, Any, Any]] = []
    rest = [value]
    while rest and len(found) < 2_000:
        one = rest.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, below in items:
            found.append((one, key, below))
            rest.append(below)
    return found


def _value(value: Any, random: Random, pool: Sequence[Any]) -> Any:
    places = _places(value)
    if not places:
        return deepcopy(random.choice(VALUES))
    where, key, old = random.choice(places)
    kind = random.randrange(10)
    if kind < 4:
        where[key] = _changed(old, random)
    elif kind == 4:
        del where[key]
    elif kind == 5:
        where[key] = _copied(random.choice([one for _, _, one in places]))
    elif kind == 6 and pool:
        where[key] = _copied(random.choice(pool))
    elif kind == 7 and isinstance(where, dict):
        where[random.choice([str(one) for _, one, _ in places] + ["", "\0", "x" * 600])] = where.pop(key)
    elif kind == 8 and isinstance(where, list):
        where.extend([old] * random.choice((1, 2, 1_001)))
    elif kind == 9:
        for _ in range(random.choice((1, 3, 50, 900, 3_000))):
            old = [old] if random.random() < 0.5 else {"a": old}
        where[key] = old
    else:
        where[key] = deepcopy(random.choice(VALUES))
    return value


def _copied(value: Any) -> Any:
    """Return a copy, so that no value contains itself; one that is too deep to copy is left out."""
    try:
        return json.loads(json.dumps(value))
    except (ValueError, RecursionError):
        return None


def _changed(old: Any, random: Random) -> Any:
    if isinstance(old, str) and random.random() < 0.6:
        inner = _inside(old, random)
        return _text(old, random) if inner is None else inner
    if type(old) is int and abs(old) < 2**70 and random.random() < 0.6:
        return random.choice((old + 1, old - 1, -old, old * 1_000, old // 1_000, float(old), str(old), [old]))
    return deepcopy(random.choice(VALUES))


def _inside(old: str, random: Random) -> str | None:
    """Return a text of JSON, or of base64, with a mutation of what is inside; None for any other text."""
    if old[:1] in ("{", "["):
        return mutated(old.encode("utf-8", "surrogatepass"), random).decode("utf-8", "replace")
    try:
        inner = base64.b64decode(old, validate=True)
    except ValueError:
        return None
    return base64.b64encode(mutated(inner, random)).decode() if len(inner) > 8 else None


def _text(old: str, random: Random) -> str:
    at = random.randrange(len(old) + 1)
    part = random.choice(("", "\0", "\ud800", "é", " ", "-", ",", "*", "/0", "9", ":", "x" * 500, old))
    return old[:at] + part + old[at + random.randrange(3) :]


def _bytes(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    length = random.choice((0, 1, 1, 2, 8, 64))
    kind = random.randrange(8)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[at + length :]
    if kind == 3:
        return data[:at] + data[at : at + length] * random.choice((2, 3, 1_000)) + data[at + length :]
    if kind == 4 and others:
        other = random.choice(others)
        return data[:at] + other[random.randrange(len(other) + 1) :]
    if kind == 5:
        return data[:at] + random.randbytes(length) + data[at + length :]
    return data[:at] + random.choice(TOKENS) + data[at + length :]
