"""``df.write.format("wheel")``: all rows are scheduled once, whatever fails and however often the job runs.

Our own message comes first in the error of a write, and a write works in every thread.
"""

import os
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import ArrayType, BinaryType, DataType, DoubleType, FloatType, LongType, StructType

from celery_wheel.broker import shard_of
from celery_wheel.bulk_load.columns import BadRow
from celery_wheel.errors import SettingError, StoreError, StoreUnusable, WheelError
from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.source.options import check_columns
from celery_wheel.pipeline.source.write import make_writer
from celery_wheel.pipeline.spark_errors import concise, unwrap_errors, wheel_error
from celery_wheel.pipeline.tables import write
from celery_wheel.store.model import ABORTED, COMMITTED
from celery_wheel.store.sql.loads import SqlLoads
from tests.spark.stores import Site, loaded_messages, on_both, on_postgresql

ROWS = 2_000
START_MS = 1_900_000_000_000


def reminders(spark: SparkSession, count: int = ROWS, parts: int = 4) -> DataFrame:
    rows = spark.range(0, count, 1, parts)
    return rows.select(
        functions.lit("shop.remind").alias("task"),
        functions.to_json(functions.array("id")).alias("args"),
        functions.lit('{"template": "trial-ends"}').alias("kwargs"),
        functions.timestamp_millis(functions.lit(START_MS) + functions.col("id")).alias("eta"),
        functions.lit("mail").alias("queue"),
        functions.concat(functions.lit("order-"), "id").alias("order"),
    )


def heavy(spark: SparkSession, count: int = 6_000) -> DataFrame:
    """Rows with so many bytes that a part commits before its end."""
    hashes = (functions.sha2(functions.concat("order", functions.lit(f"{n}")), 512) for n in range(25))
    noise = functions.concat(*hashes)
    return reminders(spark, count, 1).withColumn("args", functions.to_json(functions.array(noise))).drop("order")


def save(rows: DataFrame, one: Site, batch: str = "monday", **options: Any) -> None:
    rows.write.format("wheel").options(url=one.url, batch=batch, **options).mode("append").save()


def listed(one: Site) -> list[tuple[str, str, int]]:
    return [(found.load.name, found.load.state, found.rows) for found in one.store.loads.latest()]


