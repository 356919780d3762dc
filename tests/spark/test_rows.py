"""Rows of a load: what becomes a task, and why what does not is none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.errors import SettingError
from celery_wheel.pipeline import rows
from celery_wheel.pipeline.rows import Rules
from celery_wheel.store.text import END_OF_TIME_MS

NOW_MS = 1_900_000_000_000
NOW = datetime.fromtimestamp(NOW_MS // 1_000, UTC)
LATER = "2031-01-01T10:00:00Z"


def why(found: DataFrame) -> list[str | None]:
    return [row[rows.REASON] for row in found.orderBy("n").collect()]


def numbered(spark: SparkSession, values: list[tuple[Any, ...]], schema: str) -> DataFrame:
    return spark.createDataFrame([(n, *one) for n, one in enumerate(values)], f"n int, {schema}")


def test_whatever_form_the_arguments_have_they_become_json(spark: SparkSession) -> None:
    given = spark.sql(
        f"SELECT 'shop.remind' AS task, array(1, 2) AS args, map('to', 'ann') AS kwargs, timestamp'{LATER}' AS eta, "
        "'mail' AS queue, 'order-7' AS key, 3 AS priority, 'left out' AS note"
    )
    found = rows.good(rows.judged(given, Rules(NOW_MS)), None)
    assert set(found.columns) == {"task", "args", "kwargs", "eta", "queue", "key", "priority"}
    [row] = found.withColumn("eta", f.unix_millis("eta")).collect()
    assert (row.task, row.args, row.kwargs, row.queue, row.key) == (
        "shop.remind",
        "[1,2]",
        '{"to":"ann"}',
        "mail",
        "order-7",
    )
    assert row.eta == int(datetime.fromisoformat(LATER).timestamp() * 1_000)


def test_each_row_that_is_none_says_why_and_keeps_what_it_had(spark: SparkSession) -> None:
    given = numbered(
        spark,
        [
            ("shop.remind", "[1]", LATER),
            (None, "[1]", LATER),
            ("shop.remind", "{}", LATER),
            ("shop.remind", "[", LATER),
            ("shop.remind", None, "soon"),
            ("shop.remind", None, None),
            ("x" * 600, None, LATER),
            ("shop.remind", None, "1969-01-01"),
        ],
        "task string, args string, eta string",
    )
    found = rows.judged(given, Rules(NOW_MS))
    said = why(found)
    assert said[0] is None
    for text, start in zip(
        said[1:],
        [
            "task must be a text, got None",
            "args must be a list as JSON, got '{}'",
            "args must be a list as JSON, got '['",
            "eta cannot be read: soon",
            "eta is missing",
            "task must be a text of 1 to 512 characters",
            "eta must be a time from 1970",
        ],
        strict=True,
    ):
        assert text is not None
        assert text.startswith(start)
    rejected = rows.rejected(found)
    assert rejected.columns == ["n", "task", "args", "eta", "reason"]
    assert rejected.count() == 7


def test_what_no_cast_or_no_calendar_of_pythons_has_is_a_reason_and_not_the_end(spark: SparkSession) -> None:
    times = ["9999-01-01", "1969-12-31 23:59:59.999", "+12345-01-01", "08:00", "2031-01-01"]
    given = numbered(
        spark,
        [(text, "5", text) for text in times[:4]] + [(times[4], "x", None)],
        "eta string, priority string, expires string",
    )
    said = why(rows.judged(given, Rules(NOW_MS, task="t")))
    beyond = "eta must be a time from 1970 to the end of 9998, got "
    assert said == [
        f"{beyond}9999-01-01 00:00:00",
        f"{beyond}1969-12-31 23:59:59.999",
        "eta cannot be read: +12345-01-01",
        "eta cannot be read: 08:00",
        "priority cannot be read: x",
    ]
    given = numbered(spark, [(2**62,), (END_OF_TIME_MS - 1,)], "eta_ms long")
    late = why(rows.judged(given, Rules(NOW_MS, task="t", id="n", jitter_ms=10_000_000)))
    assert late[0] == f"eta_ms cannot be read: {2**62}"
    assert late[1] is not None
    assert late[1].startswith(beyond)


def test_texts_are_read_as_what_they_say(spark: SparkSession) -> None:
    """All columns of a CSV are texts; and one of nothing but nulls may have no type at all."""
    given = spark.sql(
        f"SELECT '{LATER}' AS eta, '7' AS priority, '2031-01-02' AS expires, NULL AS args, NULL AS key, '[' AS _broken "
        f"UNION ALL SELECT '{LATER}', NULL, NULL, NULL, NULL, NULL"
    )
    found = rows.judged(given, Rules(NOW_MS, task="t"))
    assert {row[rows.REASON] for row in found.collect()} == {"not JSON", None}
    good = rows.good(rows.judged(given.drop("_broken"), Rules(NOW_MS, task="t")), None)
    assert {name: kind for name, kind in good.dtypes if name != "task"} == {
        "args": "string",
        "key": "string",
        "priority": "int",
        "expires": "timestamp",
        "eta": "timestamp",
    }
    assert sorted(row.priority or 0 for row in good.collect()) == [0, 7]


def test_local_times_go_by_the_zone_of_the_row_or_of_the_rules(spark: SparkSession) -> None:
    given = numbered(
        spark,
        [
            ("2030-07-01 10:00", "America/New_York"),
            ("2030-07-01 10:00", None),
            ("2030-03-10 02:30", "America/New_York"),
        ],
        "local string, zone string",
    )
    found = rows.judged(given, Rules(NOW_MS, task="t", zone="Europe/Berlin", gap="reject"))
    ordered = found.orderBy("n").select(f.unix_millis(f"{rows.TASK}.eta").alias("ms"), rows.REASON).collect()
    assert [row.ms and datetime.fromtimestamp(row.ms / 1_000, UTC).hour for row in ordered] == [14, 8, None]
    assert ordered[2][rows.REASON] == "local time does not exist in America/New_York: 2030-03-10 02:30"


def test_what_is_past_is_loaded_or_not(spark: SparkSession) -> None:
    given = numbered(spark, [(NOW_MS - 1,), (NOW_MS,), (None,)], "eta_ms long")
    assert why(rows.judged(given, Rules(NOW_MS, task="t"))) == [None, None, "eta_ms is missing"]
    past = why(rows.judged(given, Rules(NOW_MS, task="t", past=False)))[0]
    assert past is not None
    assert past.startswith("eta is past: 2030-")


def test_of_rows_with_one_id_the_first_counts(spark: SparkSession) -> None:
    given = numbered(
        spark,
        [("a", "[2]", LATER), ("a", "[1]", LATER), ("b", "[", LATER), ("b", "[]", LATER), (None, "[]", LATER)],
        "flight string, args string, eta string",
    )
    found = rows.judged(given, Rules(NOW_MS, task="t", id="flight"))
    said = why(found)
    assert [text is None for text in said] == [False, True, False, True, False]
    assert said[0] == "flight occurs before: a"
    assert said[4] == "flight is missing"
    assert [row[rows.ID] for row in rows.good(found, "flight").orderBy(rows.ID).collect()] == ["a", "b"]


def test_jitter_is_the_same_each_time_and_within_its_bound(spark: SparkSession) -> None:
    given = spark.range(500).selectExpr("id", f"timestamp_millis({NOW_MS}) AS eta")
    rules = Rules(NOW_MS, task="t", id="id", jitter_ms=10_000)
    once, again = (
        {
            row[rows.ID]: row.ms
            for row in rows.good(rows.judged(given, rules), "id")
            .select(rows.ID, f.unix_millis("eta").alias("ms"))
            .collect()
        }
        for _ in range(2)
    )
    assert once == again
    assert all(NOW_MS <= ms <= NOW_MS + 10_000 for ms in once.values())
    assert len(set(once.values())) > 400


@pytest.mark.parametrize(
    ("columns", "rules", "said"),
    [
        ("a int, eta timestamp", Rules(NOW_MS), "rows must have a column task, or --task must name one for all"),
        ("task string", Rules(NOW_MS), "rows must have one of the columns eta, eta_ms and local"),
        ("task string, eta timestamp, eta_ms long", Rules(NOW_MS), "rows must have one of the columns"),
        ("task string, local string", Rules(NOW_MS), "must have a column zone, or --zone"),
        (
            "task string, args int, eta timestamp",
            Rules(NOW_MS),
            "column args must be JSON text, an array, a map or a struct, got int",
        ),
        ("task string, eta timestamp", Rules(NOW_MS, id="x"), "--id must name a column, got 'x'"),
        ("task string, eta timestamp, x binary", Rules(NOW_MS, id="x"), "--id must name a column of texts, numbers"),
        ("task string, eta long", Rules(NOW_MS), "Unix milliseconds are called eta_ms, got bigint"),
        ("task string, eta_ms boolean", Rules(NOW_MS), "column eta_ms must be numbers, got boolean"),
        ("task string, eta timestamp", Rules(NOW_MS, zone="Europe/Paris"), "--zone is for a column local"),
        ("task string, local string", Rules(NOW_MS, zone="Mars"), "--zone must be a time zone"),
        ("task string, eta timestamp, reason string", Rules(NOW_MS), "columns must not be called reason"),
    ],
)
def test_columns_that_make_no_sense(spark: SparkSession, columns: str, rules: Rules, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        rows.judged(spark.createDataFrame([], columns), rules)
