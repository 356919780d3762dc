"""The shared reading: one refresh at a time, at most a second old, and no reader for each who asks."""

import threading
from typing import Any

import pytest

from celery_wheel import overview as module
from celery_wheel.errors import StoreError
from celery_wheel.overview import FRESH_S, STALE_S, OverviewCache, Shared
from celery_wheel.store.model import HOUR_MS, ShardRecord
from celery_wheel.store.ports.pages import OverviewRows, ShardHead
from tests.kit.patience import patience, wait_until

NOW = 1_800_000_000_000


class Source:
    """Counts its readings, and stops in one where it is asked to."""

    def __init__(self) -> None:
        self.now_s, self.count = 0.0, 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.error: StoreError | None = None
        self.shared = Shared(self.read, lambda: self.now_s)

    def read(self, _last: int | None) -> int:
        self.count += 1
        count = self.count
        assert self.goes_on.wait(patience())
        if self.error is not None:
            raise self.error
        return count


def in_threads(count: int, call: Any) -> tuple[list[threading.Thread], list[Any]]:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(call())) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, found


def test_a_reading_is_used_for_a_second() -> None:
    source = Source()
    assert [source.shared.get(), source.shared.get()] == [1, 1]
    source.now_s = FRESH_S
    assert source.shared.get() == 2


def test_all_who_ask_at_first_wait_for_one_reading() -> None:
    source = Source()
    source.goes_on.clear()
    threads, found = in_threads(8, source.shared.get)
    wait_until(lambda: source.count == 1, "one thread reads")
    source.goes_on.set()
    for thread in threads:
        thread.join(patience())
    assert (found, source.count) == ([1] * 8, 1)


@pytest.mark.parametrize(("age_s", "expected"), [(FRESH_S, 1), (STALE_S, 2)])
def test_while_a_thread_reads_others_get_the_last_reading_unless_it_is_old(age_s: float, expected: int) -> None:
    source = Source()
    source.shared.get()
    source.now_s = age_s
    source.goes_on.clear()
    reading, first = in_threads(1, source.shared.get)
    wait_until(lambda: source.count == 2, "one thread reads")
    asking, others = in_threads(4, source.shared.get)
    if expected == 1:
        for thread in asking:
            thread.join(patience())
        assert others == [1] * 4
    source.goes_on.set()
    for thread in (*reading, *asking):
        thread.join(patience())
    assert (first, others, source.count) == ([2], [expected] * 4, 2)


def test_an_error_is_raised_to_all_for_a_second_and_then_forgotten() -> None:
    source = Source()
    source.error = StoreError("the store does not answer")
    for _ in range(3):
        with pytest.raises(StoreError, match="does not answer"):
            source.shared.get()
    assert source.count == 1
    source.error, source.now_s = None, FRESH_S
    assert source.shared.get() == 2


def test_a_wait_that_ends_first_has_the_reading_before_while_a_thread_reads_on() -> None:
    source = Source()
    source.goes_on.clear()
    assert source.shared.get_within(0) is None
    wait_until(lambda: source.count == 1, "a thread reads")
    assert source.shared.get_within(0) is None
    source.goes_on.set()
    assert (source.shared.get_within(patience()), source.count) == (1, 1)
    source.now_s = STALE_S
    source.goes_on.clear()
    assert source.shared.get_within(0) == 1
    source.goes_on.set()
    assert (source.shared.get_within(patience()), source.count) == (2, 2)
    source.now_s, source.error = 2 * STALE_S, StoreError("the store does not answer")
    with pytest.raises(StoreError, match="does not answer"):
        source.shared.get_within(patience())


def test_a_change_of_the_process_is_shown_at_once() -> None:
    source = Source()
    source.shared.get()
    source.shared.expire()
    assert source.shared.get() == 2


class Browse:
    def __init__(self, due: int, shards: int = 0) -> None:
        self.shards = [ShardHead(ShardRecord(n, 1, None, None, 0, None, None), 0) for n in range(shards)]
        self.browse, self.due = self, due
        self.counted: list[int] = []

    def overview(
        self, now_ms: int, _before_ms: int, *, with_seconds: bool, with_levels: bool, with_names: bool
    ) -> OverviewRows:
        assert not with_levels
        if with_seconds:
            self.counted.append(now_ms - NOW)
        seconds = {now_ms // 1_000: self.due} if with_seconds else None
        names = dict.fromkeys([("queue", f"task {n}") for n in range(self.due)], now_ms - NOW) if with_names else None
        return OverviewRows(self.shards, [], [], {}, names, {now_ms // HOUR_MS: self.due}, {}, seconds, {})


@pytest.mark.parametrize(("due", "counted"), [(0, [1, 2, 3, 4]), (20_000, [1, 2, 3, 4]), (50_000, [1, 4])])
def test_many_seconds_are_counted_more_rarely(due: int, counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0)
    store: Any = Browse(due)
    now = [NOW]
    shared = OverviewCache(store, lambda: now[0])
    for _ in range(5):
        assert sum(shared.get().due.seconds.values()) == (due if now[0] > NOW else 0)
        now[0] += 1_000
    assert [ms // 1_000 for ms in store.counted] == counted


@pytest.mark.parametrize(("names", "shards", "read_at_s"), [(100, 1, [0, 1, 2, 3, 4]), (2_000, 5, [0, 0, 2, 2, 4])])
def test_names_are_counted_the_more_rarely_the_more_sums_they_have(
    names: int, shards: int, read_at_s: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0)
    store: Any = Browse(names, shards)
    now = [NOW]
    shared, found = OverviewCache(store, lambda: now[0]), []
    for _ in range(5):
        assert len(shared.get().tasks) == names
        found.append(shared.get().names["queue", "task 0"] // 1_000)
        now[0] += 1_000
    assert found == read_at_s
    shared.expire()
    assert shared.get().names["queue", "task 0"] == now[0] - NOW