def fail_once(marker: Path, after: int) -> Any:
    """Pass the batches on, with an error in the middle of the first attempt."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            if rows > after and not marker.exists():
                marker.touch()
                raise OSError("simulated")
            yield batch

    return pass_on


@on_postgresql
def test_a_load_has_the_messages_of_apply_async(spark: SparkSession, one: Site) -> None:
    save(reminders(spark), one, key="order")
    found = loaded_messages(one.store)
    assert len({message.envelope_id for message in found}) == len(found) == ROWS
    assert {message.body.partition(b", {")[0] for message in found} == {b"[[%d]" % n for n in range(ROWS)}
    assert {message.eta_ms for message in found} == {START_MS + n for n in range(ROWS)}
    message = next(message for message in found if message.eta_ms == START_MS + 7)
    assert (message.task, message.queue, message.routing_key, message.exchange) == ("shop.remind", "mail", "mail", "")
    assert message.task_id == message.envelope_id
    assert b'"argsrepr": "(7,)"' in message.headers
    assert listed(one) == [("monday", COMMITTED, ROWS)]

    save(reminders(spark), one, key="order")  # the same batch again
    assert listed(one) == [("monday", COMMITTED, ROWS)]
    save(reminders(spark).limit(100), one, batch="tuesday", key="order")  # some rows under another name
    repeated = [one for one in loaded_messages(one.store) if one.eta_ms < START_MS + 100]
    assert len(repeated) == 200
    assert len({one.envelope_id for one in repeated}) == 100


@pytest.mark.slow
@on_both
def test_a_failed_load_leaves_nothing_and_a_retry_writes_once(spark: SparkSession, one: Site, tmp_path: Path) -> None:
    rows = heavy(spark)
    once = rows.mapInArrow(fail_once(tmp_path / "failed", 5_000), rows.schema)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        save(once, one)
        assert (tmp_path / "failed").exists()
        found = loaded_messages(one.store)
        assert len({one.envelope_id for one in found}) == len(found) == 6_000

        late = functions.col("eta") > functions.timestamp_millis(functions.lit(START_MS + 5_500))
        wrong = rows.withColumn("kwargs", functions.when(late, "{"))
        words = r"kwargs must be an object as JSON, got '{'.*\"task\": \"shop.remind\""
        with pytest.raises(PySparkException, match=words):
            save(wrong, one, batch="tuesday")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert listed(one) == [("tuesday", ABORTED, 0), ("monday", COMMITTED, 6_000)]


def test_rows_without_a_key_have_ids_of_their_load(spark: SparkSession, one: Site) -> None:
    save(reminders(spark, 1_000).drop("order"), one)
    ids = sorted(one.envelope_id for one in loaded_messages(one.store))
    assert len(set(ids)) == 1_000
    assert {UUID(one).version for one in ids} == {7}


@pytest.mark.parametrize("group", [None, "customer:7"])
def test_optional_columns_and_the_app_of_a_project_apply(spark: SparkSession, one: Site, group: str | None) -> None:
    columns = {
        "key" if group is None else "group": functions.lit("customer:7"),
        "priority": functions.lit(3),
        "expires": functions.col("eta") + functions.expr("interval 1 hour"),
        "task_id": functions.concat(functions.lit("remind-"), "eta"),
    }
    save(reminders(spark, 30, 2).drop("queue", "order").withColumns(columns), one, app="tests.spark.shop:app")
    found = loaded_messages(one.store)
    assert len(found) == 30
    assert {(one.key, one.group, one.priority, one.queue) for one in found} == {("customer:7", group, 3, "shop")}
    assert all(one.expires_ms == one.eta_ms + 3_600_000 for one in found)
    assert all(one.task_id.startswith("remind-2030") for one in found)
    assert len({shard_of(one.key, one.task_id, 2) for one in found}) == 1


@pytest.mark.parametrize("kind", [DoubleType(), FloatType(), BinaryType(), ArrayType(LongType()), StructType()])
def test_a_key_without_one_text_is_refused_on_the_driver(kind: DataType) -> None:
    """7 would be another row than 7.0, and other types fail in each task."""
    schema = StructType().add("task", "string").add("eta_ms", "long").add("nr", kind)
    words = f"key must name a column of texts, whole numbers or times, got nr of {kind.simpleString()}"
    with pytest.raises(SettingError, match=words):
        check_columns(schema, "nr")
    for good in ("string", "long", "decimal(38,0)", "date", "timestamp"):
        check_columns(StructType([*schema.fields[:2]]).add("nr", good), "nr")


def test_an_error_of_the_store_is_reported_for_the_load(one: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's own message is for a scheduler, which adopts the shard again and retries."""

    def ended(*_: object) -> None:
        raise StoreError("the store wheel ended the session")

    rows = pa.RecordBatch.from_pylist([{"task": "app.remind", "eta_ms": START_MS, "queue": "mail"}])
    schema = StructType().add("task", "string").add("eta_ms", "long").add("queue", "string")
    writer = make_writer({"url": one.url, "batch": "monday"}, schema, overwrite=False)
    monkeypatch.setattr(SqlLoads, "put", ended)
    with pytest.raises(StoreError, match="the batch 'monday' was interrupted, and none of it is scheduled; load it"):
        writer.write(iter([rows]))


WRONG = [
    ({"url": "sqlite:////nowhere/wheel.sqlite3"}, StoreUnusable, "there is no store at /nowhere/wheel.sqlite3"),
    ({"url": "mysql://db/wheel"}, SettingError, "wheel_store must be a database URL like"),
    ({"batch": ""}, SettingError, "option batch must name this load"),
    ({"key": "customer"}, SettingError, "option key must name a column, got 'customer'; there are task, args,"),
    ({"key": "task"}, SettingError, "columns must be among task, args,"),
    ({"app": "tests.nowhere:app"}, SettingError, "option app must be importable where Spark runs"),
    ({"chunk": "0"}, SettingError, "option chunk must be a whole number from 1"),
]


def ten_rows(spark: SparkSession) -> DataFrame:
    return reminders(spark, 10, 1).drop("order")


