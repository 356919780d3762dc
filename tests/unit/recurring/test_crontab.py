"""Crontabs: Celery's fields with Celery's meaning, and what is refused."""

from __future__ import annotations

import pytest
from celery.schedules import crontab

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring import Crontab
from tests.unit.recurring.instants import following, ms


def test_a_day_needs_both_its_number_and_its_weekday() -> None:
    spec = Crontab("0", "0", day_of_week="fri", day_of_month="13")
    assert following(spec, "2026-01-01", 3) == [ms(f"2026-{day}") for day in ("02-13", "03-13", "11-13")]


def test_29_february_on_a_monday_is_found_over_40_years() -> None:
    spec = Crontab("0", "0", "mon", "29", "2")
    days = ("2044-02-29", "2072-02-29", "2112-02-29")
    assert following(spec, "2026-01-01", 3) == [ms(day) for day in days]


def test_the_second_is_a_field_too() -> None:
    spec = Crontab("59", "23", second="58-59")
    times = ("2026-12-31T23:59:58", "2026-12-31T23:59:59", "2027-01-01T23:59:58")
    assert following(spec, "2026-12-31T23:59:57.999", 3) == [ms(time) for time in times]


def test_the_end_of_time_is_the_end_of_a_crontab() -> None:
    assert Crontab("0", "0").next_after(ms("9998-12-31")) is None


@pytest.mark.parametrize("text", ["*", "*/7", "5", "1-3", "3-1", "1-9/4", "1,2,3", "*/5,3"])
@pytest.mark.parametrize("field", ["minute", "hour", "day_of_week", "day_of_month", "month_of_year"])
def test_a_field_means_the_numbers_that_it_means_to_celery(field: str, text: str) -> None:
    if field == "day_of_week" and text == "1-9/4":
        return
    ours, theirs = Crontab(**{field: text}), crontab(**{field: text})
    numbers = {
        "minute": ours.times.minutes,
        "hour": ours.times.hours,
        "day_of_week": ours.weekdays,
        "day_of_month": ours.days,
        "month_of_year": ours.months,
    }
    assert set(numbers[field]) == getattr(theirs, field)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"minute": "61"}, "minute must be a crontab field of 0 to 59, like '*/15', got '61'"),
        ({"minute": "*/5-7"}, "minute must be a crontab field of 0 to 59"),  # Celery ignores the rest after */5
        ({"minute": "*/0"}, "minute must be a crontab field"),
        ({"minute": ""}, "minute must be a text like"),
        ({"minute": 5}, "minute must be a text like"),
        ({"hour": "-1"}, "hour must be a crontab field of 0 to 23"),
        ({"day_of_week": "7"}, "day_of_week must be a crontab field of 0 to 6, like 'mon-fri'"),
        ({"day_of_week": "noday"}, "day_of_week must be"),
        ({"day_of_month": "30", "month_of_year": "2"}, "day_of_month must be a day that occurs in month_of_year '2'"),
        ({"second": "*/61x"}, "second must be a crontab field"),
    ],
)
def test_a_wrong_field_is_refused_with_its_rule(fields: dict[str, str], message: str) -> None:
    with pytest.raises(RecurrenceError) as caught:
        Crontab(**fields)
    assert str(caught.value).startswith(message)
