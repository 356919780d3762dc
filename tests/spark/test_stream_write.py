"""``df.writeStream.format("wheel")``: each micro-batch is scheduled once and as a whole, whatever is killed."""

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from celery_wheel.errors import LoadEnded, SettingError
from celery_wheel.pipeline.source.write import WheelStreamWriter, make_stream_writer
from celery_wheel.pipeline.spark_errors import unwrap_errors
from celery_wheel.store.model import COMMITTED, DONE, OPEN
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW
from tests.kit.patience import wait_until
from tests.spark.stores import Site, loaded_messages, on_both
from tests.spark.streamed import in_part, start, write_file


@pytest.fixture
def store(one: Site) -> SqlStore:
    return one.store


def numbers(store: SqlStore) -> list[int]:
    """The numbers of the rows that holders will accept; fails where an id occurs twice."""
    found = loaded_messages(store)
    assert len({one.envelope_id for one in found}) == len(found)
    return sorted(int(one.body.partition(b"[[")[2].partition(b",")[0]) for one in found)


def micro_batches(store: SqlStore, stream: str = "orders") -> list[tuple[int, str, int]]:
    return [(int(one.name.split("/")[-1]), one.state, one.run) for one in store.loads.by_prefix(f"{stream}/")]


def is_half_written(store: SqlStore, number: int) -> bool:
    return any(one.rows for one in store.loads.latest() if one.load.name.endswith(f"/{number}"))


@pytest.mark.slow
@on_both
def test_a_micro_batch_is_a_load_and_is_resumed(spark: SparkSession, url: str, store: SqlStore, tmp_path: Path) -> None:
    write_file(tmp_path, 0, range(30))
    write_file(tmp_path, 1, range(30, 50))
    start(spark, url, tmp_path).awaitTermination()
    assert micro_batches(store) == [(0, COMMITTED, 1), (1, COMMITTED, 1)]
    assert numbers(store) == [*range(50)]
    assert {(one.task, one.queue, one.eta_ms % 1_000) for one in loaded_messages(store)} == {("shop.remind", "mail", 0)}

    for commit in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        commit.unlink()  # as where the driver is killed between the commit in the store and that of the checkpoint
    write_file(tmp_path, 2, range(50, 60))
    start(spark, url, tmp_path, parts=3).awaitTermination()
    assert micro_batches(store) == [(0, COMMITTED, 1), (1, COMMITTED, 1), (2, COMMITTED, 1)]
    assert numbers(store) == [*range(60)], "micro-batch 1 was repeated by Spark, and loaded once"


@pytest.mark.slow
def test_a_killed_part_is_written_once(spark: SparkSession, url: str, store: SqlStore, tmp_path: Path) -> None:
    """All of Spark's Python processes are killed with ``kill -9`` while a part is half written."""
    write_file(tmp_path, 0, range(10))
    write_file(tmp_path, 1, range(10, 5_000), size=2_000)

    def stop_in_the_middle(batches: Iterator[Any]) -> Iterator[Any]:
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
            context = TaskContext.get()
            while context is not None and rows > 4_000 and context.attemptNumber() == 0:
                signal.pause()

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        query = start(spark, url, tmp_path, parts=1, through=stop_in_the_middle)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    wait_until(lambda: is_half_written(store, 1) or not query.isActive, "half of micro-batch 1 is written", 200)
    assert micro_batches(store)[1:] == [(1, OPEN, 1)], query.exception()
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "pyspark.daemon" in " ".join(one.cmdline()) and not one.children():
                one.kill()
    query.awaitTermination()
    assert micro_batches(store) == [(0, COMMITTED, 1), (1, COMMITTED, 1)]
    assert numbers(store) == [*range(5_000)]


def test_a_failed_micro_batch_is_loaded_once(spark: SparkSession, url: str, store: SqlStore, tmp_path: Path) -> None:
    write_file(tmp_path, 0, range(20))
    write_file(tmp_path, 1, range(20, 60))

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        if in_part(1, micro_batch=1):
            raise OSError("simulated")
        yield from batches

    query = start(spark, url, tmp_path, through=fail, key=None)
    with pytest.raises(Exception, match="simulated"):
        query.awaitTermination()
    assert numbers(store) == [*range(20)]
    assert micro_batches(store)[0] == (0, COMMITTED, 1)
    start(spark, url, tmp_path, key=None).awaitTermination()
    assert [(number, state) for number, state, _ in micro_batches(store)] == [(0, COMMITTED), (1, COMMITTED)]
    assert numbers(store) == [*range(60)]


