"""UUIDv7: valid, increasing, unique across threads and forks; the ids of dispatched messages tell their time."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from typing import Any
from uuid import UUID

import pytest

from celery_wheel.values import ids
from celery_wheel.values.ids import dispatch_ids, dispatched_ms, uuid7


def test_an_id_is_a_uuid_of_version_7_with_the_time_of_its_making(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last_ms", 0)  # an earlier test may have set the clock ahead
    before = time.time_ns() // 1_000_000
    text = uuid7()
    value = UUID(text)
    assert str(value) == text
    assert (value.version, value.variant) == (7, "specified in RFC 4122")
    assert before <= value.int >> 80 <= time.time_ns() // 1_000_000


def test_ids_increase_strictly() -> None:
    made = [uuid7() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_increase_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = uuid7()
    monkeypatch.setattr(ids.time, "time_ns", lambda: 1_000_000_000)
    made = [first, *(uuid7() for _ in range(1000))]
    assert made == sorted(set(made))


def test_a_full_counter_takes_the_next_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    first = uuid7()
    monkeypatch.setattr(ids, "_counter", 2**42 - 1)
    monkeypatch.setattr(ids.time, "time_ns", lambda: ids._last_ms * 1_000_000)
    second, third = uuid7(), uuid7()
    assert first < second < third
    assert UUID(second).int >> 80 == (UUID(first).int >> 80) + 1


def test_threads_share_no_id() -> None:
    made: list[list[str]] = [[] for _ in range(8)]

    def fill(into: list[str]) -> None:
        into.extend(uuid7() for _ in range(2000))

    threads = [threading.Thread(target=fill, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for into in made for one in into}) == 16_000
    assert all(into == sorted(into) for into in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_counts_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(ids.time, "time_ns", lambda: now_ns)
    monkeypatch.setattr(ids.os, "urandom", lambda size: bytes(size))  # only the counter is left to differ
    uuid7()
    monkeypatch.setattr(ids.os, "urandom", lambda size: os.getpid().to_bytes(size, "big"))
    reader, writer = os.pipe()
    with ids._lock:  # as if another thread was making an id at that moment
        child = os.fork()
        if child == 0:
            os.write(writer, uuid7().encode())
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 36).decode() not in {uuid7() for _ in range(1000)}
    os.close(reader)
    os.close(writer)


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
