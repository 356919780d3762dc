"""The timetable as tables of tasks: the year, the rows and the instants."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from flights import year
from flights.timetable import NEW_YORK, flights_on

CLOCKS_FORWARD, CLOCKS_BACK = date(2013, 3, 10), date(2013, 11, 3)


@pytest.mark.parametrize(("after", "expected"), [(2013, 2019), (2026, 2030), (2030, 2041), (2040, 2041)])
def test_the_next_year_with_the_calendar_of_2013(after: int, expected: int) -> None:
    assert year.year_like_2013(after) == expected
    days = [date(2013, 1, 1) + timedelta(days=n) for n in range(365)]
    assert all(day.weekday() == day.replace(year=expected).weekday() for day in days)


@pytest.mark.parametrize("like_2013", [2030, 2041])
def test_the_year_is_a_whole_number_of_weeks_away_at_every_hour(like_2013: int) -> None:
    shift = year.weeks_from_2013(like_2013)
    begin = datetime(2013, 1, 1, 5, tzinfo=UTC)  # midnight in New York
    for hour in range(365 * 24):
        at = begin + timedelta(hours=hour)
        then = (at + shift).astimezone(NEW_YORK)
        assert then.replace(tzinfo=None) == at.astimezone(NEW_YORK).replace(tzinfo=None, year=like_2013), at


def test_a_row_has_all_columns_of_its_task() -> None:
    flight = flights_on(CLOCKS_BACK)[0]
    assert year.departure(flight, 2030) == {
        "task_id": "UA-322-2030-11-03-EWR",
        "task": "flights.tasks.depart",
        "local": "2030-11-03 05:20",
        "zone": "America/New_York",
        "args": '["UA322 EWR-IAH"]',
        "queue": "flights",
    }
    reminder = year.reminder(flight, 1_900_000_000_000, "5f3a")
    assert reminder["task_id"] == "UA-322-2013-11-03-EWR-5f3a"
    assert (reminder["eta_ms"], json.loads(reminder["args"])) == (1_900_000_000_000, [str(flight)])


def test_the_tables_have_a_file_a_month_and_the_expected_instants(tmp_path: Path) -> None:
    flights = [*flights_on(CLOCKS_FORWARD), *flights_on(CLOCKS_BACK)]
    written = year.write_year(tmp_path, flights, 2030)
    assert (written.rows, written.keys) == (1810, 1810)
    assert written.cancelled == sum(not flight.left for flight in flights) > 0
    for table in (year.TIMETABLE, year.EXPECTED):
        assert {path.name for path in (tmp_path / table).iterdir()} == {"03.parquet", "11.parquet"}
    rows, expected = (pq.read_table(tmp_path / table).to_pylist() for table in (year.TIMETABLE, year.EXPECTED))
    etas = {row["task_id"]: row["eta_ms"] for row in expected}
    for row in rows:
        local = datetime.fromisoformat(row["local"]).replace(tzinfo=NEW_YORK)
        assert etas[row["task_id"]] == local.timestamp() * 1_000
    year.write_day(tmp_path, [year.reminder(flights[0], 5, "a")])
    assert pq.read_table(tmp_path / year.EXPECTED).num_rows == 1811
    assert pq.read_table(tmp_path / year.DAY).column("eta_ms").to_pylist() == [5]
