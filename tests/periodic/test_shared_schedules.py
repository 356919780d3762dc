"""A schedule that very many tasks of django-celery-beat share: an edit of it is one change of their recurrences.

The store's schedules are then as if each task had been read; whatever does not fit comes as an entry of its own.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from django_celery_beat.models import CrontabSchedule, PeriodicTask, PeriodicTasks, SolarSchedule

from celery_wheel import Celery
from celery_wheel.errors import StoreError
from celery_wheel.recurring.definition import dumped
from celery_wheel.scheduler.sources import EntryChanges, django_source
from celery_wheel.scheduler.sources.django_source import FULL_READ_S, DjangoSource
from celery_wheel.scheduler.sources.follower import Follower
from celery_wheel.store.schedule_model import DJANGO, Schedule
from celery_wheel.testing import VirtualWheel
from tests.periodic.conftest import Make, Tables, age, edit


@pytest.fixture
def alike(tables: Tables, task: Make, nine: Any, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """Pairs of tasks: of one crontab without and with limits, and of one solar event."""
    monkeypatch.setattr(django_source, "ALIKE", 2)
    now = timezone.now()
    sun = SolarSchedule.objects.create(event="sunrise", latitude="48.85", longitude="2.35")
    for n in range(2):
        task(f"nine{n}", crontab=nine, args=f"[{n}]")
        task(f"limited{n}", crontab=nine, start_time=now, expires=now + timedelta(days=900), queue=f"q{n}")
        task(f"sun{n}", solar=sun, last_run_at=now)
    task("ten minutes")
    age()
    return tables


def edit_schedules() -> None:
    """Give the crontab another hour and the default zone, which a document leaves out, and the sun another event."""
    for of, values in ((CrontabSchedule, {"hour": "10", "timezone": "UTC"}), (SolarSchedule, {"event": "sunset"})):
        found: Any = of.objects.get()
        for field, value in values.items():
            setattr(found, field, value)
        found.save()


def retimed(changes: EntryChanges) -> list[list[str]]:
    return sorted(sorted(one.entries) for one in changes.retimed)


def test_an_edit_of_a_schedule_that_tasks_share_is_one_change(alike: Tables) -> None:
    alike.read()
    edit_schedules()
    changes = alike.read()
    assert changes.entries == {}
    assert retimed(changes) == [["limited0", "limited1"], ["nine0", "nine1"], ["sun0", "sun1"]]
    assert all(one.edited_ms for group in changes.retimed for one in group.entries.values())
    assert alike.source.read() is None
    alike.monotonic_s = FULL_READ_S
    assert alike.source.read() is None, "a lap finds them as they were followed"


def test_a_task_that_was_edited_with_its_schedule_is_an_entry(alike: Tables) -> None:
    alike.read()
    edit_schedules()
    edit("nine0", args="[7]")
    PeriodicTask.objects.filter(name="sun1").update(queue="mail")  # which moves no change date
    changes = alike.read()
    assert retimed(changes) == [["limited0", "limited1"]]
    assert sorted(changes.entries) == ["nine0", "nine1", "sun0", "sun1"]
    assert changes.entries["nine0"].document["args"] == [7]


def test_a_retimed_task_that_is_missed_comes_as_an_entry(alike: Tables) -> None:
    alike.read()
    edit_schedules()
    first = alike.source.read()
    [edited_ms] = {one.entries["nine1"].edited_ms for one in first.retimed if "nine1" in one.entries}
    alike.ahead_ms = 60_000
    alike.source.followed(["nine1"])
    changes = alike.read()
    assert list(changes.entries) == ["nine1"]
    assert changes.entries["nine1"].edited_ms == edited_ms


def test_a_schedule_that_is_edited_to_nonsense_gives_broken_entries(alike: Tables) -> None:
    alike.read()
    CrontabSchedule.objects.update(hour="nine")
    PeriodicTasks.update_changed()
    changes = alike.read()
    assert changes.retimed == []
    assert sorted(changes.entries) == ["limited0", "limited1", "nine0", "nine1"]
    assert all("broken" in one.document for one in changes.entries.values())


class Following:
    """The tables, and a wheel whose schedules follow them."""

    def __init__(self, tables: Tables, wheel: VirtualWheel) -> None:
        self.tables = tables
        self.wheel = wheel
        self.schedules: Any = wheel.app.wheel.schedules
        self._store = wheel.app.wheel.store
        self.follower = Follower(DJANGO, lambda: self._store, self._ask, tables.now_ms, hands_back=False)

    def _ask(self, do: str, names: Any, options: dict[str, Any]) -> Any:
        how: Any = {"actor": DJANGO, "reason": "test"}
        return self.schedules.change(do, names, how=how, source=DJANGO, **options)

    def follow(self) -> list[str]:
        """Follow all that has changed; returns the names that were missed."""
        missed, turn = list[str](), 0
        while (changes := self.tables.source.read()) is not None or self.tables.source.has_more or turn == 0:
            turn += 1
            if changes is not None:
                found = self.follower.follow(changes)
                self.tables.source.followed(found)
                missed += found
        return missed

    def stored(self) -> dict[str, Schedule]:
        names = [f"{kind}{n}" for kind in ("nine", "limited", "sun") for n in range(2)]
        return {one.name: one for _, one in self._store.schedules_named([*names, "ten minutes"])}

    def document(self, name: str) -> Any:
        return json.loads(self.stored()[name].definition)


@pytest.fixture
def following(alike: Tables) -> Iterator[Following]:
    with VirtualWheel(Celery("shop", broker="memory://", set_as_current=False)) as wheel:
        wheel.freeze()
        found = Following(alike, wheel)
        found.follow()
        yield found


def test_a_retimed_schedule_is_as_its_entry_says(following: Following) -> None:
    before = following.stored()
    following.schedules.delete("nine0")
    edit_schedules()
    assert following.follow() == ["nine0"]
    found = following.stored()
    following.tables.source.reset()
    entries = following.tables.read().entries
    assert {name: one.definition for name, one in found.items()} == {
        name: dumped(one.document) for name, one in entries.items()
    }
    assert found["sun0"].revision == before["sun0"].revision + 1
    following.follower.follow(EntryChanges(entries))
    assert following.stored() == found


@pytest.mark.parametrize("alike_from", [2, 99])
def test_a_change_by_a_user_lasts_until_the_schedule_is_edited(
    following: Following, monkeypatch: pytest.MonkeyPatch, alike_from: int
) -> None:
    monkeypatch.setattr(django_source, "ALIKE", alike_from)
    following.schedules.update("nine0", args=[77], queue="slow", overlap="skip")
    following.schedules.pause("nine1")
    edit_schedules()
    assert sorted(following.follow()) == (["nine0", "nine1"] if alike_from == 2 else [])
    found = following.document("nine0")
    assert found["recurrence"]["spec"]["hour"] == "10"
    assert (found["args"], found["options"].get("queue"), found.get("overlap")) == ([0], None, None)
    assert following.stored()["nine1"].paused


def test_a_schedule_that_is_edited_twice_within_a_look_ends_as_it_was_edited_last(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_page(source: DjangoSource, changes: EntryChanges) -> None:
        monkeypatch.setattr(DjangoSource, "_read_page", own)
        following.wheel.advance(1)  # or the change marker would be the same
        CrontabSchedule.objects.update(hour="11")
        PeriodicTask.objects.filter(name__startswith="nine").update(priority=3)
        PeriodicTasks.update_changed()
        own(source, changes)

    own = DjangoSource._read_page
    edit_schedules()
    following.tables.monotonic_s = FULL_READ_S
    monkeypatch.setattr(DjangoSource, "_read_page", read_page)
    following.follow()
    assert following.document("limited0")["recurrence"]["spec"]["hour"] == "11"
    found = following.document("nine0")
    assert (found["recurrence"]["spec"]["hour"], found["options"]["priority"]) == ("11", 3)


def test_a_look_that_fails_half_way_is_followed_by_entries(following: Following) -> None:
    def ask(do: str, names: Any, options: dict[str, Any]) -> Any:
        following.follower._ask = failing
        return own(do, names, options)

    def failing(*_: Any) -> Any:
        following.follower._ask = own
        raise StoreError("away")

    own, following.follower._ask = following.follower._ask, ask
    edit_schedules()
    changes = following.tables.source.read()
    with pytest.raises(StoreError):
        following.follower.follow(changes)
    assert following.follow() == []
    assert all(following.document(f"nine{n}")["recurrence"]["spec"]["hour"] == "10" for n in range(2))
    assert following.document("sun1")["recurrence"]["spec"]["event"] == "sunset"


def test_the_sun_moves_from_one_degree_to_two(three_suns: Tables) -> None:
    """The hashes of -1 and of -2 are equal."""
    SolarSchedule.objects.update(longitude="-2")
    PeriodicTasks.update_changed()
    assert sorted(three_suns.read().entries) == ["sun0", "sun1", "sun2"]


@pytest.fixture
def three_suns(tables: Tables, task: Make) -> Tables:
    sun = SolarSchedule.objects.create(event="sunrise", latitude="48", longitude="-1")
    for n in range(3):
        task(f"sun{n}", solar=sun)
    age()
    tables.read()
    return tables
