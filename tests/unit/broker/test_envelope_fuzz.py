"""Any bytes: ``decode`` answers and keeps them, and each Message that it returns can be stored and sent."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_wheel.broker.envelope import Envelope, encode
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.store.model import Message, Unreadable
from tests.unit.broker.test_envelope import MAX, envelope, raw, wire

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
        assert len(found.reason) < 1000
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


@given(JSON)
def test_any_json_is_answered_and_kept(value: Any) -> None:
    holds(json.dumps(value).encode())


@given(st.data())
@settings(max_examples=500)
def test_a_good_message_with_changed_bytes_is_answered_and_kept(data: st.DataObject) -> None:
    changed = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(changed) - 1))
        kind = data.draw(st.sampled_from(["set", "delete", "insert", "cut"]))
        if kind == "set":
            changed[at] = data.draw(st.integers(0, 255))
        elif kind == "delete":
            del changed[at : at + data.draw(st.integers(1, 9))]
        elif kind == "insert":
            changed[at:at] = data.draw(st.binary(max_size=6))
        else:
            del changed[at:]
        if not changed:
            break
    holds(bytes(changed))


PATHS = [
    *[(name,) for name in wire()],
    *[("headers", name) for name in wire()["headers"]],
    *[("properties", name) for name in wire()["properties"]],
    *[("headers", "wheel", name) for name in encode(envelope())],
]


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


def test_an_unexpected_failure_makes_the_message_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("celery_wheel.broker.reader.check", broken)
    assert QueuedMessageReader().decode(GOOD).reason == "'surprise'"  # type: ignore[union-attr]


def test_only_a_memory_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("celery_wheel.broker.reader.check", out_of_memory)
    with pytest.raises(MemoryError):
        QueuedMessageReader().decode(GOOD)
