"""The wheel that `pip install` makes of this project has every file of the packages, and the same bytes each time."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from celery_wheel.app import WheelApp
from celery_wheel.values import __version__

ROOT = Path(__file__).parents[2]
PACKAGES = ("celery_wheel", "django_wheel")
#: The files that setuptools reads to build: a copy, because a build leaves files behind.
SOURCES = (*PACKAGES, "pyproject.toml", "README.md", "LICENSE", "pyspark_wheel.py")

#: An instant of no meaning, as `make dist` gives the one of the commit.
BUILT_AT = {"SOURCE_DATE_EPOCH": "1700000000"}

BUILD = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"


def build_in(folder: Path) -> Path:
    for name in SOURCES:
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, copy, copy_function=shutil.copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    command = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=os.environ | BUILT_AT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_in(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def built(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def files(package: str) -> set[str]:
    paths = (path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.mark.slow
def test_the_same_commit_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    again = build_in(tmp_path)  # the files were copied anew, so each has another time
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_carries_every_file_of_the_package(package: str, built: set[str]) -> None:
    assert files(package) - built == set()
    assert f"{package}/py.typed" in built, "type checkers ignore the annotations of a package without it"


def test_a_type_checker_knows_the_wheel_of_an_app() -> None:
    assert inspect.get_annotations(WheelApp.wheel.fget)["return"] == "Wheel"


@pytest.mark.parametrize("kind", [".lua", ".html", ".css", ".js", "/migrations/0001_initial.py", "pyspark_wheel.py"])
def test_the_wheel_carries_files_of_each_kind(kind: str, built: set[str]) -> None:
    assert any(name.endswith(kind) for name in built)


@pytest.mark.parametrize("version", ["4.5.4", "5.2.1", "6.4.0", "7.4.0", "8.1.0", "9.0.0"])
def test_the_extra_for_redis_keeps_the_client_that_a_project_has(version: str) -> None:
    """Pip replaces an installed version that a requirement excludes, kombu's own extra among them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = [Requirement(text) for text in extras["redis"]]
    assert needed[0].name == "redis"
    assert needed[0].specifier.contains(version)
    assert not needed[0].specifier.contains("5.0.2"), "kombu excludes it"


def test_the_extra_for_redis_installs_whatever_kombus_transport_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    theirs = [Requirement(text) for text in requires("kombu") or ()]
    names = {one.name for one in theirs if one.marker is not None and one.marker.evaluate({"extra": "redis"})}
    names -= {one.name for one in theirs if one.marker is None}
    assert "redis" in names
    assert names <= {Requirement(text).name for text in extras["redis"]}


def test_each_requirement_that_the_version_matrix_lowers_has_a_lower_bound() -> None:
    """Without a bound an old environment keeps a release of ten years ago, which older tools then have to follow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = {"demo", "docs", "fuzz", "lint", "test", "spark", "spark-jre"}  # for development, or not in the matrix
    extras = [texts for name, texts in project["optional-dependencies"].items() if name not in others]
    needed = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    assert [str(one) for one in needed if not any(each.operator == ">=" for each in one.specifier)] == []


def test_the_wheel_carries_nothing_else(built: set[str]) -> None:
    tops = {name.split("/")[0] for name in built}
    assert {top for top in tops if not top.endswith(".dist-info")} == {*PACKAGES, "pyspark_wheel.py"}


@pytest.mark.slow
def test_spark_can_import_the_wheel_as_it_is(wheel: Path) -> None:
    """``spark-submit --py-files`` puts the file itself on the path of the executors."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pyspark_wheel; import celery_wheel.pipeline.source.write;"
        "from celery_wheel.pipeline.jobs import archive, forecast, lateness, reconcile, schedule, tail, tune;"
        "print({one.__file__.partition('.whl/')[0] for one in map(sys.modules.get, sys.argv[2:])})"
    )
    names = ["pyspark_wheel", "celery_wheel.store.sql.schema", "celery_wheel.pipeline.source.write"]
    command = [sys.executable, "-c", program, str(wheel), *names]
    done = subprocess.run(command, cwd=wheel.parent.parent, check=True, capture_output=True, text=True)
    assert done.stdout == f"{{'{str(wheel).removesuffix('.whl')}'}}\n"


def test_the_readme_of_the_index_has_no_relative_link_and_the_metadata_name_the_repository(tmp_path: Path) -> None:
    for name in ("README.md", "pyproject.toml", "celery_wheel/values/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    address, tag = "https://forge.example/wheel/wheel", f"v{__version__}"
    command = [sys.executable, str(ROOT / "scripts" / "for_index.py"), address]
    wrong = subprocess.run([*command, "v0.0"], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (wrong.returncode, (tmp_path / "README.md").read_text()) == (1, (ROOT / "README.md").read_text())
    assert f"tag {tag}, or change the version" in wrong.stderr
    subprocess.run([*command, tag], cwd=tmp_path, check=True)
    targets = re.findall(r"\]\(([^)]+)\)", (tmp_path / "README.md").read_text())
    assert [target for target in targets if not target.startswith("https://")] == []
    assert f"{address}/raw/{tag}/docs/images/wheel-page.png" in targets
    assert f"{address}/blob/{tag}/docs/tasks.md" in targets
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]["Source"] == address
