"""The pipeline on a cluster: by spark-submit, over Spark Connect, and after ``kill -9`` of an executor and the driver.

The driver was killed while it loaded, streamed, archived and wrote the history: each continues in another Spark, and
nothing occurs twice.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from celery_wheel import archive as archive_reader
from celery_wheel.pipeline.jobs import JOBS
from celery_wheel.pipeline.tables import read, tail
from celery_wheel.store.model import COMMITTED, OPEN
from tests.kit.holder import NOW
from tests.kit.servers.postgres import PostgresServer
from tests.spark import test_stream_write, test_write
from tests.spark.cluster import ROWS, Cluster, HalfDone, by_job, files, running_cluster, stamped_chunks
from tests.spark.stores import loaded_messages
from tests.spark.streamed import start
from tests.spark.test_archive import DAY_MS, add_events, archive, assert_same, compact, data_files, events, store_events
from tests.spark.test_stream_write import micro_batches
from tests.spark.test_write import listed, reminders, save


@pytest.fixture(scope="module")
def cluster(
    spark: SparkSession, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), postgres.new_database(stays=True)) as found:
        yield found


@pytest.fixture(scope="module")
def after_kills(cluster: Cluster) -> Cluster:
    cluster.kill()
    return cluster


@pytest.fixture
def half(after_kills: Cluster) -> HalfDone:
    return after_kills.half


@pytest.mark.slow
def test_spark_submit_runs_a_job_on_executors_that_have_the_code_from_a_file(cluster: Cluster) -> None:
    cluster.wait_for("count")
    found = cluster.facts()
    assert found["archive"]["events"] == found["count"]["history"] == ROWS
    assert "code.zip" in found["count"]["code"]


#: A fact of each job's summary.
FACTS: dict[str, tuple[str, Any]] = {
    "schedule": ("loaded", 2),
    "archive": ("events", 9),
    "compact": ("job", "compact"),
    "tail": ("rows", 9),
    "lateness": ("tasks", 7),
    "forecast": ("pending", 4),
    "tune": ("tasks", 7),
    "reconcile": ("findings", {"lost_by_worker": 7, "unknown": 1}),
    "erase": ("events", 0),
    "count": ("history", 9),
}


@pytest.mark.slow
def test_each_job_runs_over_spark_connect_on_the_executors(cluster: Cluster) -> None:
    cluster.wait_for("client")
    found = by_job(cluster.facts()["client"]["summaries"])
    assert {job: (name, found[job][name]) for job, (name, _) in FACTS.items()} == FACTS
    assert found.keys() == FACTS.keys() == {*JOBS, "count"}
    assert found["schedule"]["rejects"] == {"eta cannot be read": 1}
    assert (found["count"]["pending"], found["count"]["dispatched"]) == (4, 7)
    assert files(cluster.folder / "client" / "history")


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_each_row_is_written_once_after_kills_of_executor_and_driver(spark: SparkSession, after_kills: Cluster) -> None:
    one, target = after_kills.one, str(after_kills.folder / "history")
    assert after_kills.unfinished == 1, "the driver was killed in the middle of a micro-batch"
    tail(spark, one.url, target, str(after_kills.folder / "checkpoint")).awaitTermination()
    found = Counter(row.id for row in spark.read.parquet(target).select("id").collect())
    assert found == Counter(row.id for row in read(spark, "history", one.url).select("id").collect())
    assert found == Counter(row.id for row in after_kills.rows)


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_a_load_whose_driver_was_killed_is_resumed(spark: SparkSession, half: HalfDone) -> None:
    rows = test_write.ROWS
    assert listed(half.loaded) == [("monday", OPEN, rows // 2)]
    assert loaded_messages(half.loaded.store) == []
    before = stamped_chunks(half.loaded.store)
    save(reminders(spark, rows, 2), half.loaded, key="order")
    assert listed(half.loaded) == [("monday", COMMITTED, rows)]
    assert len({one.envelope_id for one in loaded_messages(half.loaded.store)}) == rows
    assert before <= stamped_chunks(half.loaded.store), "the written part was kept"


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_a_micro_batch_whose_driver_was_killed_is_loaded_once_by_the_next(spark: SparkSession, half: HalfDone) -> None:
    """A part of the second micro-batch was written."""
    store = half.streamed.store
    [first, (number, state, run)] = micro_batches(store)
    assert (first, number, state) == ((0, COMMITTED, 1), 1, OPEN)
    numbers = test_stream_write.numbers
    assert numbers(store) == [*range(40)], "nothing of the open micro-batch is visible"
    start(spark, half.streamed.url, half.folder, parts=3).awaitTermination()  # not its two parts
    assert micro_batches(store) == [(0, COMMITTED, 1), (1, COMMITTED, run + 1)]
    assert numbers(store) == [*range(80)]


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_a_driver_is_killed_while_it_archives(spark: SparkSession, half: HalfDone) -> None:
    """One of its two tasks is done, the other is not; ``compact`` removes the files when they are old."""
    one, folder = half.one, half.archive
    assert data_files(folder) > half.files
    assert events(folder) == half.events, "no reader sees its files"
    add_events(one, NOW + 60)
    assert archive(one, folder)["events"] == 6
    assert_same(folder, *store_events(one))
    [removed] = compact(spark, folder, DAY_MS + 60_000).removed
    assert removed.startswith("run=")
    compact(spark, folder, 3 * DAY_MS)
    assert data_files(folder) == {*archive_reader.files(str(folder))}
    assert_same(folder, *store_events(one))
