"""The store's schedules become equal to a source's entries; no switch to Beat's own repeats or misses an instant."""

import dbm
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from shelve import Shelf
from typing import Any
from unittest import mock

import pytest
from celery import _state
from celery.schedules import crontab

from celery_wheel import Celery, beat
from celery_wheel.conf import Conf
from celery_wheel.errors import StoreError, WheelUnavailable
from celery_wheel.scheduler.sources import EntryChanges, SourceEntry, beat_entries, broken, of_base, sources
from celery_wheel.scheduler.sources.beat_entries import EntryListing
from celery_wheel.scheduler.sources.follower import Follower
from celery_wheel.scheduler.sources.sources import BACK_OFF_MOST_S, Sources
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import BEAT, Schedule
from celery_wheel.testing import VirtualWheel
from celery_wheel.timing import ManualClock

NOW = datetime(2030, 11, 20, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)


class FollowerRig:
    """A follower of one source, and the schedules of the store."""

    def __init__(self, app: Any, wheel: VirtualWheel) -> None:
        self.app = app
        self.wheel = wheel
        self.asked: list[tuple[str, list[str]]] = []
        self.follower = self.new()

    def new(self) -> Follower:
        """Return a follower that knows nothing yet, as after a restart."""

        def ask(do: str, names: Any, options: dict[str, Any]) -> Any:
            self.asked.append((do, sorted(names)))
            how: Any = {"actor": "beat", "reason": "test"}
            return self.app.wheel.schedules.change(do, names, how=how, source=BEAT, **options)

        return Follower(BEAT, lambda: self.app.wheel.store, ask, lambda: NOW_MS, hands_back=True)

    def follow(self, **entries: SourceEntry) -> None:
        """Follow entries that are all that there are."""
        self.follower.follow(EntryChanges(dict(entries), all_names=entries.keys()))

    def schedule(self, name: str) -> Schedule | None:
        found = self.app.wheel.store.browse.schedule(name)
        return None if found is None else found.schedule

    def stored(self, name: str) -> Schedule:
        found = self.schedule(name)
        assert found is not None, f"there is no schedule {name}"
        return found

    def document(self, name: str) -> Any:
        return json.loads(self.stored(name).definition)


def entry(every_ms: int = 60_000, anchor_ms: int = NOW_MS, after_ms: int | None = None, **more: Any) -> SourceEntry:
    spec = {"kind": "interval", "every_ms": every_ms, "anchor_ms": anchor_ms}
    document = {"recurrence": {"kind": "recurrence", "spec": spec}, "task": "app.report", **more}
    return SourceEntry(document, after_ms)


@pytest.fixture
def app() -> Any:
    return Celery("shop", broker="memory://", timezone="Europe/Paris", set_as_current=False)


@pytest.fixture
def rig(app: Any) -> Iterator[FollowerRig]:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(NOW)
        wheel.freeze()
        yield FollowerRig(app, wheel)


def test_entries_are_created_changed_and_deleted(rig: FollowerRig) -> None:
    rig.follow(a=entry(), b=entry())
    assert (rig.stored("a").source, rig.stored("a").revision) == ("beat", 1)
    rig.follow(a=entry(kwargs={"x": 1}), c=entry())
    assert rig.document("a")["kwargs"] == {"x": 1}
    assert rig.schedule("b") is None
    assert rig.stored("c").revision == 1
    assert rig.asked == [("create", ["a", "b"]), ("delete", ["b"]), ("update", ["a"]), ("create", ["c"])]


def test_unchanged_entries_cost_no_command_also_after_a_restart(rig: FollowerRig) -> None:
    entries = {name: entry() for name in "abc"}
    rig.follow(**entries)
    rig.asked.clear()
    rig.follow(**entries)
    rig.follower = rig.new()
    rig.follow(**{name: entry(anchor_ms=NOW_MS + 7_000) for name in "abc"})
    assert rig.asked == []


def test_an_interval_keeps_its_anchor_until_its_period_changes(rig: FollowerRig) -> None:
    rig.follow(a=entry(60_000, NOW_MS))
    rig.follow(a=entry(60_000, NOW_MS + 7_000, args=[1]))
    assert rig.document("a")["recurrence"]["spec"]["anchor_ms"] == NOW_MS
    assert rig.stored("a").revision == 2
    rig.follow(a=entry(30_000, NOW_MS + 9_000, args=[1]))
    assert rig.document("a")["recurrence"]["spec"]["anchor_ms"] == NOW_MS + 9_000


