"""The settings of a Spark for small data, with folders of the test."""

from __future__ import annotations

from pathlib import Path


def settings(folder: Path | str) -> dict[str, str]:
    return {
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",  # for its log
    }
