"""The envelope: each written one is read, by msgspec as by Python's JSON; any other bytes are Unreadable, and kept."""

import base64
import json
from base64 import b64encode
from binascii import a2b_base64
from contextlib import nullcontext
from dataclasses import astuple
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_wheel.broker import reader
from celery_wheel.broker.destinations import Destinations
from celery_wheel.broker.envelope import END_OF_TIME_MS, Envelope, encode
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.store.model import Message, Unreadable

ID = "01936b3c-7d1e-7a30-8a55-3f4e1f6f3a10"
MAX = 8 * 2**20
READER = QueuedMessageReader(max_message_bytes=MAX)


def envelope(**fields: Any) -> Envelope:
    return Envelope(
        **{
            "id": ID,
            "task": "proj.add",
            "task_id": "t",
            "eta_ms": 2_000_000_000_000,
            "created_ms": 1_900_000_000_000,
            "exchange": "",
            "exchange_type": "direct",
            "routing_key": "celery",
            "queue": "celery",
            **fields,
        }
    )


def wire(**changes: Any) -> dict[str, Any]:
    """A message as kombu's virtual transports write it."""
    return {
        "body": base64.b64encode(b"[[1], {}, {}]").decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": "proj.add", "id": "t", "eta": "2033-05-18", "wheel": encode(envelope())},
        "properties": {
            "correlation_id": "t",
            "reply_to": "",
            "delivery_mode": 2,
            "expiration": "1000",
            "delivery_info": {"exchange": "", "routing_key": "wheel.0"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": "d",
        },
        **changes,
    }


def raw(**changes: Any) -> bytes:
    return json.dumps(wire(**changes)).encode()


def enveloped(**fields: Any) -> bytes:
    """Return a message whose envelope has fields that ``encode`` would refuse."""
    return raw(body="aGk=", headers={"wheel": {**encode(envelope()), **fields}})


def read(data: bytes, **options: Any) -> Message:
    message = QueuedMessageReader(max_message_bytes=MAX, **options).decode(data)
    assert isinstance(message, Message), message.reason
    return message


FIELDS: list[dict[str, Any]] = [
    {},
    {"eta_ms": 0, "created_ms": 0},
    {"eta_ms": END_OF_TIME_MS - 1},
    {"priority": 0, "expires_ms": 0, "queue_expires_ms": 0, "key": "k"},
    {"priority": 255, "expires_ms": END_OF_TIME_MS - 1, "queue_expires_ms": 2**63 - 1},
    {"misfire_ms": 0, "watch": ["order:42", "ü"], "unique": "one", "on_conflict": "replace"},
    {"exchange": "news", "exchange_type": "topic", "routing_key": "", "queue": None},
    {"key": "tenant:größe", "group": "tenant:größe"},
    {"task": "é" * 512, "task_id": "日本", "routing_key": "ü", "key": "😀"},
    {"task": "😀" * 256, "task_id": "日" * 341, "queue": "x" * 512},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_every_written_envelope_is_read(fields: dict[str, Any]) -> None:
    written = envelope(**fields)
    message = read(raw(headers={"id": "t", "wheel": encode(written)}))
    assert message.envelope_id == written.id
    for name in Envelope.__struct_fields__:
        if name != "id":
            assert getattr(message, name) == getattr(written, name), name


def test_headers_keep_their_order_without_the_envelope_and_with_eta_null() -> None:
    assert read(raw()).headers == b'{"lang": "py", "task": "proj.add", "id": "t", "eta": null}'
    assert read(raw(), keep_eta=True).headers == b'{"lang": "py", "task": "proj.add", "id": "t", "eta": "2033-05-18"}'
    assert read(raw(headers={"wheel": encode(envelope())})).headers == b"{}"


def test_a_tasks_own_header_returns_to_its_place() -> None:
    headers = {"a": 1, "wheel": encode(envelope(), own={"spokes": 32}), "b": 2}
    assert read(raw(headers=headers)).headers == b'{"a": 1, "wheel": {"spokes": 32}, "b": 2}'


def test_properties_of_one_delivery_are_not_stored() -> None:
    assert read(raw()).properties == (
        b'{"content_type": "application/json", "content_encoding": "utf-8", '
        b'"correlation_id": "t", "reply_to": "", "delivery_mode": 2}'
    )


@pytest.mark.parametrize(
    ("body", "encoding", "read_as"),
    [
        ("aGk=", "base64", b"hi"),
        ("", "base64", b""),
        ("hi é", None, "hi é".encode()),
        ("hi", "utf-8", b"hi"),
        ("hi", "UTF-8", b"hi"),
        ({"__type__": "bytes", "__value__": "hi"}, None, b"hi"),
        ({"__type__": "base64", "__value__": "gA=="}, None, b"\x80"),
    ],
)
def test_a_body_is_read_in_every_form_that_kombu_writes(body: Any, encoding: str | None, read_as: bytes) -> None:
    assert read(raw(body=body, properties={"body_encoding": encoding})).body == read_as


def test_typed_values_pass_untouched() -> None:
    """Plain JSON: kombu's reader would turn them into objects, or raise for a type it does not know."""
    typed = {"at": {"__type__": "datetime", "__value__": "2026-01-01"}, "x": {"__type__": "?", "__value__": 1}}
    assert json.loads(read(raw(headers={**typed, "wheel": encode(envelope())})).headers) == typed


def test_nan_and_infinity_pass() -> None:
    data = (
        b'{"body": "aGk=", "properties": {"body_encoding": "base64", "x": -Infinity}, "headers": {"n": NaN, "wheel": '
    )
    message = read(data + json.dumps(encode(envelope())).encode() + b"}}")
    assert message.headers == b'{"n": NaN}'
    assert b'"x": -Infinity' in message.properties


@pytest.mark.parametrize(
    "data",
    [raw()[:-1] + b', "body": "aGk="}', b" \n" + raw(body="aGk=") + b"\r\n", enveloped(jitter_ms=3)],
    ids=["a duplicated key: the last counts", "space around the message", "an unknown field of the envelope"],
)
def test_unusual_json_is_read(data: bytes) -> None:
    message = read(data)
    assert (message.task, message.body) == ("proj.add", b"hi")


def test_optional_fields_may_be_absent() -> None:
    optional = ("queue", "priority", "expires_ms", "queue_expires_ms", "key")
    fields = {name: value for name, value in encode(envelope()).items() if name not in optional}
    message = read(raw(headers={"wheel": fields}))
    assert [getattr(message, name) for name in optional] == [None] * 5


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "Expecting value"),
        (b"nothing", "Expecting value"),
        (raw()[:-1], "Expecting"),
        (raw()[: len(raw()) // 2], ""),
        (raw() + b"{}", "one JSON object"),
        (b"[1]", "one JSON object"),
        (b"null", "one JSON object"),
        (b'"text"', "one JSON object"),
        (b"\xff\xfe{}", "codec can't decode"),
        (raw().decode().encode("utf-16"), "codec can't decode"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 100_000, "nested"),
        (b"1" * 5000, "digits"),
        (raw(headers=None), "headers must be an object, not NoneType"),
        (raw(headers=[]), "headers must be an object, not list"),
        (raw(properties="x"), "properties must be an object, not str"),
        (raw(headers={}), "header 'wheel' must be an envelope, not NoneType"),
        (raw(headers={"wheel": [1]}), "header 'wheel' must be an envelope, not list"),
        (raw(body=None), "body must be text, not NoneType"),
        (raw(body=[1]), "body must be text, not list"),
        (raw(body="a"), "base64"),
        (raw(body="aGk"), "padding"),
        (raw(body="aG k="), "base64"),
        (raw(body="é"), "ASCII"),
        (raw(properties={"body_encoding": "rot13"}), "body_encoding must be base64 or utf-8, got …"),
        (raw(properties={"body_encoding": 5}), "body_encoding must be base64 or utf-8, got …"),
        (raw(properties={"body_encoding": ["x"]}), "body_encoding must be base64 or utf-8"),
        (raw(body={"__type__": "datetime", "__value__": "x"}, properties={}), "body_encoding"),
        (raw(body={"__type__": [], "__value__": "x"}, properties={}), "body_encoding"),
        (raw(body="\ud800", properties={}), "surrogates"),
        (raw(**{"content-type": 5}), "content_type must be text, got …"),
        (raw(**{"content-encoding": []}), "content_encoding must be text"),
        (enveloped(v=2), "envelope version must be 1 (a newer producer needs a newer scheduler), got …"),
        (enveloped(v=True), "envelope version must be 1 (a newer producer needs a newer scheduler), got …"),
        (enveloped(v=1.0), "envelope version must be 1 (a newer producer needs a newer scheduler), got …"),
        (enveloped(v=None), "envelope version must be 1 (a newer producer needs a newer scheduler), got …"),
        (enveloped(id="x"), "id must be a UUID"),
        (enveloped(id=ID.upper()), "id must be a UUID"),
        (enveloped(id=None), "id must be a UUID"),
        (enveloped(id=5), "id must be a UUID"),
        (enveloped(task=""), "task must be a text of 1 to 512 characters, got …"),
        (enveloped(task="x" * 513), "task must be a text of 1 to 512 characters"),
        (enveloped(task_id=5), "task_id must be a text, got …"),
        (enveloped(task_id="a\0b"), "task_id must be without NUL"),
        (enveloped(task_id="\ud800"), "task_id must be text that can be written as UTF-8"),
        (enveloped(task="日" * 342), "task must be at most 1,024 bytes as UTF-8"),
        (enveloped(queue="😀" * 512), "queue must be at most 1,024 bytes as UTF-8"),
        (enveloped(exchange=None), "exchange must be a text"),
        (enveloped(exchange_type=""), "exchange_type must be a text"),
        (enveloped(routing_key=""), "routing_key must be a text of 1 to 512 characters"),
        (enveloped(queue=""), "queue must be a text"),
        (enveloped(key=""), "key must be a text"),
        (enveloped(key=False), "key must be a text"),
        (enveloped(group=5), "group must be a text, got …"),
        (enveloped(group="a"), "group must be equal to key, got …"),
        (enveloped(group="a\0", key="a\0"), "key must be without NUL"),
        (enveloped(group="a\nb", key="a\nb"), "group must be a text without line breaks and control characters, got"),
        (enveloped(eta_ms=None), "eta_ms must be milliseconds from 1970 to the end of 9998, got …"),
        (enveloped(eta_ms=True), "eta_ms must be milliseconds"),
        (enveloped(eta_ms=1.5), "eta_ms must be milliseconds"),
        (enveloped(eta_ms="1"), "eta_ms must be milliseconds"),
        (enveloped(eta_ms=-1), "eta_ms must be milliseconds"),
        (enveloped(eta_ms=END_OF_TIME_MS), "eta_ms must be milliseconds"),
        (enveloped(created_ms=10**400), "created_ms must be milliseconds"),
        (enveloped(expires_ms=-1), "expires_ms must be milliseconds"),
        (enveloped(queue_expires_ms=2**63), "queue_expires_ms must be a whole number from 0"),
        (enveloped(priority=256), "priority must be a whole number from 0 to 255, got …"),
        (enveloped(priority=True), "priority must be a whole number"),
        (enveloped(watch=[]), "watch must be a list of 1 to 16 keys, got …"),
        (enveloped(watch=["k"] * 17), "watch must be a list of 1 to 16 keys, got"),
        (enveloped(watch="k"), "watch must be a list of 1 to 16 keys, got …"),
        (enveloped(watch=["k", 5]), "watch must be a text, got …"),
        (enveloped(watch=["k", "a\0b"]), "watch must be without NUL"),
        (enveloped(on_conflict="kept"), "on_conflict must be keep, replace, reject or follow, got …"),
        (enveloped(on_conflict=["keep"]), "on_conflict must be keep, replace, reject or follow, got …"),
        (enveloped(misfire_ms=-1), "misfire_ms must be a whole number from 0 to 253,370,764,800,000, got …"),
        (raw(headers={"wheel": {"v": 1}}), "task must be a text, got …"),
        (raw(headers={"wheel": {k: v for k, v in encode(envelope()).items() if k != "id"}}), "id must be a UUID"),
        (raw(headers={"wheel": {k: v for k, v in encode(envelope()).items() if k != "eta_ms"}}), "eta_ms must be"),
        (enveloped(priority=float("nan")), "priority must be a whole number from 0 to 255, got …"),
    ],
)
def test_an_unreadable_message_has_a_reason(data: bytes, says: str) -> None:
    found = holds(data)
    assert isinstance(found, Unreadable)
    assert says in found.reason


@pytest.mark.parametrize("of", ["headers", "properties", "cut", "NaN"])
def test_large_headers_are_refused_before_they_are_read(of: str) -> None:
    """Their values take a hundred times their bytes, and seconds of the time of all other messages."""
    part = "properties" if of == "properties" else "headers"
    values = [{"a": [{}]}] * 300_000
    parts = {"headers": {"wheel": encode(envelope())}, "properties": {"body_encoding": "base64"}}
    data = raw(**{**parts, part: {**parts[part], "x": values}})
    data = data[:-9] if of == "cut" else data.replace(b'"a"', b'"a": NaN, "b"', 1) if of == "NaN" else data
    found = QueuedMessageReader(max_message_bytes=2**23).decode(data)
    assert isinstance(found, Unreadable)
    assert found.reason == "headers and properties must each be at most 1,048,576 bytes"
    assert isinstance(holds(raw(headers={"wheel": encode(envelope())}, body="YWJj" * 500_000)), Message)


def test_a_message_that_is_too_large_is_not_parsed() -> None:
    data = raw()
    found = QueuedMessageReader(max_message_bytes=len(data) - 1).decode(data)
    assert isinstance(found, Unreadable)
    assert found.reason == f"message must be at most {len(data) - 1:,} bytes, not {len(data):,}"
    assert found.of == (envelope().task, envelope().task_id)
    assert isinstance(QueuedMessageReader(max_message_bytes=len(data)).decode(data), Message)


def test_the_beginning_of_a_message_that_is_very_much_too_large_is_kept() -> None:
    """To store 100 MB takes seconds, in which no other message is accepted."""
    data = raw(body="x" * 400_000)
    kept, cut = (QueuedMessageReader(max_message_bytes=most).decode(data) for most in (200_000, 50_000))
    assert isinstance(kept, Unreadable)
    assert isinstance(cut, Unreadable)
    assert (kept.raw, cut.raw) == (data, data[: 2**16])
    assert cut.reason.endswith("; the store has only its beginning")
    assert cut.of == kept.of == (envelope().task, envelope().task_id)
    assert cut.envelope_id == kept.envelope_id


def test_the_same_bytes_make_the_same_id() -> None:
    one, again, other = (READER.decode(data).envelope_id for data in (b"x", b"x", b"y"))
    assert one == again != other
    assert UUID(one).version == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"task": ""},
        {"task_id": "x" * 513},
        {"key": "\0"},
        {"eta_ms": -1},
        {"priority": 999},
        {"id": "x"},
        {"group": "a"},
    ],
)
def test_an_envelope_that_would_not_be_read_is_not_written(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        encode(envelope(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"routing_key": "night.0", "queue": None},
        {"routing_key": "night.12", "queue": "night.12"},
        {"routing_key": "x", "exchange": "shop", "queue": "night.3"},
        {"routing_key": "night.offset.0", "queue": None},
    ],
)
def test_a_task_for_a_wheel_queue_is_unreadable(fields: dict[str, Any]) -> None:
    """The message would be dispatched into the wheel queue, and return for ever."""
    data = raw(headers={"task": "proj.add", "wheel": encode(envelope(**fields))})
    found = QueuedMessageReader(Destinations("night")).decode(data)
    assert isinstance(found, Unreadable)
    assert "is no task's queue, but one of the wheel, of Celery or of kombu" in found.reason
    assert isinstance(QueuedMessageReader(Destinations("day")).decode(data), Message)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "celery.pidbox",
            "reply.celery.pidbox",
            "Shop.PIDBOX",
            "celery@host.celery.pidbox",
            "celery-pidbox",
            "a/pidbox",
        ),
        *("5f7c1e0a-7d0c-5c5e-9a55-3f4e1f6f3a10.reply.celery.pidbox", "_kombu.binding_deadlines"),
        *("celeryev", "celeryev.5f7c", "CeleryEv", "_kombu.binding.celery", "app:_kombu.binding.celery"),
        *("unacked", "unacked_index", "unacked_mutex", "app:unacked", "celery-task-meta-t", "celery-taskset-meta-g.j"),
        *("amq.rabbitmq.reply-to.g1", "amq.gen-JzTY", "WHEEL.0", "wheel.0 ", "wheel.0.holder", "wheel.0\x06\x163"),
        *("unacked\x06\x169", "celery.pidbox\x06\x163", " celery.pidbox"),
    ],
)
def test_a_message_reaches_no_queue_that_is_not_a_tasks(name: str) -> None:
    """A message there would be a command to workers, an event, a result, or stop workers by a key of another type."""
    for fields in (
        {"routing_key": name, "queue": None},
        {"routing_key": "k", "queue": name},
        *({"exchange": name, "exchange_type": kind, "routing_key": "k"} for kind in ("fanout", "direct", "topic")),
    ):
        found = holds(raw(headers={"task": "proj.add", "wheel": encode(envelope(**fields))}))
        assert isinstance(found, Unreadable)
        assert "is no task's queue" in found.reason