def test_a_relative_day_keeps_its_first_day(rig: FollowerRig) -> None:
    def daily(day: str, interval: int) -> object:
        spec = {"kind": "rrule", "text": f"DTSTART:{day}T000000\nRRULE:FREQ=DAILY;INTERVAL={interval}"}
        return entry(recurrence={"kind": "recurrence", "spec": spec, "zone": "Europe/Paris"})

    rig.follow(a=daily("20301121", 2))  # type: ignore[arg-type]
    rig.follow(a=daily("20301124", 2))  # type: ignore[arg-type]
    assert rig.stored("a").revision == 1
    rig.follow(a=daily("20301124", 3))  # type: ignore[arg-type]
    assert "20301124" in rig.document("a")["recurrence"]["spec"]["text"]


def test_a_new_schedule_goes_on_after_the_last_instant_that_another_scheduler_sent(rig: FollowerRig) -> None:
    rig.follow(sent=entry(after_ms=NOW_MS + 60_000), missed=entry(after_ms=NOW_MS - 90_000))
    assert rig.stored("sent").next_ms == NOW_MS + 120_000
    assert rig.stored("missed").next_ms == NOW_MS - 60_000, "its catch-up decides"


def report() -> None: ...


def once(at_ms: int) -> SourceEntry:
    """Return an entry of one instant, as of a clocked row."""
    recurrence = {"kind": "recurrence", "spec": {"kind": "instants", "at_ms": [at_ms]}, "times": 1}
    return SourceEntry({"recurrence": recurrence, "task": "app.report"}, after_ms=at_ms - 1)


def test_an_instant_that_is_edited_to_the_present_still_comes_and_comes_once(rig: FollowerRig) -> None:
    rig.app.task(report, name="app.report", shared=False)
    rig.follow(a=once(NOW_MS + 3_600_000))
    rig.follow(a=once(NOW_MS - 800))
    assert rig.stored("a").next_ms == NOW_MS - 800
    assert len(rig.wheel.advance(1)) == 1
    rig.follow(a=once(NOW_MS - 500))
    assert rig.wheel.advance(60) == []


def test_a_schedule_that_has_run_goes_on_from_now(rig: FollowerRig) -> None:
    rig.app.task(report, name="app.report", shared=False)
    rig.follow(a=entry(60_000))
    assert len(rig.wheel.advance(90)) == 1
    rig.follow(a=entry(1_000, after_ms=NOW_MS - 60_000))
    next_ms = rig.stored("a").next_ms
    assert next_ms is not None
    assert 90_000 < next_ms - NOW_MS <= 91_500


@pytest.mark.parametrize(
    ("edited_s", "next_s"),
    [(3_635, 3_640), (3_590, 3_620), (7_000, 3_680)],
    ids=["after the last instant", "before it", "by a clock that is ahead"],
)
def test_an_edit_that_is_followed_late_applies_from_when_it_was_seen(
    rig: FollowerRig, edited_s: int, next_s: int
) -> None:
    rig.app.task(report, name="app.report", shared=False)
    rig.follow(a=entry(3_600_000))
    assert len(rig.wheel.advance(3_670)) == 1
    rig.follow(a=replace(entry(20_000), edited_ms=NOW_MS + edited_s * 1_000))
    assert rig.stored("a").next_ms == NOW_MS + next_s * 1_000


def test_an_entry_that_the_wheel_has_not_run_goes_back_as_it_came(rig: FollowerRig) -> None:
    rig.follow(a=once(NOW_MS + 3_600_000), b=entry(after_ms=NOW_MS - 5_000))
    assert rig.stored("b").last_ms is None, "the wheel has made none"
    rig.follow()
    assert rig.follower.handed_back == {}


