"""The driver of ``tests.spark.cluster``.

spark-submit tests/spark/cluster_driver.py URL FOLDER PORT    each job prints JSON. PORT: that of its Spark Connect

Killed, it leaves half done a load, a stream into a store, and a run of ``archive``. Each has two parts, of which one is
written, and the other waits for ever. FOLDER/half has a store of each, and the files of the stream.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from celery_wheel.pipeline import archive as archive_module
from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.tables import tail, write
from tests.spark import connect_client, streamed
from tests.spark.test_write import ROWS, reminders


def drive(url: str, folder: str, port: str) -> None:
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    main(["archive", "--json", "--store", url, "--output", f"{folder}/archive"], standalone_mode=False)
    connect_client.count(spark, url)
    let_a_client_run_the_jobs(f"{folder}/client", port)
    leave_half_done(spark, Path(folder, "half"))
    tail(spark, url, f"{folder}/history", f"{folder}/checkpoint", maxRows=400, partitions=8).awaitTermination()
    spark.stop()


def let_a_client_run_the_jobs(folder: str, port: str) -> None:
    """Run the jobs in a new process, without the variables by which spark-submit makes this one a driver."""
    environ = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "PYTHONPATH", "TMPDIR")}
    command = [sys.executable, connect_client.__file__, f"sqlite:///{folder}/wheel.sqlite3", folder]
    command += [f"sc://127.0.0.1:{port}"]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    summaries = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print(json.dumps({"job": "client", "summaries": summaries}), flush=True)


def half_done_url(folder: Path, name: str) -> str:
    return f"sqlite:///{folder}/{name}.sqlite3"


def leave_half_done(spark: SparkSession, folder: Path) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", "false")  # else Spark joins two small tasks into one
    archive_module.sort_events = stop_one_task(archive_module.sort_events)
    arguments = ["archive", "--store", half_done_url(folder, "archived"), "--output", str(folder / "archive")]
    streamed.start(spark, half_done_url(folder, "streamed"), folder, through=streamed.stay)
    Thread(target=load, args=(spark, folder), daemon=True).start()
    Thread(target=CliRunner().invoke, args=(main, arguments), daemon=True).start()


def load(spark: SparkSession, folder: Path) -> None:
    rows = reminders(spark, ROWS, 2)
    write(rows.mapInArrow(streamed.stay_in_part_1, rows.schema), "monday", half_done_url(folder, "loaded"), key="order")


def stop_one_task(sort_events: Any) -> Any:
    def slow(rows: DataFrame, _files: int) -> DataFrame:
        return sort_events(rows, 2).mapInArrow(streamed.stay_in_part_1, rows.schema)

    return slow


if __name__ == "__main__":
    drive(*sys.argv[1:])
