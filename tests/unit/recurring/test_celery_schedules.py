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
from tests.unit.recurring.instants import EPOCH, ms

ANCHOR = ms("2026-11-22T13:46:07.250")


def app_in(zone: str) -> Celery:
    return Celery("shop", broker="memory://", set_as_current=False, timezone=zone)  # type: ignore[no-any-return]


class _OnlyDue(schedule):
    def is_due(self, last_run_at: datetime) -> Any:
        return super().is_due(last_run_at)


class _Harmless(crontab):
    """A subclass that decides nothing anew."""


UTC_APP = app_in("UTC")


@pytest.mark.parametrize(
    ("celery_schedule", "expected"),
    [
        (schedule(30), Recurrence(Interval(30_000, ANCHOR))),
        (schedule(timedelta(seconds=0.5)), Recurrence(Interval(500, ANCHOR))),
        (
            crontab("*/15", "8-17", day_of_week="mon-fri", app=app_in("Europe/Berlin")),
            Recurrence(Crontab("*/15", "8-17", day_of_week="mon-fri"), "Europe/Berlin"),
        ),
        (crontab(5, [9, 8], {1}, range(1, 4), app=UTC_APP), Recurrence(Crontab("5", "8,9", "1", "1,2,3"))),
        (solar("sunset", -37.81753, 144.96715, app=UTC_APP), Recurrence(Solar("sunset", -37.81753, 144.96715))),
        (_Harmless("5", app=UTC_APP), Recurrence(Crontab("5"))),
        *((value, None) for value in (schedule(0), _OnlyDue(30), object(), None, 30, timedelta(seconds=30))),
    ],
)
def test_a_schedule_keeps_its_meaning_or_has_no_recurrence(celery_schedule: Any, expected: Recurrence | None) -> None:
    """A schedule that only knows when it is due has none."""
    assert from_celery(celery_schedule, ANCHOR) == expected


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
