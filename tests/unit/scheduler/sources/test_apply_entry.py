"""``apply_entry`` runs where something has patched it, with an entry as Beat would have it, and only there."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.beat import PersistentScheduler, Scheduler

from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.scheduler.sources.apply_entry import BeatApplyEntry, is_patched
from celery_wheel.store.schedule_model import Schedule
from tests.unit.scheduler.sources.conftest import NOW, NOW_MS


class Producer:
    due_us = NOW_MS * 1_000


def schedule(source: str = "beat", **options: Any) -> tuple[Schedule, Any]:
    spec = {"kind": "crontab", "hour": "9", "minute": "0"}
    recurrence = {"kind": "recurrence", "spec": spec, "zone": "Asia/Tokyo"}
    text = to_text({"recurrence": recurrence, "task": "app.report", "args": [1], "options": options})
    return Schedule(1, "report", text, source, 1, NOW_MS, made=4), read_definition(text)


class Watched(Scheduler):
    """Overrides ``apply_entry``."""

    seen: list[tuple[Any, Any]]

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        self.seen.append((entry, producer))
        entry.options["headers"]["traced"] = True


def test_an_entry_is_as_beat_would_have_it(app: Any) -> None:
    Watched.seen = []
    apply_entry, producer = BeatApplyEntry(Watched, app), Producer()
    stored, definition = schedule(queue="mail", headers={"tenant": "acme"}, expires=60)
    assert apply_entry.watches(stored)
    apply_entry(stored, definition, producer)
    [(entry, given)] = Watched.seen
    assert given is producer
    assert (entry.name, entry.task, entry.args, entry.total_run_count) == ("report", "app.report", [1], 4)
    assert (entry.schedule._orig_hour, str(entry.schedule.tz)) == ("9", "Asia/Tokyo")
    assert entry.options["expires"] == NOW + timedelta(seconds=60), "of the instant, not of the moment"
    assert definition.call.options["headers"] == {"tenant": "acme"}, "the next occurrence has headers of its own"


def test_schedules_of_the_api_are_none_of_beats(app: Any) -> None:
    assert not BeatApplyEntry(Watched, app).watches(schedule("api")[0])


def test_celerys_own_functions_leave_it_to_the_template(app: Any) -> None:
    assert not is_patched(PersistentScheduler)
    assert not BeatApplyEntry(PersistentScheduler, app).watches(schedule()[0])


@pytest.mark.parametrize("name", ["apply_entry", "apply_async", "send_task"])
def test_a_wrapper_that_takes_over_name_and_module_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = getattr(Scheduler, name)

    @functools.wraps(own)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    monkeypatch.setattr(Scheduler, name, wrapper)
    assert is_patched(PersistentScheduler)


def test_the_instance_writes_no_schedule(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[datetime] = []
    monkeypatch.setattr(PersistentScheduler, "sync", lambda self: synced.append(datetime.now(UTC)))

    class Traced(PersistentScheduler):
        def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
            return super().apply_async(entry, producer=producer, advance=advance, **kwargs)

        def send_task(self, *args: Any, **kwargs: Any) -> Any:
            return None

    BeatApplyEntry(Traced, app)(*schedule(), Producer())
    assert synced == []
