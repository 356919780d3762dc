"""Wall-clock times: gaps and folds by each rule, compared with the definition; and as columns of Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from celery_wheel.pipeline.task_rows import FOLDS, GAPS, Fold, Gap, to_instant, to_instants

NEW_YORK = "America/New_York"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTES_AWAY = 26 * 60


def wall_clock(at: datetime, zone: str) -> datetime:
    return at.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)


def matching_instants(wall: datetime, zone: str) -> list[datetime]:
    """All instants that a clock in the zone shows as ``wall``, found by trying every offset in force near it."""
    near = wall.replace(tzinfo=UTC)
    offsets = {(near + timedelta(hours=h)).astimezone(ZoneInfo(zone)).utcoffset() for h in range(-26, 27)}
    found = {near - offset for offset in offsets if offset is not None}
    return sorted(at for at in found if wall_clock(at, zone) == wall)


@given(
    wall=st.dates(date(1980, 1, 1), date(2030, 1, 1)).map(lambda day: datetime.combine(day, time())),
    zone=st.sampled_from(sorted(available_timezones() - {"Factory", "localtime"})),
    shift=st.integers(-90, 90),
    gap=st.sampled_from(GAPS),
    fold=st.sampled_from(FOLDS),
)
def test_an_instant_is_the_one_that_a_clock_in_the_zone_shows(
    wall: datetime, zone: str, shift: int, gap: Gap, fold: Fold
) -> None:
    wall = near_a_change(wall, zone) + timedelta(minutes=shift)
    found, all_ = to_instant(wall.isoformat(), zone, gap, fold), matching_instants(wall, zone)
    at = None if found.at_us is None else EPOCH + timedelta(microseconds=found.at_us)
    if len(all_) == 1:
        assert at == all_[0]
    elif len(all_) == 2:
        assert at == {"first": all_[0], "second": all_[1], "reject": None}[fold]
    elif gap == "reject":
        assert at is None
    else:
        assert at is not None
        assert (wall_clock(at, zone) > wall) == (gap == "shift")
    assert (found.reason is None) == (at is not None)


def near_a_change(wall: datetime, zone: str) -> datetime:
    """The first minute after ``wall`` with another offset, within a year; ``wall`` itself if there is none."""
    there, at = ZoneInfo(zone), wall.replace(tzinfo=UTC)
    for day in range(366):
        low, high = at + timedelta(days=day), at + timedelta(days=day + 1)
        if low.astimezone(there).utcoffset() != high.astimezone(there).utcoffset():
            while high - low > timedelta(minutes=1):
                middle = low + (high - low) // 2
                same = middle.astimezone(there).utcoffset() == low.astimezone(there).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            return high.astimezone(there).replace(tzinfo=None, fold=0, second=0, microsecond=0)
    return wall


@pytest.mark.parametrize(
    ("wall", "zone", "reason"),
    [
        (None, NEW_YORK, "local time is missing"),
        ("soon", NEW_YORK, "local time cannot be read: soon"),
        ("2013-01-01 10:00+01:00", NEW_YORK, "local time must be without an offset, got 2013-01-01 10:00+01:00"),
        ("2013-01-01 10:00", None, "time zone is missing"),
        ("2013-01-01 10:00", "Mars/Base", "time zone is not known: Mars/Base"),
        ("2013-01-01 10:00", "../etc/passwd", "time zone is not known: ../etc/passwd"),
        ("2013-01-01 10:00", "America", "time zone is not known: America"),
        ("2013-01-01 10:00", "+25:00", "time zone is not known: +25:00"),
        ("2013-03-10 02:30", NEW_YORK, f"local time does not exist in {NEW_YORK}: 2013-03-10 02:30"),
        ("2013-11-03 01:30", NEW_YORK, f"local time occurs twice in {NEW_YORK}: 2013-11-03 01:30"),
        ("2013-01-01 10:00", "+02:00", None),
        ("2013-01-01", NEW_YORK, None),
    ],
)
def test_each_rejection_has_its_reason(wall: str | None, zone: str | None, reason: str | None) -> None:
    found = to_instant(wall, zone, "reject", "reject")
    assert found.reason == reason
    assert (found.at_us is None) == (reason is not None)


@pytest.mark.parametrize("cast", ["string", "timestamp_ntz", "timestamp"])
def test_a_column_of_any_type_is_read_as_its_text(spark: SparkSession, cast: str) -> None:
    rows = spark.createDataFrame([("2013-07-01 10:00:00.123456", NEW_YORK), (None, NEW_YORK)], "w string, z string")
    found = to_instants(f.col("w").cast(cast), f.col("z"))
    first, second = rows.select(f.unix_micros(found["at"]).alias("us"), found["reason"].alias("reason")).collect()
    assert (first.us, first.reason) == (1372687200123456, None)
    assert (second.us, second.reason) == (None, "local time is missing")