def test_a_name_of_another_source_is_a_clash_that_harms_no_other_entry(
    rig: FollowerRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.app.wheel.schedules.create("b", 5, "app.own", check_task=False)
    with caplog.at_level(logging.ERROR):
        rig.follow(a=entry(), b=entry(), c=entry())
    assert rig.stored("b").source == "api"
    assert [rig.stored(name).source for name in "ac"] == ["beat", "beat"]
    assert list(rig.follower.clashes) == ["b"]
    [record] = caplog.records
    assert "a schedule of api has that name" in record.getMessage()
    rig.follower.retry_clashes()
    assert len(caplog.records) == 1, "it is said once"
    rig.follow(a=entry(), c=entry())
    assert rig.stored("b").source == "api", "who leaves deletes no schedule of another"
    rig.follow(a=entry(), b=entry(), c=entry())
    rig.app.wheel.schedules.delete("b")
    rig.follower.retry_clashes()
    assert (rig.stored("b").source, rig.follower.clashes) == ("beat", {})


def test_a_name_that_a_user_gave_to_another_schedule_is_not_overwritten(rig: FollowerRig) -> None:
    rig.follow(a=entry())
    rig.app.wheel.schedules.delete("a")
    rig.app.wheel.schedules.create("a", 5, "app.own")
    rig.follow(a=entry(args=[1]))
    assert (rig.stored("a").source, list(rig.follower.clashes)) == ("api", ["a"])


def test_a_schedule_that_a_user_deleted_comes_back_with_the_next_change(rig: FollowerRig) -> None:
    rig.follow(a=entry())
    rig.app.wheel.schedules.delete("a")
    rig.follow(a=entry(args=[1]))
    assert rig.document("a")["args"] == [1]


def test_an_entry_that_the_engine_refuses_is_broken_with_the_reason_and_not_sent_again(rig: FollowerRig) -> None:
    bad = entry(overlap="never")
    rig.follow(a=bad, b=entry())
    found = rig.stored("a")
    assert (found.broken, found.next_ms) == (True, None)
    assert found.note.startswith("overlap must be one of")
    assert not rig.stored("b").broken
    rig.asked.clear()
    rig.follow(a=bad, b=entry())
    assert rig.asked == []
    rig.follow(a=entry(), b=entry())
    assert (rig.stored("a").broken, rig.stored("a").note) == (False, "")
    assert rig.stored("a").next_ms is not None


def test_a_name_that_no_store_holds_is_said_and_harms_no_other(
    rig: FollowerRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.follow(**{"x" * 600: entry(), "a": entry()})
    assert rig.stored("a").source == "beat"
    assert any("a name must be a text of 1 to 512 characters" in one.getMessage() for one in caplog.records)


def test_entries_that_run_elsewhere_or_cannot_be_read_are_shown_with_the_reason(rig: FollowerRig) -> None:
    rig.follow(a=of_base("app.report", "its schedule is a Market"), b=broken("app.report", "args must be JSON"))
    kept, bad = rig.stored("a"), rig.stored("b")
    assert (kept.broken, kept.next_ms, kept.note) == (
        False,
        None,
        "it runs in Beat's own scheduler: its schedule is a Market",
    )
    assert (bad.broken, bad.next_ms, bad.note) == (True, None, "args must be JSON")
    assert rig.app.wheel.schedules.resume(["a", "b"])["b"].result == "refused"


def test_an_entry_that_goes_back_to_beat_is_handed_its_last_run(rig: FollowerRig) -> None:
    rig.app.task(report, name="app.report", shared=False)
    rare = entry(864_000_000, NOW_MS - 60_000, after_ms=NOW_MS - 60_001)
    rig.follow(a=rare, b=rare, c=rare)
    assert len(rig.wheel.advance(1)) == 3
    rig.follow(a=of_base("app.report", "its args are no JSON"))
    assert rig.stored("a").next_ms is None, "the wheel makes no more instants of it"
    assert rig.follower.handed_back == dict.fromkeys("abc", NOW_MS - 60_000)


def test_only_the_named_entries_change_where_a_source_yields_a_part(rig: FollowerRig) -> None:
    rig.follow(a=entry(), b=entry(), c=entry())
    rig.follower.follow(EntryChanges({"a": entry(args=[1])}, gone=["b", "never there"]))
    assert rig.document("a")["args"] == [1]
    assert rig.schedule("b") is None
    assert rig.schedule("c") is not None


def test_a_request_without_an_answer_leaves_the_rest_for_the_next_difference(
    rig: FollowerRig,
) -> None:
    rig.follow(a=entry())
    silent = mock.patch.object(rig.follower, "_ask", side_effect=WheelUnavailable("no scheduler answered", {}))
    with silent, pytest.raises(WheelUnavailable):
        rig.follow(b=entry())
    rig.follow(b=entry())
    assert rig.schedule("a") is None
    assert rig.schedule("b") is not None


def test_a_schedule_that_broke_as_it_ran_runs_again_after_the_next_start(rig: FollowerRig) -> None:
    rig.follow(a=entry())
    with rig.app.wheel.store._database.writing() as connection:
        connection.exec_driver_sql("UPDATE wheel_schedule SET broken = 1, note = 'no such argument', next_ms = NULL")
    rig.follower = rig.new()
    rig.follow(a=entry(anchor_ms=NOW_MS + 7_000))
    found = rig.stored("a")
    assert (found.broken, found.note) == (False, "")
    assert found.next_ms == NOW_MS + 60_000, "it keeps its anchor"


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


class Counts:
    has_more = False
    resets = 0

    def run(self, store: FullStore) -> None: ...

    def close(self) -> None: ...

    def reset(self) -> None:
        self.resets += 1


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


def test_a_source_is_looked_at_four_times_a_second_and_less_often_while_it_fails(app: Any, clock: ManualClock) -> None:
    source = Watched(clock, fails_until_s=100)
    gaps = looked_at(app, clock, source, 200)
    assert [gap for gap, at_s in zip(gaps, source.at_s, strict=False) if at_s < 100] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert max(gap for gap, at_s in zip(gaps, source.at_s, strict=False) if at_s >= 100) <= MOST_S
    assert max(gaps) == BACK_OFF_MOST_S


def test_a_source_is_compared_anew_when_the_shard_comes_back(app: Any, clock: ManualClock) -> None:
    class Resettable(Watched):
        resets = 0

        def reset(self) -> None:
            self.resets += 1

    source, counts = Resettable(clock), Counts()
    more: Any = {"held": lambda: not 5 <= clock.monotonic_ms() / 1_000 < 10, "counts": counts}
    thread: Any = Sources(Conf(app), [source], **more)
    thread._process_store, thread._wake = mock.Mock(), Waits(clock, thread, 20)
    thread._run()
    assert (source.resets, counts.resets) == (2, 2)
    assert not [at_s for at_s in source.at_s if 5 <= at_s < 10]


def test_a_standby_does_not_try_the_clashes_again_of_the_time_when_it_held_the_shard(
    app: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    source = Watched(clock)
    thread: Any = Sources(Conf(app), [source], lambda: clock.monotonic_ms() < 5_000)
    thread._sources[source].clashes["a"] = entry()
    thread._wake = Waits(clock, thread, 200)
    thread._run()
    assert caplog.records == []


def test_a_source_that_has_more_is_looked_at_again_at_once(app: Any, clock: ManualClock) -> None:
    class Pages(Watched):
        @property
        def has_more(self) -> bool:
            return len(self.at_s) < 10

    assert looked_at(app, clock, Pages(clock), 1)[:9] == [0.0] * 9


def test_a_failure_of_the_run_counts_is_named_once_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{tmp_path}/no/such.sqlite3"
    sources = Sources(Conf(app), [], lambda: True, counts=Counts())  # type: ignore[arg-type]
    assert not sources.look()
    assert not sources.look()
    sources.stop()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("periodic entries (run counts) cannot be followed: ")


START = datetime(2030, 11, 20, 12, tzinfo=UTC)
STEP = timedelta(milliseconds=250)
EVERY = timedelta(seconds=10)
DOWN = timedelta(milliseconds=750)


class Service:
    """A ``WheelService`` whose engine is that of the virtual wheel."""

    started = True
    retries = None

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
            how: Any = {"actor": source, "reason": "test"}
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


@pytest.mark.slow
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
        if dbm.whichdb(switched.app.conf.beat_schedule_filename) == "dbm.ndbm":
            pytest.skip("this Python keeps Beat's schedule by ndbm, which writes when it is closed")
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
