"""Properties and headers have the bytes that py-amqp writes, and the values that py-amqp reads."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import amqp
import pytest
from amqp.serialization import decode_properties_basic
from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheel.broker.amqp.frames import decode_properties, encode_properties

names = st.text(max_size=20) | st.just("\ud800") | st.just("x" * 300)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.sampled_from([2**31 - 1, 2**31, -(2**31), -(2**31) + 1, 2**63 - 1, -(2**63)])
    | st.floats(allow_nan=False)
    | st.text(max_size=30)
    | st.just("\ud800")
    | st.binary(max_size=10)
    | st.just(Decimal("1.25"))
    | st.just(datetime(2030, 1, 1, tzinfo=UTC))
    | st.just({1, 2})
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=8
)
texts = st.text(max_size=20) | st.just("x" * 256) | st.just("") | st.integers(0, 2) | st.just(b"bytes")
numbers = st.integers(-1, 256) | st.booleans() | st.just("2")
fields = {
    name: {"s": texts, "o": numbers, "L": st.integers(-1, 2**64), "F": st.dictionaries(names, values, max_size=6)}[kind]
    for name, kind in amqp.Message.PROPERTIES
}
properties = st.fixed_dictionaries({}, optional={**fields, "unknown": texts})


def outcome(work: Any) -> Any:
    """Return the result of a call; any error is the same outcome."""
    try:
        return repr(work())
    except Exception:
        return "an error"


@given(properties)
@example({"application_headers": {"id": "ü", "n": [None, None], "own": {"a": {"b": True}}}, "priority": 0})
@example({"application_headers": {"n": 2**31}, "correlation_id": "x" * 255, "delivery_mode": True})
def test_the_bytes_are_those_of_py_amqp(given: dict[str, Any]) -> None:
    def of_py_amqp() -> bytes:
        return amqp.Message(b"", **given)._serialize_properties()  # type: ignore[no-any-return]

    assert outcome(lambda: encode_properties(given)) == outcome(of_py_amqp)


@given(properties)
@example({"application_headers": {"timelimit": [None, None], "more": [None, 86]}})
def test_the_values_are_those_of_py_amqp(given: dict[str, Any]) -> None:
    try:
        data = amqp.Message(b"", **given)._serialize_properties()
    except Exception:
        return  # the test above compares errors
    assert outcome(lambda: decode_properties(data)) == outcome(lambda: decode_properties_basic(data, 0)[0])


@given(st.binary(max_size=60))
@example(b"\x20\x00\x00\x00\x00\x04\x02\xff\xfet\x01")
@example(b"\x20\x00\x00\x00\x00\x05\x01aA\x00\x00\x00\x00")
def test_any_bytes_are_read_as_by_py_amqp(data: bytes) -> None:
    assert outcome(lambda: decode_properties(data)) == outcome(lambda: decode_properties_basic(data, 0)[0])


@pytest.mark.parametrize("code", [b"L", b"l", b"I", b"i", b"b", b"B", b"U", b"u", b"d", b"f", b"s", b"T", b"D", b"x"])
def test_every_type_of_a_header_is_read_as_by_py_amqp(code: bytes) -> None:
    table = b"\x01n" + code + b"\x00\x00\x00\x01" * 2
    for size in range(2, len(table)):
        data = b"\x20\x00" + size.to_bytes(4, "big") + table[:size]
        assert outcome(lambda d=data: decode_properties(d)) == outcome(lambda d=data: decode_properties_basic(d, 0)[0])
