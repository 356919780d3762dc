"""Celery's schedules become recurrences that run when Celery itself would."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar

from celery_wheel.recurring import Crontab, Interval, Recurrence, Solar
from celery_wheel.recurring.celery_schedules import from_celery
from tests.unit.recurring.instants import EPOCH, ms, shown

ANCHOR = ms("2026-11-22T13:46:07.250")


def app_in(zone: str) -> Celery:
    return Celery("shop", broker="memory://", set_as_current=False, timezone=zone)  # type: ignore[no-any-return]


def test_an_interval_counts_from_the_anchor() -> None:
    assert from_celery(schedule(30), ANCHOR) == Recurrence(Interval(30_000, ANCHOR))
    assert from_celery(schedule(timedelta(seconds=0.5)), ANCHOR) == Recurrence(Interval(500, ANCHOR))
    assert from_celery(schedule(0), ANCHOR) is None


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    "every", [{"days": 1}, {"days": 2, "hours": 5}, {"hours": 3}, {"minutes": 150}, {"seconds": 90}]
)
def test_a_relative_interval_runs_at_the_rounded_times_of_celery(zone: str, every: dict[str, int]) -> None:
    now = [EPOCH + timedelta(milliseconds=ANCHOR)]
    celery_schedule = schedule(timedelta(**every), relative=True, nowfun=lambda: now[0], app=app_in(zone))
    recurrence = from_celery(celery_schedule, ANCHOR)
    assert recurrence is not None
    expected = []
    for _ in range(5):
        last_run_at = now[0].astimezone(ZoneInfo(zone))
        now[0] += celery_schedule.remaining_estimate(last_run_at)
        expected.append(round(now[0].timestamp() * 1_000))
    assert recurrence.preview(expected[0] - 1, 5) == expected


def test_a_crontab_keeps_its_fields_and_its_apps_zone() -> None:
    found = from_celery(crontab("*/15", "8-17", day_of_week="mon-fri", app=app_in("Europe/Berlin")), ANCHOR)
    assert found == Recurrence(Crontab("*/15", "8-17", day_of_week="mon-fri"), "Europe/Berlin")


def test_a_crontab_of_numbers_becomes_texts() -> None:
    found = from_celery(crontab(5, [9, 8], {1}, range(1, 4), app=app_in("UTC")), ANCHOR)
    assert found == Recurrence(Crontab("5", "8,9", "1", "1,2,3"))


@pytest.mark.parametrize("nowfun_zone", ["Asia/Tokyo", "UTC"])
def test_a_crontab_with_a_clock_of_its_own_runs_when_the_installed_celery_runs_it(nowfun_zone: str) -> None:
    now = datetime(2026, 11, 22, 3, tzinfo=UTC)
    celery_schedule = crontab(
        "0", "9", app=app_in("Europe/Berlin"), nowfun=lambda: now.astimezone(ZoneInfo(nowfun_zone))
    )
    found = from_celery(celery_schedule, ANCHOR)
    assert found is not None
    theirs = now + celery_schedule.remaining_estimate(celery_schedule.now())
    assert found.next_after(round(now.timestamp() * 1_000)) == round(theirs.timestamp() * 1_000)


def test_the_example_of_a_crontab_in_a_zone() -> None:
    found = from_celery(crontab("0", "9", app=app_in("America/New_York")), ANCHOR)
    assert found is not None
    assert shown(found.preview(ANCHOR, 1), "America/New_York") == ["11-22 09:00-0500"]


def test_a_solar_schedule_keeps_its_event_and_place() -> None:
    found = from_celery(solar("sunset", -37.81753, 144.96715, app=app_in("UTC")), ANCHOR)
    assert found == Recurrence(Solar("sunset", -37.81753, 144.96715))


class _OnlyDue(schedule):
    def is_due(self, last_run_at: datetime) -> Any:
        return super().is_due(last_run_at)


class _Harmless(crontab):
    """A subclass that decides nothing anew."""


@pytest.mark.parametrize("value", [_OnlyDue(30), object(), None, 30, timedelta(seconds=30)])
def test_a_schedule_that_only_knows_when_it_is_due_has_no_recurrence(value: Any) -> None:
    assert from_celery(value, ANCHOR) is None


def test_a_subclass_that_decides_nothing_is_read_as_its_base() -> None:
    assert from_celery(_Harmless("5", app=app_in("UTC")), ANCHOR) == Recurrence(Crontab("5"))
