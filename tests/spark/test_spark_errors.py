"""Errors of a write: our own message comes first, and a write works in every thread."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from celery_wheel.bulk_load.columns import BadRow
from celery_wheel.errors import SettingError, StoreUnusable, WheelError
from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.spark_errors import concise, unwrap_errors, wheel_error
from celery_wheel.pipeline.tables import write
from celery_wheel.store import open_store
from celery_wheel.store.model import COMMITTED
from celery_wheel.store.sql.store import SqlStore
from tests.spark.test_write import reminders

WRONG = [
    ({"batch": ""}, SettingError, "option batch must name this load"),
    ({"key": "customer"}, SettingError, "option key must name a column, got 'customer'"),
    ({"url": "sqlite:////nowhere/wheel.sqlite3"}, StoreUnusable, "there is no store at /nowhere/wheel.sqlite3"),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/wheel.sqlite3"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url)) as store:
        yield store


def rows(spark: SparkSession) -> DataFrame:
    return reminders(spark, 10, 1).drop("order")


@pytest.mark.parametrize(("options", "kind", "words"), WRONG)
def test_an_error_of_the_driver_is_one_line_of_ours(
    spark: SparkSession, url: str, store: SqlStore, options: dict[str, str], kind: type[WheelError], words: str
) -> None:
    values = {"url": url, "batch": "monday", **options}
    with pytest.raises(PySparkException) as caught:
        rows(spark).write.format("wheel").options(**values).mode("append").save()
    first, *others = str(caught.value).splitlines()
    assert words in first
    assert [line.split(":")[0] for line in others] == [" SQLSTATE"], "Spark adds its code, and no traceback"
    with pytest.raises(kind) as ours:
        write(rows(spark), values.pop("batch"), **values)
    assert str(ours.value).startswith(words)
    shown = "".join(traceback.format_exception(ours.value))
    assert "py4j" not in shown, "no error of Java is chained"
    assert "pyspark" not in shown


def test_overwriting_is_refused_in_one_line(spark: SparkSession, url: str, store: SqlStore) -> None:
    with pytest.raises(SettingError, match=r"^mode must be append, got overwrite: a load does not"), unwrap_errors():
        rows(spark).write.format("wheel").options(url=url, batch="x").mode("overwrite").save()


def test_an_error_of_a_row_is_raised_as_such(spark: SparkSession, url: str, store: SqlStore) -> None:
    wrong = rows(spark).withColumn("args", functions.lit("{"))
    with pytest.raises(BadRow, match=r"^row 0: args must be "):
        write(wrong, "monday", url)
    with pytest.raises(PySparkException) as caught:
        wrong.write.format("wheel").options(url=url, batch="monday").mode("append").save()
    assert "Traceback" not in str(caught.value)


def test_an_error_of_other_code_is_left_as_it_is(spark: SparkSession, url: str, store: SqlStore) -> None:
    bad = rows(spark).withColumn("args", functions.raise_error(functions.lit("no args")).cast("string"))
    with pytest.raises(PySparkException, match="no args"):
        write(bad, "monday", url)
    assert wheel_error(ValueError("celery_wheel is a package: see its docs")) is None
    assert type(wheel_error(ValueError("x: celery_wheel.newer.NewError: do this"))) is WheelError


def test_tracebacks_stay_where_the_session_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    for simplified, hidden in (("", None), ("1", "1")):
        monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", simplified)
        with pytest.raises(SettingError), concise():
            raise SettingError("url must name the store")
        assert os.environ.get("SPARK_HIDE_TRACEBACK") == hidden
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK")


def test_threads_write_at_once(spark: SparkSession, url: str, store: SqlStore) -> None:
    """Spark looks for a data source in Python in the active session of the calling thread; a new thread has none."""
    table = rows(spark)

    def save() -> None:
        session()
        table.write.format("wheel").options(url=url, batch="own").mode("append").save()

    with ThreadPoolExecutor(3) as pool:
        writes = [pool.submit(write, table, name, url) for name in ("one", "two")]
        for done in (*writes, pool.submit(save)):
            done.result()
    assert {(one.load.name, one.load.state, one.load.rows) for one in store.loads.latest()} == {
        ("one", COMMITTED, 10),
        ("two", COMMITTED, 10),
        ("own", COMMITTED, 10),
    }