@pytest.mark.parametrize(
    "name",
    [
        *(
            "pidboxes",
            "mypidbox",
            "pidbox.mail",
            "celeryevents",
            "unacknowledged",
            "not_unacked",
            "amq.topic",
            "wheel-0",
        ),
        *("celery", "wheel", "celery@host.dq", "C.dq2", "task-meta", "mail\x06\x163", ID),
    ],
)
def test_names_near_those_are_allowed(name: str) -> None:
    for fields in ({"routing_key": name, "queue": name}, {"exchange": name, "routing_key": "k"}):
        assert isinstance(holds(raw(headers={"task": "t", "wheel": encode(envelope(**fields))})), Message)


@pytest.mark.parametrize("queue", ["night", "night.x", "night.", "night.0x", "nights.0", "night.1.2", "night.offset.x"])
def test_names_that_only_begin_like_a_wheel_queue_are_allowed(queue: str) -> None:
    data = raw(headers={"task": "proj.add", "wheel": encode(envelope(routing_key=queue, queue=queue))})
    assert isinstance(QueuedMessageReader(Destinations("night")).decode(data), Message)


GOOD = raw()
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 2),
    st.floats(),
    st.text(st.characters(), max_size=20),  # lone surrogates, too
    st.sampled_from(["", "base64", "utf-8", "\0", "\ud800", "aGk=", "x" * 600, 10**30]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)


