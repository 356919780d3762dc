"""Programs that the tests start as processes: the jobs over Spark Connect and by spark-submit.

python -m tests.spark.programs jobs URL FOLDER JOBS --remote REMOTE   run jobs, then count the rows of both tables; each
                                                                 prints JSON. FOLDER: rows.csv and executed.jsonl
spark-submit tests/spark/programs.py cluster URL FOLDER          archive and count, then write all of the history
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.tables import read, tail


def jobs(url: str, folder: str, names: str, *where: str) -> None:
    stored, archive = ["--store", url], ["--input", f"{folder}/archive"]
    load = ["--rows", f"{folder}/rows.csv", "--id", "nr", "--task", "app.remind", "--queue", "mail", "--batch", "one"]
    options = {
        "schedule": [*stored, *load],
        "tail": [*stored, "--output", f"{folder}/history"],
        "archive": [*stored, "--output", f"{folder}/archive"],
        "compact": ["--archive", f"{folder}/archive"],
        "lateness": [*archive, "--output", f"{folder}/lateness"],
        "forecast": [*stored, "--output", f"{folder}/forecast"],
        "tune": [*archive, "--output", f"{folder}/tune"],
        "reconcile": [*stored, "--executed", f"{folder}/executed.jsonl", "--output", f"{folder}/audit"],
    }
    for job in names.split(","):
        main([job, *where, "--json", *options[job]], standalone_mode=False)
    spark = session(remote=where[-1])
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


def cluster(url: str, folder: str) -> None:
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    main(["archive", "--json", "--store", url, "--output", f"{folder}/archive"], standalone_mode=False)
    count(spark, url)
    tail(spark, url, f"{folder}/history", f"{folder}/checkpoint", maxRows=400, partitions=8).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    {"jobs": jobs, "cluster": cluster}[sys.argv[1]](*sys.argv[2:])
