"""The same on a cluster: over Spark Connect, and by spark-submit, where an executor and then the driver are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pyspark
import pytest
from pyspark.sql import SparkSession

from celery_wheel.pipeline.tables import read, tail
from tests.postgres import PostgresServer
from tests.servers import free_port, wait_until
from tests.spark.stores import fill, site
from tests.stores.samples import NOW

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "spark" / "programs.py"
PATIENCE_S = 150.0

#: Rows that leave, in so many settlements.
ROWS, SETTLEMENTS = 2_000, 100


@contextmanager
def running(command: list[str], folder: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all that it starts, in a group of their own; all of it is gone at the end."""
    folder.mkdir(exist_ok=True)
    env = {**os.environ, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(folder / "work"), "TMPDIR": str(folder), **environ}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def submit(url: str, tmp_path: Path) -> list[str]:
    confs = ["spark.ui.enabled=false", f"spark.local.dir={tmp_path}/local", f"spark.sql.warehouse.dir={tmp_path}/w"]
    confs += ["spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1", "spark.driver.host=127.0.0.1"]
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
    command += [part for conf in confs for part in ("--conf", conf)]
    return [*command, str(PROGRAM), "tail", url, f"{tmp_path}/history", f"{tmp_path}/checkpoint"]


class Gate:
    """While it is closed, nobody reads the rows of tasks: what a micro-batch has begun, it does not end."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def closed(self) -> Iterator[None]:
        with psycopg.connect(self._url) as connection:
            connection.execute("LOCK TABLE wheel_timer IN ACCESS EXCLUSIVE MODE")
            yield
            connection.rollback()

    def waiting(self) -> bool:
        """Whether anybody stands before it. In a transaction of its own: what it shows stays the same in one."""
        with psycopg.connect(self._url) as connection:
            [count] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone() or [0]
        return bool(count)


def test_each_row_is_written_once_though_an_executor_and_the_driver_are_killed(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    with site(postgres.new_database()) as one:
        rows = one.holder.accept(*range(NOW, NOW + ROWS))
        step = ROWS // SETTLEMENTS
        for start in range(0, ROWS, step):
            one.leave(rows[start : start + step], NOW + start)
        gate, folder = Gate(one.url), tmp_path / "submit"
        target = tmp_path / "history"
        with running(submit(one.url, tmp_path), folder) as driver:

            def is_under_way() -> bool:
                assert driver.poll() is None, (folder / "log").read_text(errors="replace")[-4_000:]
                return gate.waiting()

            wait_until(lambda: driver.poll() is not None or len(files(target)) > 1, "the first files", PATIENCE_S)
            with gate.closed():
                wait_until(is_under_way, "a task waits to read", PATIENCE_S)
                kill_one_executor(driver.pid)
            ended = tmp_path / "checkpoint" / "commits"
            wait_until(lambda: driver.poll() is not None or numbers(ended), "another executor took over", PATIENCE_S)
            with gate.closed():
                wait_until(is_under_way, "a task waits to read", PATIENCE_S)
                under_way = max(numbers(tmp_path / "checkpoint" / "offsets")) - max(numbers(ended))
                os.killpg(driver.pid, signal.SIGKILL)
        assert under_way == 1, "it was killed in the middle of a micro-batch"

        tail(spark, one.url, str(target), str(tmp_path / "checkpoint")).awaitTermination()
        found = Counter(row.id for row in spark.read.parquet(str(target)).select("id").collect())
        assert found == Counter(row.id for row in read(spark, "history", one.url).select("id").collect())
    assert found == Counter(row.id for row in rows)


def kill_one_executor(driver: int) -> None:
    found = []
    for one in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # some come and go
            found += [one] if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()) else []
    [first, *others] = found
    assert others, "there are two"
    first.kill()


def files(target: Path) -> set[str]:
    return {path.name for path in target.glob("day=*/*.parquet")}


def numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]


@pytest.fixture
def connect(java: None, tmp_path: Path) -> Iterator[str]:
    """Address of a Spark Connect server."""
    port, folder = free_port(), tmp_path / "server"
    command = [str(HOME / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    confs = [f"spark.connect.grpc.binding.port={port}", "spark.ui.enabled=false", f"spark.local.dir={tmp_path}/local"]
    confs += [f"spark.sql.warehouse.dir={tmp_path}/w", "spark.sql.shuffle.partitions=2"]
    command += ["--master", "local[2]", *(part for conf in confs for part in ("--conf", conf))]
    with running(command, folder) as server:

        def answers() -> bool:
            assert server.poll() is None, (folder / "log").read_text(errors="replace")[-4_000:]
            connections = psutil.Process(server.pid).net_connections("tcp")
            return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)

        wait_until(answers, "the Spark Connect server", PATIENCE_S)
        yield f"sc://127.0.0.1:{port}"


def test_jobs_read_and_write_a_store_over_spark_connect(connect: str, tmp_path: Path) -> None:
    """In a process that was nothing else before: which kind of Spark there is, is not known when a job is imported."""
    rows, target = tmp_path / "rows.csv", tmp_path / "history"
    rows.write_text("nr,eta\n1,2031-01-01 08:00\n2,2031-01-01 09:00\n3,never\n")
    with site(f"sqlite:///{tmp_path}/wheel.sqlite3") as one:
        fill(one)
        environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        command = [sys.executable, "-m", "tests.spark.programs", "remote", connect, one.url, str(rows), str(target)]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3_000:]
        [load] = one.store.loads.listed()
    scheduled, tailed, archived, late, counted = (json.loads(line) for line in done.stdout.splitlines())
    assert (scheduled["loaded"], scheduled["rejects"]) == (2, {"eta cannot be read: never": 1})
    assert (load.load.rows, load.rows) == (2, 2)
    assert (tailed["rows"], archived["events"], late["tasks"]) == (9, 9, 7)
    assert files(target)
    assert counted == {"pending": 4, "history": 9, "dispatched": 7}
