"""Rows as tasks of a load: the task of a valid row, the reason of a rejected one; wall-clock times by each rule."""

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.errors import SettingError
from celery_wheel.pipeline import task_rows
from celery_wheel.pipeline.task_rows import FOLDS, GAPS, Fold, Gap, RowRules, to_instant, to_instants
from celery_wheel.values.text import END_OF_TIME_MS

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
def test_an_instant_is_what_the_zones_clock_shows(wall: datetime, zone: str, shift: int, gap: Gap, fold: Fold) -> None:
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


NOW_MS = 1_900_000_000_000
NOW = datetime.fromtimestamp(NOW_MS // 1_000, UTC)
LATER = "2031-01-01T10:00:00Z"


def reasons(checked: DataFrame) -> list[str | None]:
    return [row[task_rows.REASON] for row in checked.orderBy("n").collect()]


def assert_reasons(checked: DataFrame, expected: Iterable[str | None]) -> None:
    """Compare the reasons, which may go on behind the expected text."""
    for text, start in zip(reasons(checked), expected, strict=True):
        assert text == start or (text or "").startswith(start or "no reason")


def numbered(spark: SparkSession, values: list[tuple[Any, ...]], schema: str) -> DataFrame:
    return spark.createDataFrame([(n, *one) for n, one in enumerate(values)], f"n int, {schema}")


def test_arguments_of_any_form_become_json(spark: SparkSession) -> None:
    frame = spark.sql(
        f"SELECT 'shop.remind' AS task, array(1, 2) AS args, map('to', 'ann') AS kwargs, timestamp'{LATER}' AS eta, "
        "'mail' AS queue, 'order-7' AS key, 'order-7' AS `group`, 3 AS priority, 'left out' AS note"
    )
    found = task_rows.valid_tasks(task_rows.check_rows(frame, RowRules(NOW_MS)), None)
    assert set(found.columns) == {"task", "args", "kwargs", "eta", "queue", "key", "group", "priority"}
    [row] = found.withColumn("eta", f.unix_millis("eta")).collect()
    found = row.task, row.args, row.kwargs, row.queue, row.key, row.group
    assert found == ("shop.remind", "[1,2]", '{"to":"ann"}', "mail", "order-7", "order-7")
    assert row.eta == int(datetime.fromisoformat(LATER).timestamp() * 1_000)


def test_nulls_in_arguments_are_kept(spark: SparkSession) -> None:
    """A task whose address is null is called with None, and not without the argument."""
    frame = spark.sql(
        f"SELECT 'shop.remind' AS task, timestamp'{LATER}' AS eta, named_struct('user', 'ann', 'address', "
        "cast(null AS string), 'nest', named_struct('a', array(1, null), 'b', cast(null AS int))) AS kwargs, "
        "array(named_struct('x', cast(null AS int))) AS args"
    )
    [row] = task_rows.valid_tasks(task_rows.check_rows(frame, RowRules(NOW_MS)), None).collect()
    assert json.loads(row.kwargs) == {"user": "ann", "address": None, "nest": {"a": [1, None], "b": None}}
    assert json.loads(row.args) == [{"x": None}]


def test_a_rejected_row_has_its_reason_and_its_columns(spark: SparkSession) -> None:
    rows = {
        ("shop.remind", "[1]", LATER): None,
        (None, "[1]", LATER): "task must be a text, got None",
        ("shop.remind", "{}", LATER): "args must be a list as JSON, got '{}'",
        ("shop.remind", "[", LATER): "args must be a list as JSON, got '['",
        ("shop.remind", None, "soon"): "eta cannot be read: soon",
        ("shop.remind", None, None): "eta is missing",
        ("x" * 600, None, LATER): "task must be a text of 1 to 512 characters",
        ("shop.remind", None, "1969-01-01"): "eta must be a time from 1970",
    }
    frame = numbered(spark, [*rows], "task string, args string, eta string")
    checked = task_rows.check_rows(frame, RowRules(NOW_MS))
    assert_reasons(checked, rows.values())
    rejected = task_rows.rejected_rows(checked)
    assert rejected.columns == ["n", "task", "args", "eta", "reason"]
    assert rejected.count() == 7


def test_a_value_beyond_every_cast_or_calendar_is_rejected(spark: SparkSession) -> None:
    times = ["9999-01-01", "1969-12-31 23:59:59.999", "+12345-01-01", "08:00", "2031-01-01"]
    rows = [(text, "5", text) for text in times[:4]] + [(times[4], "x", None)]
    frame = numbered(spark, rows, "eta string, priority string, expires string")
    texts = reasons(task_rows.check_rows(frame, RowRules(NOW_MS, task="t")))
    beyond = "eta must be a time from 1970 to the end of 9998, got "
    assert texts == [
        f"{beyond}9999-01-01 00:00:00",
        f"{beyond}1969-12-31 23:59:59.999",
        "eta cannot be read: +12345-01-01",
        "eta cannot be read: 08:00",
        "priority cannot be read: x",
    ]
    frame = numbered(spark, [(2**62,), (END_OF_TIME_MS - 1,)], "eta_ms long")
    late = reasons(task_rows.check_rows(frame, RowRules(NOW_MS, task="t", id="n", jitter_ms=10_000_000)))
    assert late[0] == f"eta_ms cannot be read: {2**62}"
    assert late[1] is not None
    assert late[1].startswith(beyond)


def test_texts_are_read_as_numbers_and_times(spark: SparkSession) -> None:
    """All columns of a CSV are texts, and a column of nulls may have no type."""
    frame = spark.sql(
        f"SELECT '{LATER}' AS eta, '7' AS priority, '2031-01-02' AS expires, NULL AS args, NULL AS key, '[' AS _broken "
        f"UNION ALL SELECT '{LATER}', NULL, NULL, NULL, NULL, NULL"
    )
    checked = task_rows.check_rows(frame, RowRules(NOW_MS, task="t"))
    assert {row[task_rows.REASON] for row in checked.collect()} == {"not JSON", None}
    valid = task_rows.valid_tasks(task_rows.check_rows(frame.drop("_broken"), RowRules(NOW_MS, task="t")), None)
    texts, times = dict.fromkeys(("task", "args", "key"), "string"), dict.fromkeys(("expires", "eta"), "timestamp")
    assert dict(valid.dtypes) == {**texts, "priority": "int", **times}
    assert sorted(row.priority or 0 for row in valid.collect()) == [0, 7]


def test_local_times_use_the_zone_of_the_row_or_of_the_rules(spark: SparkSession) -> None:
    rows = [("2030-07-01 10:00", NEW_YORK), ("2030-07-01 10:00", None), ("2030-03-10 02:30", NEW_YORK)]
    frame = numbered(spark, rows, "local string, zone string")
    checked = task_rows.check_rows(frame, RowRules(NOW_MS, task="t", zone="Europe/Berlin", gap="reject"))
    instants = checked.orderBy("n").select(f.unix_millis(f"{task_rows.TASK}.eta").alias("ms")).collect()
    assert [row.ms and datetime.fromtimestamp(row.ms / 1_000, UTC).hour for row in instants] == [14, 8, None]
    assert reasons(checked)[2] == f"local time does not exist in {NEW_YORK}: 2030-03-10 02:30"


def test_past_tasks_are_loaded_or_rejected(spark: SparkSession) -> None:
    frame = numbered(spark, [(NOW_MS - 1,), (NOW_MS,), (None,)], "eta_ms long")
    assert reasons(task_rows.check_rows(frame, RowRules(NOW_MS, task="t"))) == [None, None, "eta_ms is missing"]
    past = reasons(task_rows.check_rows(frame, RowRules(NOW_MS, task="t", past=False)))[0]
    assert past is not None
    assert past.startswith("eta is past: 2030-")


def test_the_earliest_of_the_valid_rows_with_one_id_counts_and_rows_without_one_are_rejected(
    spark: SparkSession,
) -> None:
    rows = [
        ("a", "[]", "2031-01-02", "flight occurs before: a"),
        ("a", "[]", "2031-01-01", None),
        ("b", "[", LATER, "args must be a list as JSON, got '['"),
        ("b", "[2]", LATER, "flight occurs before: b"),
        ("b", "[1]", LATER, None),
        (None, "[]", LATER, "flight is missing"),
        (None, "[]", LATER, "flight is missing"),
        ("c", "[]", "soon", "eta cannot be read: soon"),
    ]
    frame = numbered(spark, [row[:3] for row in rows], "flight string, args string, eta string")
    checked = task_rows.check_rows(frame, RowRules(NOW_MS, task="t", id="flight"))
    assert_reasons(checked, [row[3] for row in rows])
    valid = task_rows.valid_tasks(checked, "flight").orderBy(task_rows.ID)
    assert [row[task_rows.ID] for row in valid.collect()] == ["a", "b"]


def test_jitter_is_repeatable_and_bounded(spark: SparkSession) -> None:
    frame = spark.range(500).selectExpr("id", f"timestamp_millis({NOW_MS}) AS eta")
    rules = RowRules(NOW_MS, task="t", id="id", jitter_ms=10_000)
    valid = task_rows.valid_tasks(task_rows.check_rows(frame, rules), "id")
    first, second = (dict(valid.select(task_rows.ID, f.unix_millis("eta")).collect()) for _ in range(2))
    assert first == second
    assert all(NOW_MS <= ms <= NOW_MS + 10_000 for ms in first.values())
    assert len(set(first.values())) > 400


@pytest.mark.parametrize(
    ("columns", "rules", "message"),
    [
        ("a int, eta timestamp", RowRules(NOW_MS), "rows must have a column task, or --task must name one for all"),
        ("task string", RowRules(NOW_MS), "rows must have one of the columns eta, eta_ms and local"),
        ("task string, eta timestamp, eta_ms long", RowRules(NOW_MS), "rows must have one of the columns"),
        ("task string, local string", RowRules(NOW_MS), "must have a column zone, or --zone"),
        (
            "task string, args int, eta timestamp",
            RowRules(NOW_MS),
            "column args must be JSON text, an array, a map or a struct, got int",
        ),
        ("task string, eta timestamp", RowRules(NOW_MS, id="x"), "--id must name a column, got 'x'"),
        ("task string, eta timestamp, x binary", RowRules(NOW_MS, id="x"), "--id must name a column of texts, whole"),
        ("task string, eta timestamp, x double", RowRules(NOW_MS, id="x"), "got x of double; cast it in --sql"),
        ("task string, eta long", RowRules(NOW_MS), "Unix milliseconds are called eta_ms, got bigint"),
        ("task string, eta_ms boolean", RowRules(NOW_MS), "column eta_ms must be numbers, got boolean"),
        ("task string, eta timestamp", RowRules(NOW_MS, zone="Europe/Paris"), "--zone is for a column local"),
        ("task string, eta timestamp, reason string", RowRules(NOW_MS), "columns must not be called reason"),
    ],
)
def test_unusable_columns_are_refused(spark: SparkSession, columns: str, rules: RowRules, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        task_rows.check_rows(spark.createDataFrame([], columns), rules)


def test_an_unknown_zone_is_refused_with_the_rules() -> None:
    with pytest.raises(SettingError, match="--zone must be a time zone"):
        RowRules(NOW_MS, zone="Mars")
