"""Packed messages come out as they went in, and what is none is said."""

from __future__ import annotations

import zlib

import pytest

from celery_wheel.store import packed
from celery_wheel.store.packed import WHOLE, line, pack, unpack


def test_what_goes_in_comes_out() -> None:
    kinds = [('{"id": %s, "again": %s, "share": "100%%", "n": %s}', (1, 1, 0)), WHOLE, ("[%s]", (0,))]
    lines = [line(0, "7", '"ä"'), line(1, '{"whole": "50%"}'), line(2, "8"), line(0, "9", '"b"')]
    assert [one.decode() for one in unpack(pack(kinds, lines))] == [
        '{"id": "ä", "again": "ä", "share": "100%", "n": 7}',
        '{"whole": "50%"}',
        "[8]",
        '{"id": "b", "again": "b", "share": "100%", "n": 9}',
    ]
    assert unpack(pack(kinds, [])) == []


def test_what_was_not_packed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = pack([WHOLE], [line(0, "{}")])
    for bad in (
        b"",
        b"{}",
        good[:-4],
        zlib.compress(b'{"v": 2, "kinds": []}'),
        zlib.compress(b"[]"),
        zlib.compress(b"x"),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
            unpack(bad)
    monkeypatch.setattr(packed, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="must be whole, and at most 10 bytes when unpacked"):
        unpack(good)
