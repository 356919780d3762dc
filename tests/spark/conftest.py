"""One Spark for all tests of this folder, because its start takes as long as most of the tests together.

Spark tries a failed task three times, as on a cluster, and writes its own files into a temporary folder.
"""

import os
import shutil
from collections.abc import Iterator

import pytest

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.session import ensure_java
from tests.kit.servers import absent
from tests.spark import daemon
from tests.spark.stores import Site, fill, new_url, site

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from celery_wheel.pipeline.session import session
from tests.spark.java_options import java_options, settings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore resource warnings, and give the tests more time.

    PySpark leaves the pipes of its Java, and sockets of its workers, to the garbage collector. A test that times out
    while the JVM answers leaves a connection that no other test can use; on a busy machine the usual limit is too low.
    """
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let each Spark, also in processes of the tests, start with the options and the Python of this folder."""
    try:
        ensure_java()
    except SettingError:
        absent("Java")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = daemon.program(tmp_path_factory.mktemp("python"))
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    kept = cache.mkdir("spark") if cache else tmp_path_factory.mktemp("classes")
    os.environ["SPARK_SUBMIT_OPTS"] = java_options(kept)


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    spark = session("local[2,3]", name="tests", settings=settings(folder))
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()
    shutil.rmtree(folder)


url = pytest.fixture(new_url)


@pytest.fixture
def one(url: str) -> Iterator[Site]:
    with site(url) as found:
        yield found


@pytest.fixture
def filled(one: Site) -> Site:
    fill(one)
    return one
