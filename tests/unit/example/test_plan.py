"""The due times of reminders in compressed time."""

from datetime import date

import pytest
from flights.plan import LEAD_MS, ReplayPlan
from flights.timetable import Flight, TimetableError, day_start_ms

DAY = date(2013, 7, 10)
START = 1_700_000_000_000


def flight(into_day_ms: int) -> Flight:
    return Flight("UA", "1", "EWR", "IAH", day_start_ms(DAY) + into_day_ms)


@pytest.mark.parametrize(
    ("into_day_ms", "speed", "after_ms"),
    [
        (LEAD_MS, 600, 0),
        (LEAD_MS + 600_000, 600, 1_000),
        (LEAD_MS + 1, 600, 1),  # rounded up: 1 ms of the day is less than 1 ms of the replay
        (LEAD_MS + 86_400_000, 600, 144_000),
        (LEAD_MS + 1_000, 1, 1_000),
        (0, 600, -4_500),  # before the beginning of the day: due at once
    ],
)
def test_a_reminder_is_due_45_compressed_minutes_before_take_off(into_day_ms: int, speed: float, after_ms: int) -> None:
    assert ReplayPlan(DAY, speed, START).due_at_ms(flight(into_day_ms)) == START + after_ms


@pytest.mark.parametrize("speed", [0, -1, float("inf"), float("nan")])
def test_a_wrong_speed_is_refused(speed: float) -> None:
    with pytest.raises(TimetableError, match="speed must be greater than 0"):
        ReplayPlan(DAY, speed, START)


@pytest.mark.parametrize(
    ("day", "zone", "hours"),
    [
        (date(2013, 7, 10), "America/New_York", [1.5]),
        (date(2013, 7, 10), "Pacific/Honolulu", [7.5]),
        (date(2013, 11, 3), "America/New_York", [1.5, 2.5]),  # 01:30 EDT and 01:30 EST
        (date(2013, 11, 3), "America/Los_Angeles", [4.5, 5.5]),
        (date(2013, 3, 10), "America/New_York", [1.5]),
    ],
)
def test_a_night_has_each_half_past_one_of_its_zone(day: date, zone: str, hours: list[float]) -> None:
    found = ReplayPlan(day, 3_600, START).nights(zone)
    assert list(found) == [START + hour * 1_000 for hour in hours]
    assert list(found.values()) == [day_start_ms(day) + hour * 3_600_000 for hour in hours]