@pytest.mark.parametrize(("options", "kind", "words"), WRONG)
def test_an_error_of_the_driver_is_one_line_of_ours(
    spark: SparkSession, one: Site, options: dict[str, str], kind: type[WheelError], words: str
) -> None:
    values, rows = {"url": one.url, "batch": "monday", "key": "order", **options}, reminders(spark, 10, 1)
    with pytest.raises(PySparkException) as caught:
        rows.write.format("wheel").options(**values).mode("append").save()
    first, *others = str(caught.value).splitlines()
    assert words in first
    assert [line.split(":")[0] for line in others] == [" SQLSTATE"], "Spark adds its code, and no traceback"
    with pytest.raises(kind) as ours:
        write(rows, values.pop("batch"), **values)
    assert str(ours.value).startswith(words)
    shown = "".join(traceback.format_exception(ours.value))
    assert "py4j" not in shown, "no error of Java is chained"
    assert "pyspark" not in shown
    assert listed(one) == []


def test_overwriting_is_refused_in_one_line(spark: SparkSession, one: Site) -> None:
    with pytest.raises(SettingError, match=r"^mode must be append, got overwrite: a load does not"), unwrap_errors():
        ten_rows(spark).write.format("wheel").options(url=one.url, batch="x").mode("overwrite").save()


def test_an_error_of_a_row_is_raised_as_such(spark: SparkSession, one: Site) -> None:
    wrong = ten_rows(spark).withColumn("args", functions.lit("{"))
    with pytest.raises(BadRow, match=r"^row 0: args must be "):
        write(wrong, "monday", one.url)
    with pytest.raises(PySparkException) as caught:
        wrong.write.format("wheel").options(url=one.url, batch="monday").mode("append").save()
    assert "Traceback" not in str(caught.value)


def test_an_error_of_other_code_is_left_as_it_is(spark: SparkSession, one: Site) -> None:
    bad = ten_rows(spark).withColumn("args", functions.raise_error(functions.lit("no args")).cast("string"))
    with pytest.raises(PySparkException, match="no args"):
        write(bad, "monday", one.url)
    assert wheel_error(ValueError("celery_wheel is a package: see its docs")) is None
    assert type(wheel_error(ValueError("x: celery_wheel.newer.NewError: do this"))) is WheelError


def test_tracebacks_stay_where_the_session_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that it is as it was afterwards: a JVM starts with it
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
    for simplified, hidden in (("", None), ("1", "1")):
        monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", simplified)
        with pytest.raises(SettingError), concise():
            raise SettingError("url must name the store")
        assert os.environ.get("SPARK_HIDE_TRACEBACK") == hidden
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK")


@pytest.mark.parametrize("name", ["eta", "eta_ms"])
def test_each_partition_is_written_in_the_order_of_due_times(spark: SparkSession, one: Site, name: str) -> None:
    times = {"eta": functions.timestamp_millis("due_ms"), "eta_ms": functions.col("due_ms")}
    scattered = functions.lit(START_MS) + (functions.col("id") * 7_919) % ROWS
    due = spark.range(0, ROWS, 1, 1).withColumn("due_ms", scattered)
    rows = due.select(
        functions.lit("shop.remind").alias("task"), times[name].alias(name), functions.lit("m").alias("queue")
    )
    write(rows, "sorted", one.url)
    found = [message.eta_ms for message in loaded_messages(one.store)]  # shard by shard
    assert sorted(found) == list(range(START_MS, START_MS + ROWS))
    assert sum(later < earlier for earlier, later in pairwise(found)) < one.store.shards


def test_threads_write_at_once(spark: SparkSession, one: Site) -> None:
    """Spark looks for a data source in Python in the active session of the calling thread; a new thread has none."""
    table = ten_rows(spark)

    def save() -> None:
        session()
        table.write.format("wheel").options(url=one.url, batch="own").mode("append").save()

    with ThreadPoolExecutor(3) as pool:
        writes = [pool.submit(write, table, name, one.url) for name in ("one", "two")]
        for done in (*writes, pool.submit(save)):
            done.result()
    assert sorted(listed(one)) == [(name, COMMITTED, 10) for name in ("one", "own", "two")]
