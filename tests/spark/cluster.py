"""A cluster for the tests: a driver that spark-submit has started, with two executors, on this machine.

::

    driver    archives, and counts; lets a client run all jobs over Spark Connect; leaves a load, a stream and a run of
              ``archive`` half done; then writes all of the history of a store, in many micro-batches
    kill      of an executor in the middle of a micro-batch, then of the driver in that of another one, and of the rest

One driver does all of it: a cluster takes longer to start than most that it does here.
"""

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyspark

from celery_wheel.store.model import StoredMessage
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW
from tests.kit.patience import wait_until
from tests.kit.processes import Process
from tests.kit.servers import free_port
from tests.spark import daemon
from tests.spark.cluster_driver import half_done_url
from tests.spark.stores import Site, fill, site
from tests.spark.streamed import write_file
from tests.spark.test_archive import DAY_MS, add_events, archive, data_files, events
from tests.spark.test_stream_write import is_half_written
from tests.spark.test_write import listed

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
PATIENCE_S = 200.0

#: Rows to dispatch, and the number of settlements.
ROWS, SETTLEMENTS = 2_000, 100


class TableLock:
    """A lock of the table of tasks: while it is held, a micro-batch that has begun cannot end."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def held(self) -> Iterator[None]:
        with psycopg.connect(self._url) as connection:
            connection.execute("LOCK TABLE wheel_timer IN ACCESS EXCLUSIVE MODE")
            yield
            connection.rollback()

    def has_waiters(self) -> bool:
        """Whether a session waits for a lock, in a new transaction: the view does not change within one."""
        with psycopg.connect(self._url) as connection:
            [count] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone() or [0]
        return bool(count)


class HalfDone:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.archive = folder, folder / "archive"
        self.loaded, self.streamed, self.one = (
            stack.enter_context(site(half_done_url(folder, name))) for name in ("loaded", "streamed", "archived")
        )
        write_file(folder, 0, range(40))
        write_file(folder, 1, range(40, 80))
        fill(self.one)
        archive(self.one, self.archive)
        add_events(self.one, NOW + DAY_MS)
        add_events(self.one, NOW + 50)
        self.events, self.files = events(self.archive), data_files(self.archive)

    def is_reached(self) -> bool:
        """Whether one of two parts of each is written, while the other waits for ever."""
        archived = any(self.archive.glob("run=*/_temporary/0/task_*/day=*/*.parquet"))
        return archived and any(rows for _, _, rows in listed(self.loaded)) and is_half_written(self.streamed.store, 1)


def stamped_chunks(store: SqlStore) -> set[int]:
    with store.database.reading() as connection:
        return set(connection.exec_driver_sql("SELECT id FROM wheel_load_chunk").scalars())


@dataclass
class Cluster:
    one: Site
    rows: list[StoredMessage]
    half: HalfDone
    folder: Path
    driver: Process
    unfinished: int = 0  #: micro-batches that were begun and not ended when the driver was killed

    def facts(self) -> dict[str, dict[str, Any]]:
        return by_job([json.loads(line) for line in self.driver.lines() if line.startswith("{")])

    def wait_for(self, job: str) -> None:
        wait_until(lambda: job in self.facts() or not self.driver.is_alive(), f"the job {job}", PATIENCE_S)
        assert job in self.facts(), self.driver.said()[-4_000:]

    def kill(self) -> None:
        """Kill an executor in the middle of a micro-batch, then the driver and its executors in that of a later one."""
        lock, history, checkpoint = TableLock(self.one.url), self.folder / "history", self.folder / "checkpoint"
        ended = checkpoint / "commits"

        def has_begun() -> bool:
            assert self.driver.is_alive(), self.driver.said()[-4_000:]
            return lock.has_waiters()

        self.wait_for("client")
        wait_until(lambda: not self.driver.is_alive() or len(files(history)) > 1, "the first files", PATIENCE_S)
        with lock.held():
            wait_until(has_begun, "a task waits to read", PATIENCE_S)
            found = []
            for one in psutil.Process(self.driver.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # some children end meanwhile
                    found += [one] if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()) else []
            [first, *others] = found
            assert others, "there are two executors"
            first.kill()
        wait_until(lambda: not self.driver.is_alive() or numbers(ended), "another executor took over", PATIENCE_S)
        with lock.held():
            wait_until(has_begun, "a task waits to read", PATIENCE_S)
            wait_until(self.half.is_reached, "half of each is written", PATIENCE_S)
            self.unfinished = max(numbers(checkpoint / "offsets")) - max(numbers(ended))
            self.driver.kill()


@contextmanager
def running_cluster(folder: Path, url: str) -> Iterator[Cluster]:
    code = str(folder / "code.zip")
    with zipfile.PyZipFile(code, "w") as found:  # bytecode: each worker would compile a source file anew
        found.writepy(str(ROOT / "celery_wheel"))
        found.writepy(str(ROOT / "pyspark_wheel.py"))
    client, port = folder / "client", str(free_port())
    client.mkdir()
    (client / "rows.csv").write_text("nr,eta\n1,2031-01-01 08:00\n2,2031-01-01 09:00\n3,never\n")
    (client / "executed.jsonl").write_text('{"task_id": "unknown", "started": "2031-01-01T08:00:00Z"}\n')
    confs = {
        "spark.ui.enabled": "false",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/w",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        "spark.driver.host": "127.0.0.1",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": port,
    }
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local-cluster[2,4,1024]", "--py-files", code]
    command += [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    env = {"SPARK_HOME": str(HOME), "SPARK_WORKER_DIR": str(folder / "work"), "TMPDIR": str(folder)}
    env |= {"PYSPARK_PYTHON": daemon.program(folder, forget=daemon.CODE), "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        one = stack.enter_context(site(url))
        fill(stack.enter_context(site(f"sqlite:///{client}/wheel.sqlite3")))
        rows = one.holder.accept(*range(NOW, NOW + ROWS))
        step = ROWS // SETTLEMENTS
        for start in range(0, ROWS, step):
            one.dispatch(rows[start : start + step], NOW + start)
        (folder / "half").mkdir()
        half = HalfDone(folder / "half", stack)
        command += [str(ROOT / "tests/spark/cluster_driver.py"), one.url, str(folder), port]
        driver = stack.enter_context(Process(command, folder / "spark.log", environment=env))
        yield Cluster(one, rows, half, folder, driver)


def by_job(summaries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {summary["job"]: summary for summary in summaries}


def files(target: Path) -> set[str]:
    return {path.name for path in target.glob("day=*/*.parquet")}


def numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