def holds(data: bytes, keep_eta: bool = False) -> Message | Unreadable:
    """Check the promises of ``decode`` for any bytes."""
    found = QueuedMessageReader(max_message_bytes=MAX, keep_eta=keep_eta).decode(data)
    if isinstance(found, Unreadable):
        assert found.raw is data
        assert found.reason
        found.reason.encode()
        assert "\0" not in found.reason
        assert len(found.reason) < 400
    else:
        for name in ("task", "task_id", "exchange", "exchange_type", "routing_key", "queue", "key", "envelope_id"):
            value = getattr(found, name)
            assert value is None or (len(value.encode()) <= 2048 and "\0" not in value)
        assert type(found.eta_ms) is type(found.created_ms) is int
        assert isinstance(json.loads(found.headers), dict)
        assert isinstance(json.loads(found.properties), dict)
        assert type(found.body) is bytes
    return found


@given(st.binary(max_size=400), st.booleans())
@example(b"\xef\xbb\xbf{}", False)
@example(b"{" * 5000, False)
def test_any_bytes_are_answered_and_kept(data: bytes, keep_eta: bool) -> None:
    assert isinstance(holds(data, keep_eta), Unreadable)


@pytest.mark.slow
@given(JSON)
def test_any_json_is_answered_and_kept(value: Any) -> None:
    holds(json.dumps(value).encode())


