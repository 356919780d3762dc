"""Entries go from Beat's own scheduler to the wheel and back, in virtual time: no instant is repeated or missed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from shelve import Shelf
from typing import Any

import pytest
from celery import _state
from celery.schedules import crontab

from celery_wheel import Celery, beat
from celery_wheel.scheduler.sources import beat_entries, sources
from celery_wheel.scheduler.sources.sources import ACTOR, Sources
from celery_wheel.testing import VirtualWheel

START = datetime(2030, 11, 20, 12, tzinfo=UTC)
STEP = timedelta(milliseconds=250)
EVERY = timedelta(seconds=10)
DOWN = timedelta(milliseconds=750)


class Service:
    """A ``WheelService`` whose engine is that of the virtual wheel."""

    started = True

    def __init__(self, *_: object) -> None: ...

    def nothing(self, *_: object) -> None: ...

    check = raise_failure = stop = report_sources = count_process_end = nothing

    def holds(self, shard: int) -> bool:
        return True


class Switched:
    """An app whose schedulers come one after the other; ``sent`` has the task, the intended time and the moment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, datetime, bool]] = []  #: task, its instant, whether the wheel has sent it
        self.app: Any = Celery("shop", broker="memory://", timezone="UTC", set_as_current=False)
        self.app.conf.update(
            beat_schedule={
                "minutely": {"task": "minutely", "schedule": crontab()},
                "often": {"task": "often", "schedule": EVERY},
            },
            beat_schedule_filename=str(folder / "schedule"),
            result_expires=None,
        )
        # An entry that is read from Beat's file asks the process's current app for the time.
        monkeypatch.setattr(_state._tls, "current_app", self.app)

        def note(task: Any) -> None:
            by_wheel = getattr(task.request, "wheel_occurrence", None)
            at = self.wheel.now if by_wheel is None else task.request.wheel.scheduled_for
            self.sent.append((task.name, at, by_wheel is not None))

        for name in ("minutely", "often"):
            self.app.task(note, name=name, bind=True, shared=False)
        self.wheel = VirtualWheel(self.app)
        looks = self.looks = list[Any]()
        monkeypatch.setattr(beat, "WheelService", Service)
        monkeypatch.setattr(Sources, "start", lambda one: looks.append(one))  # the test looks, and no thread
        monkeypatch.setattr(Sources, "_store", lambda _: self.app.wheel.store)
        monkeypatch.setattr(Sources, "_asker", lambda _, source: self._asker(source))
        monkeypatch.setattr(sources, "SystemClock", lambda: self.wheel._clock)

    def _asker(self, source: str) -> Any:
        def ask(do: str, names: Any, options: dict[str, Any]) -> Any:
            how: Any = {"actor": ACTOR, "reason": "test"}
            return self.app.wheel.schedules.change(do, names, how=how, source=source, **options)

        return ask

    def scheduler(self) -> Any:
        return beat.WheelScheduler(self.app, schedule_filename=self.app.conf.beat_schedule_filename)

    def run(self, who: str, seconds: float) -> None:
        """Let one scheduler run for a time, and end it."""
        scheduler = self.start(who)
        until = self.wheel.now + timedelta(seconds=seconds)
        while self.wheel.now < until:
            self.step(scheduler)
        scheduler.close()

    def start(self, who: str) -> Any:
        self.app.conf.wheel_periodic = who
        return self.scheduler()

    def step(self, scheduler: Any) -> None:
        while scheduler.tick() == 0:
            pass
        assert self.looks[-1].look()
        self.wheel.advance(STEP)

    def instants(self, name: str) -> list[datetime]:
        return [at for task, at, _ in self.sent if task == name]

    def check_gaps(self, since: int) -> None:
        """Let the wheel go on, and check that it has sent each instant of "often" once since the one of that number."""
        self.run("wheel", 25)
        gaps = [later - sooner for sooner, later in pairwise(self.instants("often")[since - 1 :])]
        assert gaps == [EVERY] * len(gaps)
        assert len(gaps) >= 2


@pytest.fixture
def switched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Switched]:
    found = Switched(tmp_path, monkeypatch)
    with found.wheel as wheel:
        wheel.advance_to(START)
        wheel.freeze()
        yield found


def test_no_instant_is_repeated_or_missed_over_switches_at_any_phase(switched: Switched) -> None:
    for number in range(24):
        switched.run("wheel" if number % 2 else "base", 5 + number * 0.75)
        switched.wheel.advance(DOWN * (number % 5))  # an instant may come while no scheduler runs
    minutes = [at.replace(second=0, microsecond=0) for at in switched.instants("minutely")]
    assert minutes == [minutes[0] + timedelta(minutes=n) for n in range(len(minutes))]
    assert len(minutes) == 6
    often = [(at, by_wheel) for name, at, by_wheel in switched.sent if name == "often"]
    assert {(one, other) for (_, one), (_, other) in pairwise(often)} >= {(True, False), (False, True)}
    gaps = [later - sooner for (sooner, _), (later, _) in pairwise(often)]
    assert min(gaps) >= EVERY
    assert max(gaps) <= EVERY + 4 * DOWN + 2 * STEP


@pytest.mark.parametrize("end", ["before its next tick", "by a kill"])
def test_a_scheduler_that_ends_as_it_takes_its_entries_back_repeats_no_instant(
    switched: Switched, tmp_path: Path, end: str
) -> None:
    switched.run("wheel", 25)
    before = len(switched.instants("often"))
    scheduler = switched.start("base")
    switched.step(scheduler)  # its look has deleted the schedules
    if end == "by a kill":
        scheduler.tick()
        saved = {file: file.read_bytes() for file in tmp_path.glob("schedule*")}
        scheduler.close()
        for file, content in saved.items():
            file.write_bytes(content)
    else:
        scheduler.close()
    switched.check_gaps(since=before)


@pytest.mark.parametrize(
    ("owner", "step"), [(beat_entries.PeriodicEntries, "_advance"), (Shelf, "__setitem__")], ids=["taking", "saving"]
)
def test_a_signal_while_a_scheduler_takes_its_entries_back_repeats_no_instant(
    switched: Switched, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    switched.run("wheel", 25)
    before = len(switched.instants("often"))
    scheduler = switched.start("base")
    switched.step(scheduler)

    def interrupt(*_: object) -> None:
        patched.undo()
        scheduler.close()  # as Celery's handler does
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, interrupt)
        with pytest.raises(SystemExit):
            scheduler.tick()
    switched.check_gaps(since=before)


def test_a_signal_may_close_the_scheduler_within_a_tick(switched: Switched) -> None:
    scheduler = switched.scheduler()
    own = scheduler.populate_heap

    def populate_and_close(*args: Any, **kwargs: Any) -> None:
        own(*args, **kwargs)
        scheduler.close()

    scheduler.populate_heap = populate_and_close
    scheduler.tick()
    assert scheduler._entries is None