@pytest.mark.slow
def test_another_checkpoint_is_refused_and_another_name_loads_a_key_once(
    spark: SparkSession, url: str, store: SqlStore, tmp_path: Path
) -> None:
    write_file(tmp_path, 0, range(30))
    start(spark, url, tmp_path).awaitTermination()
    ids = {one.envelope_id for one in loaded_messages(store)}
    with (
        pytest.raises(SettingError, match=r"^the stream 'orders' was loaded by the query .* its checkpoint is another"),
        unwrap_errors(),
    ):
        start(spark, url, tmp_path, checkpoint="new").awaitTermination()
    assert {one.envelope_id for one in loaded_messages(store)} == ids
    start(spark, url, tmp_path, checkpoint="new", batch="orders-2").awaitTermination()
    found = loaded_messages(store)
    assert (len(found), {one.envelope_id for one in found}) == (60, ids), "the store accepts each id once"


def test_wrong_options_of_a_stream_are_one_line(spark: SparkSession, url: str, store: SqlStore, tmp_path: Path) -> None:
    write_file(tmp_path, 0, range(3))
    for values, words in (
        ({"batch": ""}, "^option batch must name this stream, so that a repeated micro-batch .* is loaded once"),
        ({"batch": "x" * 490}, "^option batch must be shorter"),
        ({"key": "customer"}, "^option key must name a column, got 'customer'"),
    ):
        with pytest.raises(SettingError, match=words), unwrap_errors():
            start(spark, url, tmp_path, **{"checkpoint": f"c{len(words)}", **values}).awaitTermination()  # type: ignore[arg-type]
    rows = spark.readStream.schema("task string").parquet(str(tmp_path / "rows")).groupBy("task").count()
    complete = rows.writeStream.format("wheel").option("checkpointLocation", str(tmp_path / "complete"))
    with pytest.raises(SettingError, match=r"^output mode must be append, got complete"), unwrap_errors():
        complete.outputMode("complete").trigger(availableNow=True).start().awaitTermination()
    assert store.loads.latest() == []


SCHEMA = StructType().add("task", "string").add("eta_ms", "long").add("queue", "string")


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    at = SimpleNamespace(number=41)
    properties = {"sql.streaming.queryId": "9b0c3d2a-7c0e-4c55-9d41-6f6b4f4f2c11"}
    local = lambda name: properties.get(name, str(at.number))  # noqa: E731
    context = SimpleNamespace(partitionId=lambda: 0, getLocalProperty=local)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    return at


def plan(url: str) -> WheelStreamWriter:
    return make_stream_writer({"url": url, "batch": "orders"}, SCHEMA, overwrite=False)


def batch(count: int = 5) -> Iterator[pa.RecordBatch]:
    rows = [{"task": "shop.remind", "eta_ms": NOW + n, "queue": "mail"} for n in range(count)]
    return iter([pa.RecordBatch.from_pylist(rows)])


@on_both
def test_a_later_plan_fences_an_earlier_one(url: str, store: SqlStore, task: SimpleNamespace) -> None:
    old = plan(url)
    written = old.write(batch())
    new = plan(url)
    done = new.write(batch())
    assert (done.kept, done.rows) == (5, 5), "the slices of the same rows are kept"
    with pytest.raises(LoadEnded):
        old.write(batch())
    with pytest.raises(LoadEnded):
        old.commit([written], task.number)
    new.commit([done], task.number)
    assert (len(loaded_messages(store)), micro_batches(store)) == (5, [(41, COMMITTED, 2)])


@on_both
def test_one_of_two_drivers_that_plan_at_once_commits(url: str, store: SqlStore, task: SimpleNamespace) -> None:
    one, other = plan(url), plan(url)
    first, second = one.write(batch()), other.write(batch())
    with pytest.raises(LoadEnded, match="a later attempt"):
        one.commit([first], task.number)
    other.commit([second], task.number)
    assert plan(url).write(batch()).attempt is None, "it is loaded"
    assert len(loaded_messages(store)) == 5


@on_both
def test_accepted_micro_batches_are_never_reloaded(url: str, one: Site, store: SqlStore, task: SimpleNamespace) -> None:
    for task.number in range(4):
        writer = plan(url)
        writer.commit([writer.write(batch())], task.number)
        for holder in (one.holder, one.second):
            holder.apply(loaded=[chunk.id for chunk in store.read_loads(holder.shard, 100)])
            store.expire(holder.shard, holder.epoch, NOW, NOW)
    assert micro_batches(store) == [(3, DONE, 1)]
    for task.number in (0, 3):
        writer = plan(url)
        message = writer.write(batch())
        writer.commit([message], task.number)
        assert message.attempt is None
    assert loaded_messages(store) == []


@on_both
def test_a_micro_batch_without_rows_makes_no_load(url: str, store: SqlStore, task: SimpleNamespace) -> None:
    writer = plan(url)
    writer.commit([writer.write(iter([]))], task.number)
    writer.abort([None], task.number)
    assert micro_batches(store) == []
