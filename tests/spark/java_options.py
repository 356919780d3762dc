"""The options of each Java that the tests start, with an archive of the classes of Spark.

A JVM loads 15,000 classes before its first Spark job has ended. With them in an archive that Java maps into memory
(class data sharing), it starts in half of the time, and so do the processes that a test starts to kill them. A first
run of the tests writes the archive into the cache of pytest, where later ones find it.

python -m tests.spark.java_options FILE      write the archive
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.tables import read, write
from celery_wheel.store import open_store

#: In so short a life, the second compiler of Java and its parallel collectors take more time than they save. Without
#: that compiler, Java would reserve 48 MB for compiled code only, and discard and compile again what does not fit.
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"


def settings(folder: Path | str) -> dict[str, str]:
    return {
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",  # for its log
    }


def java_options(cache: Path) -> str:
    """Return the options; writes the archive unless the folder has one of this Java and this PySpark."""
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    release = Path(java or "").resolve()
    identity = f"{release} {release.stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__}"
    archive = cache / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"
    with (cache / "lock").open("w") as lock:  # one of the processes of pytest-xdist writes it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            for old in cache.glob("*.jsa*"):
                old.unlink()
            part = archive.with_suffix(".jsa.part")
            options = f"{SHORT_LIFE} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
            command = [sys.executable, "-m", "tests.spark.java_options", str(part)]
            root = Path(__file__).parents[2]
            environ = {**os.environ, "SPARK_SUBMIT_OPTS": options}
            subprocess.run(command, env=environ, cwd=root, check=True, capture_output=True)
            part.touch()  # a Java without such archives: later runs do not try again
            part.rename(archive)
    return f"{SHORT_LIFE} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.stat().st_size else SHORT_LIFE


def load_classes(spark: SparkSession, folder: str) -> None:
    """Use what the tests use: tables of each format, sums, joins and sketches, and the data source in Python."""
    rows = spark.range(100).select(f.expr("id % 7 AS k"), "id", f.expr("timestamp_seconds(id) AS at"))
    found = rows.groupBy("k").agg(f.count("*"), f.max("id"), f.percentile_approx("at", 0.5), f.countDistinct("at"))
    found.join(rows.select("k").distinct(), "k", "full").orderBy("k").collect()
    for kind in ("parquet", "json", "csv"):
        rows.write.partitionBy("k").format(kind).save(f"{folder}/{kind}")
        spark.read.format(kind).load(f"{folder}/{kind}").where("k = 1").count()
    url = f"sqlite:///{folder}/wheel.sqlite3"
    with closing(open_store(url)):
        tasks = rows.selectExpr("'app.remind' AS task", "to_json(array(id)) AS args", "at AS eta", "'mail' AS queue")
        write(tasks, "one", url)
        read(spark, "history", url).where("queue = 'mail'").count()
    stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/parquet").writeStream.format("parquet")
    stream = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    stream.start(f"{folder}/stream").awaitTermination()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        started = session("local[2]", name="classes", settings=settings(scratch))
        load_classes(started, scratch)
        java = SparkContext._gateway.proc  # type: ignore[union-attr]  # PySpark leaves it, and it writes at its end
        started.stop()
        java.stdin.close()
        java.wait()
