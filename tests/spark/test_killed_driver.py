"""A driver is killed with ``kill -9`` while it loads, streams and archives: each continues, and nothing occurs twice.

One driver does all three at once, because its Java takes longer to start than all that the tests look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import select

from celery_wheel import archive as archive_reader
from celery_wheel.store import open_store
from celery_wheel.store.model import COMMITTED, OPEN
from celery_wheel.store.sql.schema import load_chunk
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW
from tests.kit.patience import wait_until
from tests.kit.processes import python
from tests.spark import killed
from tests.spark.stores import Site, fill, site
from tests.spark.streamed import start, write_file
from tests.spark.test_archive import DAY_MS, add_events, archive, assert_same, compact, data_files, events, store_events
from tests.spark.test_stream_write import is_half_written, micro_batches, numbers
from tests.spark.test_write import ROWS, listed, loaded_messages, reminders, save
from tests.spark.test_write import Site as Loaded


class Killed:
    """The folder of the driver, its three stores, and what was archived before it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.archive = folder, folder / "archive"
        self.loaded, self.streamed = (
            stack.enter_context(closing(open_store(killed.url(folder, name), shards=2)))
            for name in ("loaded", "streamed")
        )
        self.one: Site = stack.enter_context(site(killed.url(folder, "archived")))
        write_file(folder, 0, range(40))
        write_file(folder, 1, range(40, 80))
        fill(self.one)
        archive(self.one, self.archive)
        add_events(self.one, NOW + DAY_MS)
        add_events(self.one, NOW + 50)
        self.events, self.files = events(self.archive), data_files(self.archive)

    @property
    def load(self) -> Loaded:
        return Loaded(killed.url(self.folder, "loaded"), self.loaded)

    def is_half_done(self) -> bool:
        written = "run=*/_temporary/0/task_*/day=*/*.parquet"
        loads = listed(self.load)
        return bool(loads and loads[0][2]) and is_half_written(self.streamed, 1) and any(self.archive.glob(written))


@pytest.fixture(scope="module")
def driver(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """The driver, after its end: one of two parts of each was written, while the other waited for ever."""
    folder = tmp_path_factory.mktemp("killed")
    with ExitStack() as stack:
        found = Killed(folder, stack)
        with python(folder / "killed.log", "-m", "tests.spark.killed", str(folder)) as process:
            wait_until(lambda: found.is_half_done() or not process.is_alive(), "half of each is written", 200)
            assert process.is_alive(), process.said()
        yield found


def stamps(store: SqlStore) -> set[int]:
    with store.database.reading() as connection:
        return set(connection.execute(select(load_chunk.c.id)).scalars())


@pytest.mark.timeout(300)
def test_a_load_whose_driver_was_killed_is_resumed(spark: SparkSession, driver: Killed) -> None:
    assert listed(driver.load) == [("monday", OPEN, ROWS // 2)]
    assert loaded_messages(driver.loaded) == []
    before = stamps(driver.loaded)
    save(reminders(spark, ROWS, 2), driver.load, key="order")
    assert listed(driver.load) == [("monday", COMMITTED, ROWS)]
    assert len({one.envelope_id for one in loaded_messages(driver.loaded)}) == ROWS
    assert before <= stamps(driver.loaded), "the written part was kept"


@pytest.mark.timeout(300)
def test_a_micro_batch_whose_driver_was_killed_is_loaded_once_by_the_next(spark: SparkSession, driver: Killed) -> None:
    """A part of the second micro-batch was written."""
    store = driver.streamed
    assert micro_batches(store) == [(0, COMMITTED, 1), (1, OPEN, 1)]
    assert numbers(store) == [*range(40)], "nothing of the open micro-batch is visible"
    start(spark, killed.url(driver.folder, "streamed"), driver.folder, parts=3).awaitTermination()  # not its two parts
    assert micro_batches(store) == [(0, COMMITTED, 1), (1, COMMITTED, 2)]
    assert numbers(store) == [*range(80)]


@pytest.mark.timeout(300)
def test_a_driver_is_killed_while_it_archives(spark: SparkSession, driver: Killed) -> None:
    """One of its two tasks is done, the other is not; ``compact`` removes the files when they are old."""
    one, folder = driver.one, driver.archive
    assert data_files(folder) > driver.files
    assert events(folder) == driver.events, "no reader sees its files"
    add_events(one, NOW + 60)
    assert archive(one, folder)["events"] == 6
    assert_same(folder, *store_events(one))
    [removed] = compact(spark, folder, DAY_MS + 60_000).removed
    assert removed.startswith("run=")
    compact(spark, folder, 3 * DAY_MS)
    assert data_files(folder) == {*archive_reader.files(str(folder))}
    assert_same(folder, *store_events(one))
