"""The driver of ``tests.spark.cluster``.

spark-submit tests/spark/cluster_driver.py URL FOLDER PORT    each job prints JSON. PORT: that of its Spark Connect
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.tables import tail
from tests.spark import connect_client
from tests.spark.killed import leave_half_done


def drive(url: str, folder: str, port: str) -> None:
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    main(["archive", "--json", "--store", url, "--output", f"{folder}/archive"], standalone_mode=False)
    connect_client.count(spark, url)
    let_a_client_run_the_jobs(f"{folder}/client", port)
    leave_half_done(spark, Path(folder, "half"))
    tail(spark, url, f"{folder}/history", f"{folder}/checkpoint", maxRows=400, partitions=8).awaitTermination()
    spark.stop()


def let_a_client_run_the_jobs(folder: str, port: str) -> None:
    """Run the jobs in a new process, because the kind of session is unknown when a job is imported.

    Its environment has none of the variables by which spark-submit makes this process a driver.
    """
    environ = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "PYTHONPATH", "TMPDIR")}
    command = [sys.executable, connect_client.__file__, f"sqlite:///{folder}/wheel.sqlite3", folder]
    command += [f"sc://127.0.0.1:{port}"]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    summaries = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print(json.dumps({"job": "client", "summaries": summaries}), flush=True)


if __name__ == "__main__":
    drive(*sys.argv[1:])
