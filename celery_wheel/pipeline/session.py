"""A SparkSession with the settings that the jobs need, wherever it runs.

::

    session(master="local[2]")          in this process, with a Java beside it
    session(remote="sc://host:15002")   of a Spark Connect server; no Java here
    session()                           as spark-submit or SPARK_REMOTE say; else local[*]

    ALWAYS   set in each: the jobs compare instants, and make sketches of many groups
    LOCAL    set only where Spark runs in this process: a cluster's own settings stay

``session`` returns the running session, if there is one, with ALWAYS set. It is then the active session of the calling
thread, which a write needs: Spark looks there for a data source in Python. In each thread of your own that writes, call
``session()`` first, or write with ``celery_wheel.pipeline.tables.write``.

``session`` registers the data source, too. Spark looks for data sources once in the life of a driver: where the Python
that looks is killed, Spark would know none until its end, and a stream that restarts in this driver could not start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Can be set while a session runs, on Spark Connect too.
ALWAYS = {
    "spark.sql.session.timeZone": "UTC",  # days and hours of results are those of UTC on every machine
    "spark.sql.python.filterPushdown.enabled": "true",  # so that the option pushdown may be used
    # Instants in Parquet keep their zone and statistics, by which readers skip files: INT96 has neither.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # For sketches and percentiles of many groups: the default of 128 sorts all rows instead, which takes 24 s, not 7.6.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "200000",
}

#: For a Spark in this process, which writes nothing into the working folder.
LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

HOW_TO_INSTALL = "PySpark is not installed; run: pip install 'celery-wheel[spark]'"


def session(
    master: str | None = None,
    remote: str | None = None,
    *,
    name: str = "celery-wheel",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a SparkSession that can run the jobs.

    Args:
        master: cluster to run on: ``local[2]``, ``spark://host:7077``, ``yarn``, …; ``local`` is this machine.
        remote: address of a Spark Connect server, ``sc://host:15002``.
        settings: Spark's own settings, which override those of this module.

    Raises:
        SettingError: PySpark or a Java is missing, or both a master and a remote are named.
    """
    if master and remote:
        raise SettingError(f"master and remote exclude each other, got {master} and {remote}")
    if find_spec("pyspark") is None:
        raise SettingError(HOW_TO_INSTALL)
    from pyspark.sql import SparkSession

    from celery_wheel.pipeline.source import WheelDataSource

    config = {**ALWAYS, **(settings or {})}
    builder = SparkSession.builder.appName(name)
    if remote or (not master and os.environ.get("SPARK_REMOTE")):
        builder = builder.remote(remote) if remote else builder
    else:
        ensure_java()
        if not os.environ.get("PYSPARK_GATEWAY_PORT"):  # else spark-submit started this process and chose the master
            master = master or "local[*]"
            builder = builder.master(master)
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            config = {**LOCAL, **config} if master.startswith("local") else config
        for key, value in config.items():
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for key in ALWAYS:
        spark.conf.set(key, config[key])
    spark.dataSource.register(WheelDataSource)
    activate(spark)
    return spark


def activate(spark: SparkSession) -> None:
    """Make the session the active one of this thread: of PySpark's interface, only ``createDataFrame`` does it."""
    spark.createDataFrame([], "nothing int")
