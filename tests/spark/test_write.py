"""``df.write.format("wheel")``: all rows are scheduled once, whatever fails and however often the job runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import ArrayType, BinaryType, DataType, DoubleType, FloatType, LongType, StructType

from celery_wheel.broker import shard_of
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.intake.stored_form import unpack_chunk
from celery_wheel.errors import SettingError, StoreError
from celery_wheel.pipeline.source.options import check_columns
from celery_wheel.pipeline.source.write import make_writer
from celery_wheel.store import open_store
from celery_wheel.store.model import ABORTED, COMMITTED, Message, each
from celery_wheel.store.sql.loads import SqlLoads
from celery_wheel.store.sql.store import SqlStore
from tests.kit.servers.postgres import PostgresServer

ROWS = 2_000
START_MS = 1_900_000_000_000
SHARDS = 2


@dataclass
class Site:
    url: str
    store: SqlStore


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/wheel.sqlite3"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_database()
    with closing(open_store(url, shards=SHARDS)) as store:
        yield Site(url, store)


on_sqlite = pytest.mark.parametrize("site", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("site", ["postgresql"], indirect=True)


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


def save(rows: DataFrame, site: Site, batch: str = "monday", **options: Any) -> None:
    rows.write.format("wheel").options(url=site.url, batch=batch, **options).mode("append").save()


def loaded_messages(store: SqlStore) -> list[Message]:
    """The messages that holders will accept, in all shards."""
    found: list[Message] = []
    for shard in range(store.shards):
        for chunk in store.read_loads(shard, 10**9):
            for one in each(unpack_chunk(chunk, lambda raw: QueuedMessageReader("wheel", 2**23).decode(raw), str)):
                assert isinstance(one, Message)
                found.append(one)
    return found


def listed(site: Site) -> list[tuple[str, str, int]]:
    return [(one.load.name, one.load.state, one.rows) for one in site.store.loads.latest()]


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
def test_a_load_has_the_messages_of_apply_async(spark: SparkSession, site: Site) -> None:
    save(reminders(spark), site, key="order")
    found = loaded_messages(site.store)
    assert len({one.envelope_id for one in found}) == len(found) == ROWS
    assert {one.body.partition(b", {")[0] for one in found} == {b"[[%d]" % n for n in range(ROWS)}
    assert {one.eta_ms for one in found} == {START_MS + n for n in range(ROWS)}
    one = next(one for one in found if one.eta_ms == START_MS + 7)
    assert (one.task, one.queue, one.routing_key, one.exchange) == ("shop.remind", "mail", "mail", "")
    assert one.task_id == one.envelope_id
    assert b'"argsrepr": "(7,)"' in one.headers
    assert listed(site) == [("monday", COMMITTED, ROWS)]

    save(reminders(spark), site, key="order")  # the same batch again
    assert listed(site) == [("monday", COMMITTED, ROWS)]
    save(reminders(spark).limit(100), site, batch="tuesday", key="order")  # some rows under another name
    repeated = [one for one in loaded_messages(site.store) if one.eta_ms < START_MS + 100]
    assert len(repeated) == 200
    assert len({one.envelope_id for one in repeated}) == 100


def test_a_failed_load_leaves_nothing_and_a_retried_part_is_written_once(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    rows = heavy(spark)
    once = rows.mapInArrow(fail_once(tmp_path / "failed", 5_000), rows.schema)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        save(once, site)
        assert (tmp_path / "failed").exists()
        found = loaded_messages(site.store)
        assert len({one.envelope_id for one in found}) == len(found) == 6_000

        late = functions.col("eta") > functions.timestamp_millis(functions.lit(START_MS + 5_500))
        wrong = rows.withColumn("kwargs", functions.when(late, "{"))
        words = r"kwargs must be an object as JSON, got '{'.*\"task\": \"shop.remind\""
        with pytest.raises(PySparkException, match=words):
            save(wrong, site, batch="tuesday")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert listed(site) == [("tuesday", ABORTED, 0), ("monday", COMMITTED, 6_000)]


@on_sqlite
def test_rows_without_a_key_have_ids_of_their_load(spark: SparkSession, site: Site) -> None:
    save(reminders(spark, 1_000).drop("order"), site)
    ids = sorted(one.envelope_id for one in loaded_messages(site.store))
    assert len(set(ids)) == 1_000
    assert {UUID(one).version for one in ids} == {7}


@on_sqlite
def test_optional_columns_and_the_app_of_a_project_apply(spark: SparkSession, site: Site) -> None:
    rows = (
        reminders(spark, 30, 2)
        .drop("queue", "order")
        .withColumns(
            {
                "key": functions.lit("customer:7"),
                "priority": functions.lit(3),
                "expires": functions.col("eta") + functions.expr("interval 1 hour"),
                "task_id": functions.concat(functions.lit("remind-"), "eta"),
            }
        )
    )
    save(rows, site, app="tests.spark.shop:app")
    found = loaded_messages(site.store)
    assert len(found) == 30
    assert {(one.key, one.priority, one.queue) for one in found} == {("customer:7", 3, "shop")}
    assert all(one.expires_ms == one.eta_ms + 3_600_000 for one in found)
    assert all(one.task_id.startswith("remind-2030") for one in found)
    assert len({shard_of(one.key, one.task_id, SHARDS) for one in found}) == 1


@on_sqlite
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "sqlite:////nowhere/wheel.sqlite3"}, "there is no store at /nowhere/wheel.sqlite3"),
        ({"url": "mysql://db/wheel"}, "wheel_store must be a database URL like"),
        ({"batch": ""}, "option batch must name this load"),
        ({"key": "customer"}, "option key must name a column, got 'customer'; there are task, args,"),
        ({"key": "task"}, "columns must be among task, args, .*; got order; remove the others"),
        ({"app": "tests.nowhere:app"}, "option app must be importable where Spark runs"),
        ({"chunk": "0"}, "option chunk must be a whole number from 1"),
    ],
)
def test_wrong_options_are_refused_on_the_driver(
    spark: SparkSession, site: Site, options: dict[str, str], words: str
) -> None:
    values = {"url": site.url, "batch": "monday", "key": "order", **options}
    with pytest.raises(PySparkException, match=words):
        reminders(spark, 10).write.format("wheel").options(**values).mode("append").save()
    assert listed(site) == []


@pytest.mark.parametrize("kind", [DoubleType(), FloatType(), BinaryType(), ArrayType(LongType()), StructType()])
def test_a_key_without_one_text_is_refused_on_the_driver(kind: DataType) -> None:
    """7 would be another row than 7.0, and other types fail in each task."""
    schema = StructType().add("task", "string").add("eta_ms", "long").add("nr", kind)
    with pytest.raises(
        SettingError, match=f"key must name a column of texts, whole numbers or times, got nr of {kind.simpleString()}"
    ):
        check_columns(schema, "nr")
    for good in ("string", "long", "decimal(38,0)", "date", "timestamp"):
        check_columns(StructType([*schema.fields[:2]]).add("nr", good), "nr")


@on_sqlite
def test_an_error_of_the_store_is_reported_for_the_load(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's own message is for a scheduler, which adopts the shard again and retries."""

    def ended(*_: object) -> None:
        raise StoreError("the store wheel ended the session")

    rows = pa.RecordBatch.from_pylist([{"task": "app.remind", "eta_ms": START_MS, "queue": "mail"}])
    schema = StructType().add("task", "string").add("eta_ms", "long").add("queue", "string")
    writer = make_writer({"url": site.url, "batch": "monday"}, schema, overwrite=False)
    monkeypatch.setattr(SqlLoads, "put", ended)
    with pytest.raises(StoreError, match="the batch 'monday' was interrupted, and none of it is scheduled; load it"):
        writer.write(iter([rows]))


@on_sqlite
def test_nothing_is_overwritten(spark: SparkSession, site: Site) -> None:
    with pytest.raises(PySparkException, match="mode must be append, got overwrite: a load does not replace scheduled"):
        reminders(spark, 10).write.format("wheel").options(url=site.url, batch="x").mode("overwrite").save()