PATHS = [
    *[(name,) for name in wire()],
    *[("headers", name) for name in wire()["headers"]],
    *[("properties", name) for name in wire()["properties"]],
    *[("headers", "wheel", name) for name in encode(envelope())],
]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(PATHS), st.one_of(JSON, st.just(Ellipsis))), min_size=1, max_size=4))
@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
def test_a_good_message_with_changed_values_is_answered_and_kept(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    message = wire()
    for path, value in changes:
        place: Any = message
        for name in path[:-1]:
            place = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            continue
        if value is Ellipsis:
            place.pop(path[-1], None)
        else:
            place[path[-1]] = value
    holds(json.dumps(message).encode())


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=40)


@pytest.mark.slow
@given(
    st.builds(
        Envelope,
        id=st.uuids().map(str),
        task=TEXT,
        task_id=TEXT,
        eta_ms=st.integers(0, 253_370_764_799_999),
        created_ms=st.integers(0, 253_370_764_799_999),
        exchange=TEXT,
        exchange_type=TEXT,
        routing_key=TEXT,
        queue=st.none() | TEXT,
        priority=st.none() | st.integers(0, 255),
        expires_ms=st.none() | st.integers(0, 253_370_764_799_999),
        queue_expires_ms=st.none() | st.integers(0, 2**63 - 1),
        key=st.none() | TEXT,
        misfire_ms=st.none() | st.integers(0, 253_370_764_800_000),
        watch=st.none() | st.lists(TEXT, min_size=1, max_size=16),
        unique=st.none() | TEXT,
        on_conflict=st.none() | st.sampled_from(["keep", "replace", "reject"]),
    ),
    st.dictionaries(st.text(max_size=8).filter(lambda name: name not in ("wheel", "eta")), JSON, max_size=4),
)
def test_any_written_envelope_is_read(written: Envelope, others: dict[str, Any]) -> None:
    found = holds(raw(headers={**others, "wheel": encode(written)}))
    assert isinstance(found, Message)
    assert found.envelope_id == written.id
    assert all(getattr(found, name) == getattr(written, name) for name in Envelope.__struct_fields__ if name != "id")
    assert found.headers == json.dumps(others).encode()


