"""A client of Spark Connect: runs all jobs, then counts the rows of both tables, by functions of the server's Python.

python tests/spark/connect_client.py URL FOLDER REMOTE    each prints JSON. FOLDER: rows.csv and executed.jsonl
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.jobs import JOBS
from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.tables import read


def run_jobs(url: str, folder: str, remote: str) -> None:
    stored, archive = ["--store", url], ["--input", f"{folder}/archive"]
    load = ["--rows", f"{folder}/rows.csv", "--id", "nr", "--task", "app.remind", "--queue", "mail", "--batch", "one"]
    options = {
        "schedule": [*stored, *load],
        "tail": [*stored, "--output", f"{folder}/history"],
        "archive": [*stored, "--output", f"{folder}/archive"],
        "compact": ["--archive", f"{folder}/archive"],
        "erase": ["--archive", f"{folder}/archive", "--task-id", "of nobody"],
        "lateness": [*archive, "--output", f"{folder}/lateness"],
        "forecast": [*stored, "--output", f"{folder}/forecast"],
        "tune": [*archive, "--output", f"{folder}/tune"],
        "reconcile": [*stored, "--executed", f"{folder}/executed.jsonl", "--output", f"{folder}/audit"],
    }
    for job in JOBS:
        main([job, "--remote", remote, "--json", *options[job]], standalone_mode=False)
    spark = session(remote=remote)
    count(spark, url)
    spark.stop()


def count(spark: SparkSession, url: str) -> None:
    history = read(spark, "history", url, partitions=2)
    of = {row.outcome: row["count"] for row in history.where("lateness_ms > 0").groupBy("outcome").count().collect()}

    @f.udf("string")
    def place(number: int) -> str:
        import celery_wheel

        return str(celery_wheel.__file__)

    [[code]] = spark.range(1).select(place("id")).collect()
    found = {"pending": read(spark, "pending", url).count(), "history": history.count(), **of, "code": code}
    print(json.dumps({"job": "count", **found}), flush=True)


if __name__ == "__main__":
    run_jobs(*sys.argv[1:])
