"""The instants of departure: the file's UTC hours agree with its local times and the rules of the time zone."""

import csv
import io
import zipfile
from collections import Counter
from datetime import UTC, date, datetime

import pytest
from flights import timetable
from flights.timetable import NEW_YORK, TimetableError, day_length_ms, day_start_ms, flights_on

CLOCKS_FORWARD = date(2013, 3, 10)
CLOCKS_BACK = date(2013, 11, 3)
SUMMER = date(2013, 7, 10)
NEW_YEAR = date(2013, 1, 1)
DAYS = (NEW_YEAR, CLOCKS_FORWARD, SUMMER, CLOCKS_BACK)


def at_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.fixture(scope="module")
def by_local_time() -> dict[date, Counter[tuple[str, int]]]:
    """(flight, departure) of the days, with the departure computed from the local columns."""
    found: dict[date, Counter[tuple[str, int]]] = {day: Counter() for day in DAYS}
    with zipfile.ZipFile(timetable._data_file()) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
            day = date(int(row["year"]), int(row["month"]), int(row["day"]))
            if day in found:
                hour, minute = divmod(int(row["sched_dep_time"]), 100)
                local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=NEW_YORK)
                found[day][row["carrier"] + row["flight"], round(local.timestamp() * 1000)] += 1
    return found


@pytest.mark.parametrize("day", DAYS, ids=str)
def test_instants_agree_with_the_local_columns(day: date, by_local_time: dict[date, Counter[tuple[str, int]]]) -> None:
    flights = flights_on(day)
    assert Counter((flight.carrier + flight.number, flight.departs_at_ms) for flight in flights) == by_local_time[day]


def test_the_first_rows_of_the_file() -> None:
    departures = {str(flight): flight.departs_at_ms for flight in flights_on(NEW_YEAR)}
    assert departures["UA1545 EWR-IAH"] == at_ms("2013-01-01T05:15-05:00")
    assert departures["UA1714 LGA-IAH"] == at_ms("2013-01-01T05:29-05:00")
    assert departures["B6725 JFK-BQN"] == at_ms("2013-01-01T05:45-05:00")
    assert len(departures) == len(flights_on(NEW_YEAR)) == 842


@pytest.mark.parametrize(
    ("day", "count", "first", "last"),
    [
        (CLOCKS_FORWARD, 908, "2013-03-10T05:00-04:00", "2013-03-10T23:59-04:00"),
        (SUMMER, 1004, "2013-07-10T05:00-04:00", "2013-07-10T23:59-04:00"),
        (CLOCKS_BACK, 902, "2013-11-03T05:20-05:00", "2013-11-03T23:59-05:00"),
    ],
)
def test_a_day_begins_and_ends_by_the_clock_of_new_york(day: date, count: int, first: str, last: str) -> None:
    flights = flights_on(day)
    assert len(flights) == count
    assert flights[0].departs_at_ms == at_ms(first)
    assert flights[-1].departs_at_ms == at_ms(last)
    assert flights == sorted(flights, key=lambda flight: flight.departs_at_ms)


@pytest.mark.parametrize(("day", "hours"), [(CLOCKS_FORWARD, 23), (SUMMER, 24), (CLOCKS_BACK, 25)])
def test_a_day_on_which_the_clocks_change_is_shorter_or_longer(day: date, hours: int) -> None:
    assert day_length_ms(day) == hours * 3_600_000
    midnight = datetime.fromtimestamp(day_start_ms(day) / 1000, UTC).astimezone(NEW_YORK)
    assert (midnight.date(), midnight.hour, midnight.minute) == (day, 0, 0)


def test_another_year_is_refused() -> None:
    with pytest.raises(TimetableError, match="date must be a day of 2013, got 2014-01-01"):
        flights_on(date(2014, 1, 1))
