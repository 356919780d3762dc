"""The pipeline on a cluster: over Spark Connect, and by spark-submit, while an executor or the driver is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyspark
import pytest
from pyspark.sql import SparkSession

from celery_wheel.pipeline.jobs import JOBS
from celery_wheel.pipeline.tables import read, tail
from celery_wheel.store.model import NewRow
from tests.kit.holder import NOW
from tests.kit.patience import wait_until
from tests.kit.processes import Process
from tests.kit.servers import free_port
from tests.kit.servers.postgres import PostgresServer
from tests.spark.stores import Site, fill, site

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "spark" / "programs.py"
PATIENCE_S = 150.0

#: Rows to dispatch, and the number of settlements.
ROWS, SETTLEMENTS = 2_000, 100


def running(command: list[str], folder: Path, **environ: str) -> Process:
    """Return a process in a process group of its own; as a context manager, it kills the group at its end."""
    folder.mkdir(exist_ok=True)
    env = {"SPARK_HOME": str(HOME), "PYTHONPATH": str(ROOT)}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(folder / "work"), "TMPDIR": str(folder), **environ}
    return Process(command, folder / "spark.log", environment=env)


def submit(tmp_path: Path, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    confs = ["spark.ui.enabled=false", f"spark.local.dir={tmp_path}/local", f"spark.sql.warehouse.dir={tmp_path}/w"]
    confs += [f"spark.executor.extraJavaOptions={os.environ['SPARK_SUBMIT_OPTS']}", "spark.driver.host=127.0.0.1"]
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
    command += [part for conf in confs for part in ("--conf", conf)]
    return [*command, *options, str(PROGRAM), *arguments]


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


@dataclass
class Cluster:
    """A driver with two executors, which archives, counts, and then writes all of the history of a store."""

    one: Site
    rows: list[NewRow]
    folder: Path
    driver: Process

    def facts(self) -> dict[str, dict[str, Any]]:
        return summaries(self.driver.lines())


@pytest.fixture(scope="module")
def cluster(java: None, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A program that spark-submit has started, with the code of its executors in a file."""
    folder = tmp_path_factory.mktemp("cluster")
    code = str(folder / "code.zip")
    with zipfile.PyZipFile(code, "w") as archive:  # bytecode: each worker would compile a source file anew
        archive.writepy(str(ROOT / "celery_wheel"))
        archive.writepy(str(ROOT / "pyspark_wheel.py"))
    # Spark's own start of Python workers: that of the tests imports celery-wheel before Spark names the file.
    environ = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": ""}
    with site(postgres.new_database()) as one:
        rows = one.holder.accept(*range(NOW, NOW + ROWS))
        step = ROWS // SETTLEMENTS
        for start in range(0, ROWS, step):
            one.dispatch(rows[start : start + step], NOW + start)
        command = submit(folder, "cluster", one.url, str(folder), options=["--py-files", code])
        with running(command, folder / "submit", **environ) as driver:
            yield Cluster(one, rows, folder, driver)


def test_spark_submit_runs_a_job_on_executors_that_have_the_code_from_a_file(cluster: Cluster) -> None:
    driver = cluster.driver
    wait_until(lambda: "count" in cluster.facts() or not driver.is_alive(), "the job and the count", PATIENCE_S)
    found = cluster.facts()
    assert found.keys() == {"archive", "count"}, driver.said()[-4_000:]
    assert found["archive"]["events"] == found["count"]["history"] == ROWS
    assert "code.zip" in found["count"]["code"]


def test_each_row_is_written_once_after_an_executor_and_the_driver_are_killed(
    spark: SparkSession, cluster: Cluster
) -> None:
    one, driver, lock = cluster.one, cluster.driver, TableLock(cluster.one.url)
    target, checkpoint = cluster.folder / "history", cluster.folder / "checkpoint"

    def has_begun() -> bool:
        assert driver.is_alive(), driver.said()[-4_000:]
        return lock.has_waiters()

    wait_until(lambda: not driver.is_alive() or len(files(target)) > 1, "the first files", PATIENCE_S)
    with lock.held():
        wait_until(has_begun, "a task waits to read", PATIENCE_S)
        kill_one_executor(driver.pid)
    ended = checkpoint / "commits"
    wait_until(lambda: not driver.is_alive() or numbers(ended), "another executor took over", PATIENCE_S)
    with lock.held():
        wait_until(has_begun, "a task waits to read", PATIENCE_S)
        unfinished = max(numbers(checkpoint / "offsets")) - max(numbers(ended))
        driver.kill()
    assert unfinished == 1, "the driver was killed in the middle of a micro-batch"

    tail(spark, one.url, str(target), str(checkpoint)).awaitTermination()
    found = Counter(row.id for row in spark.read.parquet(str(target)).select("id").collect())
    assert found == Counter(row.id for row in read(spark, "history", one.url).select("id").collect())
    assert found == Counter(row.id for row in cluster.rows)


def kill_one_executor(driver: int) -> None:
    found = []
    for one in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # some children end meanwhile
            found += [one] if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()) else []
    [first, *others] = found
    assert others, "there are two executors"
    first.kill()


def files(target: Path) -> set[str]:
    return {path.name for path in target.glob("day=*/*.parquet")}


def numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]


@pytest.fixture
def connect(java: None, tmp_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server."""
    port, folder = free_port(), tmp_path / "server"
    command = [str(HOME / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    confs = [f"spark.connect.grpc.binding.port={port}", "spark.ui.enabled=false", f"spark.local.dir={tmp_path}/local"]
    confs += [f"spark.sql.warehouse.dir={tmp_path}/w", "spark.sql.shuffle.partitions=2"]
    command += ["--master", "local[2]", *(part for conf in confs for part in ("--conf", conf))]
    with running(command, folder) as server:

        def answers() -> bool:
            assert server.is_alive(), server.said()[-4_000:]
            connections = psutil.Process(server.pid).net_connections("tcp")
            return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)

        wait_until(answers, "the Spark Connect server", PATIENCE_S)
        yield f"sc://127.0.0.1:{port}"


def run_jobs(url: str, folder: Path, command: list[str], **environ: str) -> dict[str, dict[str, Any]]:
    """Run the command, which has to succeed; returns the summaries by job."""
    (folder / "rows.csv").write_text("nr,eta\n1,2031-01-01 08:00\n2,2031-01-01 09:00\n3,never\n")
    (folder / "executed.jsonl").write_text('{"task_id": "unknown", "started": "2031-01-01T08:00:00Z"}\n')
    with site(url) as one:
        fill(one)
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3_000:]
    return summaries(done.stdout.splitlines())


def summaries(printed: list[str]) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    return {line["job"]: line for line in lines}


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
    "count": ("history", 9),
}


def test_each_job_runs_over_spark_connect(connect: str, tmp_path: Path) -> None:
    """The jobs run in a new process, because the kind of session is unknown when a job is imported."""
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    url = f"sqlite:///{tmp_path}/wheel.sqlite3"
    names = ",".join(JOBS)
    command = [sys.executable, "-m", "tests.spark.programs", "jobs", url, str(tmp_path), names, "--remote", connect]
    found = run_jobs(url, tmp_path, command, **environ)
    assert {job: (name, found[job][name]) for job, (name, _) in FACTS.items()} == FACTS
    assert found.keys() == FACTS.keys() == {*JOBS, "count"}
    assert found["schedule"]["rejects"] == {"eta cannot be read": 1}
    assert (found["count"]["pending"], found["count"]["dispatched"]) == (4, 7)
    assert files(tmp_path / "history")
