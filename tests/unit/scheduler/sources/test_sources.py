"""The thread of the sources, with a clock that its waits move: how often it looks at a source, and what it logs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.conf import Conf
from celery_wheel.errors import StoreError
from celery_wheel.scheduler.sources import EntryChanges, sources
from celery_wheel.scheduler.sources.beat_entries import EntryListing
from celery_wheel.scheduler.sources.sources import BACK_OFF_MOST_S, Sources
from celery_wheel.store.ports import FullStore
from celery_wheel.timing import ManualClock

#: Between two looks; the engine carries out a command within the rest of a second.
MOST_S = 0.25


class Watched(EntryListing):
    """A source without entries, which fails for a time; it notes when it was looked at, in seconds."""

    def __init__(self, clock: ManualClock, fails_until_s: float = 0) -> None:
        super().__init__()
        self.at_s: list[float] = []
        self._clock = clock
        self._fails_until_s = fails_until_s

    def read(self) -> EntryChanges | None:
        self.at_s.append(self._clock.monotonic_ms() / 1_000)
        if self.at_s[-1] < self._fails_until_s:
            raise StoreError("the database is away")
        return None


class Waits:
    """In place of the event that wakes the thread: each wait moves the clock."""

    def __init__(self, clock: ManualClock, thread: Sources, seconds: float) -> None:
        self._clock = clock
        self._thread = thread
        self._until_ms = seconds * 1_000

    def clear(self) -> None: ...

    def wait(self, seconds: float) -> None:
        self._clock.advance(round(seconds * 1_000))
        if self._clock.monotonic_ms() >= self._until_ms:
            self._thread._stop.set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    found = ManualClock(0)
    monkeypatch.setattr(sources, "SystemClock", lambda: found)
    return found


def looked_at(app: Any, clock: ManualClock, source: Watched, seconds: float) -> list[float]:
    """Run the thread's loop for a time; returns the seconds between two looks."""
    thread: Any = Sources(Conf(app), [source], lambda: True)
    thread._wake = Waits(clock, thread, seconds)
    thread._run()
    return [later - sooner for sooner, later in pairwise(source.at_s)]


def test_a_source_is_looked_at_four_times_a_second(app: Any, clock: ManualClock) -> None:
    gaps = looked_at(app, clock, Watched(clock), 120)
    assert len(gaps) == 120 / MOST_S - 1
    assert max(gaps) <= MOST_S


def test_a_source_that_fails_is_tried_less_often_until_it_answers(app: Any, clock: ManualClock) -> None:
    source = Watched(clock, fails_until_s=100)
    gaps = looked_at(app, clock, source, 200)
    assert [gap for gap, at_s in zip(gaps, source.at_s, strict=False) if at_s < 100] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert max(gap for gap, at_s in zip(gaps, source.at_s, strict=False) if at_s >= 100) <= MOST_S
    assert max(gaps) == BACK_OFF_MOST_S


class Counts:
    """Run counts without a database."""

    def run(self, store: FullStore) -> None: ...

    def close(self) -> None: ...


def test_a_failure_of_the_run_counts_is_named_once_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{tmp_path}/no/such.sqlite3"
    sources = Sources(Conf(app), [], lambda: True, beside=[Counts()])
    assert not sources.look()
    assert not sources.look()
    sources.stop()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("periodic entries (run counts) cannot be followed: ")
