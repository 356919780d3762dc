"""Programs that the tests start as processes: a job by spark-submit, and jobs over Spark Connect.

python -m tests.spark.programs remote REMOTE URL ROWS TARGET     run schedule, tail, archive and lateness, then count
                                                                the rows of both tables: five lines of JSON
spark-submit tests/spark/programs.py tail URL TARGET CHECKPOINT write all of the history
"""

from __future__ import annotations

import json
import sys

from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.tables import read, tail


def count(remote: str, url: str) -> None:
    spark = session(remote=remote)
    history = read(spark, "history", url, partitions=2)
    of = {row.outcome: row["count"] for row in history.where("lateness_ms > 0").groupBy("outcome").count().collect()}
    print(json.dumps({"pending": read(spark, "pending", url).count(), "history": history.count(), **of}))
    spark.stop()


def jobs(remote: str, url: str, rows: str, target: str) -> None:
    common = ["--remote", remote, "--store", url, "--json"]
    named = ["--rows", rows, "--id", "nr", "--task", "app.remind", "--queue", "mail", "--batch", "one"]
    main(["schedule", *common, *named], standalone_mode=False)
    main(["tail", *common, "--output", target], standalone_mode=False)
    main(["archive", *common, "--output", f"{target}-archive"], standalone_mode=False)
    late = ["lateness", "--remote", remote, "--json", "--input", f"{target}-archive"]
    main([*late, "--output", f"{target}-lateness"], standalone_mode=False)
    count(remote, url)


def tail_all(url: str, target: str, checkpoint: str) -> None:
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    tail(spark, url, target, checkpoint, maxRows=400, partitions=8).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    {"remote": jobs, "tail": tail_all}[sys.argv[1]](*sys.argv[2:])
