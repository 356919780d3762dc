"""The ids of dispatched messages tell their time."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest

from celery_wheel.values.ids import dispatch_ids, dispatched_ms, uuid7

NOW = 1_800_000_000_123


def test_ids_are_uuid7s_of_the_time_of_dispatch_and_differ() -> None:
    ids = [one.decode() for one in itertools.islice(dispatch_ids(NOW), 1_000)]
    assert len(set(ids)) == 1_000
    for one in ids:
        assert str(uuid.UUID(one)) == one
        assert (uuid.UUID(one).version, uuid.UUID(one).variant) == (7, uuid.RFC_4122)
        assert dispatched_ms(one) == NOW
    for generator in (dispatch_ids(NOW), dispatch_ids(NOW)):
        assert next(generator).decode() not in ids


def test_any_uuid7_tells_its_time() -> None:
    assert abs((dispatched_ms(uuid7()) or 0) - uuid.UUID(uuid7()).int // 2**80) < 60_000


@pytest.mark.parametrize(
    "value", [None, 17, "", "7", str(uuid.UUID(int=5, version=4)), "x" * 14 + "7" + "x" * 21, b"7"]
)
def test_anything_else_has_no_time(value: Any) -> None:
    assert dispatched_ms(value) is None