@pytest.mark.parametrize(("error", "raised"), [(KeyError("surprise"), None), (MemoryError(), MemoryError)])
def test_a_memory_error_alone_of_unexpected_failures_is_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception] | None
) -> None:
    monkeypatch.setattr("celery_wheel.broker.reader.check", mock.Mock(side_effect=error))
    with pytest.raises(raised) if raised else nullcontext():
        assert READER.decode(GOOD).reason == "KeyError"  # type: ignore[union-attr]


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
    assert isinstance(same(json.dumps(message).encode(), keep_eta=keep_eta), Message)
    plain = {**message["headers"], "argsrepr": "('it\\'s', 1)"}
    for name in ("_parse", "_dumps_all", "a2b_base64"):
        monkeypatch.setattr(reader, name, None)
    found = QueuedMessageReader(keep_eta=keep_eta).decode(json.dumps({**message, "headers": plain}).encode())
    assert isinstance(found, Message)


@pytest.mark.slow
@given(st.sampled_from([MESSAGE, TEXT_MESSAGE]), st.sampled_from(SPELLINGS), st.data())
@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
def test_any_spelling_of_a_value_is_read_alike(message: dict[str, Any], spelling: bytes, data: st.DataObject) -> None:
    """The spelling takes the place of one value of the message, of its headers, properties or envelope."""
    copy = json.loads(json.dumps(message))
    places = (copy, copy["headers"], copy["properties"], copy["headers"]["wheel"])
    place = data.draw(st.sampled_from(places))
    place[data.draw(st.sampled_from([*place, "new"]))] = "@"
    same(json.dumps(copy).encode().replace(b'"@"', spelling))


