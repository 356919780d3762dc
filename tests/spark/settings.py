"""The settings of a Spark for small data: a Java that compiles little, and folders of the test."""

from __future__ import annotations

from pathlib import Path

#: In so short a life, the second compiler of Java and its parallel collectors take more time than they save.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def settings(folder: Path | str) -> dict[str, str]:
    return {
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    }
