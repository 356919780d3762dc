"""Packed messages are unpacked unchanged, and other bytes are refused."""

from __future__ import annotations

import zlib

import pytest

from celery_wheel.store import message_pack as packed
from celery_wheel.store.message_pack import WHOLE, PackTemplate, pack, unpack
from tests.kit.packs import lines


def test_unpack_returns_the_packed_messages() -> None:
    reminder = PackTemplate('{"id": %s, "again": %s, "share": "100%%", "n": %s}', (1, 1, 0), ("n", "id"))
    messages = [
        (reminder, ("7", '"\\u00e4"')),
        (WHOLE, ('{"whole": "50%"}',)),
        (PackTemplate("[%s]", (0,)), ("8",)),
        (reminder, ("9", '"b"')),
    ]
    whole = [
        '{"id": "\\u00e4", "again": "\\u00e4", "share": "100%", "n": 7}',
        '{"whole": "50%"}',
        "[8]",
        '{"id": "b", "again": "b", "share": "100%", "n": 9}',
    ]
    unpacked = lines(pack(messages))
    assert [form.fill(values).decode() for form, values in unpacked] == whole
    assert [form.names for form, _ in unpacked] == [("n", "id"), (), (), ("n", "id")]
    assert unpacked[0][0] is unpacked[3][0]
    assert [form.fill(values).decode() for form, values in messages] == whole
    assert [form.size(values) for form, values in messages] == list(map(len, whole))
    assert lines(pack([])) == []


def test_bytes_that_were_not_packed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = pack([(WHOLE, ("{}",))])
    for bad in (
        b"",
        b"{}",
        good[:-4],
        zlib.compress(b'{"v": 2, "kinds": [], "order": null}'),
        zlib.compress(b'{"v": 1, "kinds": [["%s", [0], [], 2, 1]], "order": null}\x1e1'),
        zlib.compress(b'{"v": 1, "kinds": [["%s", [0], [], 1, 1]], "order": null}'),
        zlib.compress(b'{"v": 1, "kinds": [["%s", [0], [], 1, 1]], "order": [0, 0]}\x1e1'),
        zlib.compress(b"[]"),
        zlib.compress(b"x"),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
            unpack(bad)
    monkeypatch.setattr(packed, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="must be whole, and at most 10 bytes when unpacked"):
        unpack(good)
