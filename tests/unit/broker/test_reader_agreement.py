"""msgspec and Python's own JSON read the same message in the same bytes, or refuse them for the same reason."""

import json
from base64 import b64encode
from binascii import a2b_base64
from dataclasses import astuple
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_wheel.broker import reader
from celery_wheel.broker.envelope import encode
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.store.model import Message, Unreadable
from tests.unit.broker.test_envelope import JSON, MAX, TEXT, envelope, raw

#: The headers that Celery 5.7 writes.
HEADERS: dict[str, Any] = {
    "lang": "py",
    "task": "shop.orders.cancel",
    "id": "t",
    "shadow": None,
    "eta": "2033-05-18T03:33:20+00:00",
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "root_id": "t",
    "parent_id": None,
    "argsrepr": "('it\\'s', \"ü\", 1.5, -0)",
    "kwargsrepr": "{}",
    "origin": "gen1@host",
    "ignore_result": False,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}
MESSAGE = json.loads(raw(headers={**HEADERS, "wheel": encode(envelope())}))
TEXT_MESSAGE = {
    **MESSAGE,
    "body": '[["ü"], {}, {}]',
    "properties": {**MESSAGE["properties"], "body_encoding": "utf-8"},
}

#: Spellings that the two libraries may read or write differently, put anywhere into a message.
SPELLINGS = (
    *(b"NaN", b"Infinity", b"-Infinity", b"-0", b"-0.0", b"1.0", b"1.50", b"1e16", b"1E-7", b"1e400", b"0.1"),
    *(b"18446744073709551616", b"-9223372036854775809", b"9" * 40, b"9" * 4301, b"01", b"1.", b"+1", b"nul", b"true"),
    *(b'"\\u00fc"', b'"\xc3\xbc"', b'"\\u0041"', b'"\\/"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\u0000"', b'"\x7f"'),
    *(b'"\x00"', b'"\xff"', b'"\\x"', b'"\\u007f"', b'"\\u000a"', b'"\\b\\f\\n\\r\\t\\"\\\\"', b'"\xed\xa0\x80"'),
    *(b"[]", b"[ ]", b"{}", b"[[], {}]", b'{"eta": 1, "wheel": {}}', b'{"a": 1, "a": 2}', b"[1,2]", b"[1,]"),
)
MEMBERS = (
    b'"eta": null',
    b'"\\u0065ta": "x"',
    b'"wheel": null',
    b'"\\u0077heel": 1',
    b'"id":"x"',
    b'"x" : 1',
    b'"": ""',
)


def same(data: bytes, **options: Any) -> Message | Unreadable:
    """Return the result for these bytes, the same with and without msgspec."""
    found = QueuedMessageReader(max_message_bytes=MAX, **options).decode(data)
    refuse = mock.Mock(side_effect=ValueError)
    with mock.patch.multiple(reader, _decode_queued=refuse, _dumps=refuse):
        plain = QueuedMessageReader(max_message_bytes=MAX, **options).decode(data)
    assert refuse.called or len(data) > MAX
    assert type(found) is type(plain)
    if isinstance(found, Message):
        assert isinstance(plain, Message)
        assert astuple(found) == astuple(plain)
    else:
        assert (found.envelope_id, found.reason, found.raw) == (plain.envelope_id, plain.reason, plain.raw)
    return found


@pytest.mark.parametrize("message", [MESSAGE, TEXT_MESSAGE], ids=["base64", "text"])
@pytest.mark.parametrize("keep_eta", [False, True])
def test_an_ordinary_message_is_read_by_msgspec_alone(
    message: dict[str, Any], keep_eta: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = same(json.dumps(message).encode(), keep_eta=keep_eta)
    assert isinstance(expected, Message)
    plain = {**message["headers"], "argsrepr": "('it\\'s', 1)"}
    for name in ("_parse", "_dumps_all", "a2b_base64"):
        monkeypatch.setattr(reader, name, None)
    found = QueuedMessageReader(keep_eta=keep_eta).decode(json.dumps({**message, "headers": plain}).encode())
    assert isinstance(found, Message)


@given(st.sampled_from([MESSAGE, TEXT_MESSAGE]), st.sampled_from(SPELLINGS), st.data())
@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
def test_any_spelling_of_a_value_is_read_alike(message: dict[str, Any], spelling: bytes, data: st.DataObject) -> None:
    """The spelling takes the place of one value of the message, of its headers, properties or envelope."""
    copy = json.loads(json.dumps(message))
    places = (copy, copy["headers"], copy["properties"], copy["headers"]["wheel"])
    place = data.draw(st.sampled_from(places))
    name = data.draw(st.sampled_from([*place, "new"]))
    place[name] = "@"
    same(json.dumps(copy).encode().replace(b'"@"', spelling))


@given(st.sampled_from([MESSAGE, TEXT_MESSAGE]), st.data())
@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
def test_changed_text_is_read_alike(message: dict[str, Any], data: st.DataObject) -> None:
    """Members in another order, repeated, or with escapes in their names; space; lost and added bytes."""
    changed = bytearray(json.dumps(message, separators=data.draw(st.sampled_from([None, (",", ":")]))).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        kind = data.draw(st.sampled_from(["set", "delete", "space", "member"]))
        if kind == "set":
            changed[at] = data.draw(st.integers(0, 255))
        elif kind == "delete":
            del changed[at : at + data.draw(st.integers(1, 9))]
        elif kind == "space":
            where = changed.find(data.draw(st.sampled_from([b":", b",", b"{", b"}"])), at)
            changed[where:where] = data.draw(st.sampled_from([b" ", b"\n", b"\t\r", b"\x0b", b"\xc2\xa0"]))
        else:
            where = changed.find(b", ", at)
            changed[where:where] = b", " + data.draw(st.sampled_from(MEMBERS))
    same(bytes(changed))


@given(
    st.dictionaries(st.text(max_size=8), JSON, max_size=5),
    st.dictionaries(st.text(max_size=8), JSON, max_size=3),
    st.sampled_from(["start", "end"]),
    st.booleans(),
)
@example({"a\\": 1, "eta": {"eta": 2}}, {"\x7f": "\x7f"}, "end", False)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_headers_and_properties_are_read_alike(
    headers: dict[str, Any], properties: dict[str, Any], place: str, ascii_only: bool
) -> None:
    own = {"wheel": encode(envelope())}
    all_headers = {**own, **headers} if place == "start" else {**headers, **own}
    message = {**MESSAGE, "headers": all_headers, "properties": {**MESSAGE["properties"], **properties}}
    same(json.dumps(message, ensure_ascii=ascii_only).encode(errors="surrogatepass"))


@given(
    st.text("ABab01+/=-_ \n", max_size=12) | st.binary(max_size=30).map(lambda body: b64encode(body).decode()) | TEXT
)
@example("AAAA=")
@example("AB==")
def test_a_body_in_base64_is_read_as_binascii_reads_it(body: str) -> None:
    found = same(json.dumps({**MESSAGE, "body": body}).encode())
    try:
        expected = a2b_base64(body, strict_mode=True)
    except ValueError as error:
        expected = str(error)
    assert (found.body if isinstance(found, Message) else found.reason) == expected