@pytest.mark.slow
@given(st.sampled_from([MESSAGE, TEXT_MESSAGE]), st.data())
@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
def test_a_changed_message_is_answered_kept_and_read_alike(message: dict[str, Any], data: st.DataObject) -> None:
    """Members in another order, repeated, or with escapes in their names; space; lost and added bytes."""
    changed = bytearray(json.dumps(message, separators=data.draw(st.sampled_from([None, (",", ":")]))).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, max(0, len(changed) - 1)))
        kind = data.draw(st.sampled_from(["set", "delete", "insert", "cut", "space", "member"]))
        if kind == "set":
            changed[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
        elif kind == "delete":
            del changed[at : at + data.draw(st.integers(1, 9))]
        elif kind == "insert":
            changed[at:at] = data.draw(st.binary(max_size=6))
        elif kind == "cut":
            del changed[at:]
        elif kind == "space":
            where = changed.find(data.draw(st.sampled_from([b":", b",", b"{", b"}"])), at)
            changed[where:where] = data.draw(st.sampled_from([b" ", b"\n", b"\t\r", b"\x0b", b"\xc2\xa0"]))
        else:
            where = changed.find(b", ", at)
            changed[where:where] = b", " + data.draw(st.sampled_from(MEMBERS))
    same(bytes(changed))
    holds(bytes(changed))


@pytest.mark.slow
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
        expected = str(error) if body.isascii() else "body must be base64, which is ASCII"
    assert (found.body if isinstance(found, Message) else found.reason) == expected
