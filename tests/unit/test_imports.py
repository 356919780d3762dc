"""Imports run one way: each room imports only rooms of the floors below its own. A light import stays light."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.rooms import FLOOR

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_wheel"

#: Names that rooms import from the package itself, and the rooms that these names stand for. The package loads its
#: public names lazily, so it stands above all rooms and imports any of them.
OF_PACKAGE = {"Celery": "app", "install": "app", "wheel_of": "control"}

#: Importing the left side must load none of the right side. Kombu itself imports Django where that is installed.
NEVER = {
    "celery_wheel": "celery kombu sqlalchemy django redis psycopg celery_wheel.app",
    "celery_wheel.testing.plugin": "celery kombu sqlalchemy django celery_wheel.app celery_wheel.store",
    "celery_wheel.timing": "celery kombu sqlalchemy django redis celery_wheel.store",
    "celery_wheel.recurring": "celery celery_wheel.recurring.recurrence",
    "celery_wheel.recurring.local": "celery kombu sqlalchemy django dateutil",
    "celery_wheel.recurring.document": "sqlalchemy ephem holidays celery_wheel.store",
    "celery_wheel.store.model": "celery kombu sqlalchemy django celery_wheel.timing",
    "celery_wheel.store": "celery kombu django redis psycopg celery_wheel.engine celery_wheel.broker",
    "celery_wheel.store.ports": "celery kombu sqlalchemy django redis celery_wheel.engine",
    "celery_wheel.store.sql.store": "celery kombu django redis psycopg celery_wheel.engine",
    "celery_wheel.store.url": "celery kombu django redis psycopg celery_wheel.engine",
    "celery_wheel.store.sqlite.database": "celery kombu django redis psycopg celery_wheel.engine",
    "celery_wheel.store.sql.browse": "celery kombu django redis psycopg celery_wheel.engine",
    "celery_wheel.overview": "celery kombu django redis psycopg celery_wheel.engine",
    "celery_wheel.conf": "celery kombu django cryptography",
    "celery_wheel.control": "celery kombu django redis psycopg celery_wheel.engine django_wheel",
    "celery_wheel.engine.engine": "celery kombu sqlalchemy django redis celery_wheel.broker",
    "celery_wheel.engine.runner": "celery kombu sqlalchemy django redis celery_wheel.broker",
    "celery_wheel.metrics.samples": "celery kombu sqlalchemy django prometheus_client opentelemetry",
    "celery_wheel.scheduler.monitoring": "prometheus_client opentelemetry",
    "celery_wheel.broker.envelope": "celery kombu sqlalchemy django redis",
    "celery_wheel.broker.redis.edge": "celery sqlalchemy django celery_wheel.app celery_wheel.beat",
    "celery_wheel.engine.announce": "celery kombu sqlalchemy django redis celery_wheel.scheduler.remote_control",
    "celery_wheel.scheduler.remote_control.inspection": "celery kombu django redis celery_wheel.engine.engine",
    "celery_wheel.scheduler.remote_control.revocation": "celery django redis "
    "celery_wheel.engine.engine celery_wheel.beat",
    "celery_wheel.scheduler.remote_control.node": "celery_wheel.engine.engine celery_wheel.scheduler.service "
    "celery_wheel.beat",
    "celery_wheel.bulk_load": "sqlalchemy celery_wheel.app celery_wheel.control celery_wheel.pipeline",
    "celery_wheel.app": "sqlalchemy redis celery_wheel.engine.engine celery_wheel.worker",
    "celery_wheel.worker.run_reports": "sqlalchemy redis celery_wheel.engine celery_wheel.scheduler",
    "celery_wheel.pipeline": "pyspark pyarrow pandas celery django celery_wheel.cli",
    "celery_wheel.pipeline.cli": "pyspark pyarrow pandas matplotlib django celery_wheel.cli",
    "celery_wheel.archive": "pyspark pyarrow celery sqlalchemy django",
    "celery_wheel.results.reader": "pyspark pyarrow celery sqlalchemy django",
    "celery_wheel.results": "pyspark pyarrow celery sqlalchemy django",
    "celery_wheel.results.figures": "pyspark py4j celery sqlalchemy django",
    "celery_wheel.pipeline.cost_model": "pyspark celery sqlalchemy django",
    "celery_wheel.pipeline.session": "pyspark pyarrow celery django",
    "celery_wheel.cli": "sqlalchemy redis rich celery_wheel.engine.engine",
}


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each import of a room of the package, with its line: also those in functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [one.name for one in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} must import by its absolute name"
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "celery_wheel" and rest:
                room = rest.partition(".")[0]
                yield node.lineno, OF_PACKAGE.get(room, room)
            elif package == "django_wheel":
                yield node.lineno, package


def test_every_room_stands_on_a_floor() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(FLOOR) - {"django_wheel"}


@pytest.mark.slow
def test_a_module_imports_only_rooms_of_lower_floors() -> None:
    upward = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for line, room in imports_of(path):
            if own not in ("__init__", room) and FLOOR[room] >= FLOOR[own]:
                upward.append(f"{path.relative_to(ROOT)}:{line} imports {room}")
    assert upward == []


@pytest.mark.parametrize(
    ("library", "rooms"),
    [
        ("pyspark", ("celery_wheel/pipeline/",)),
        ("pyarrow", ("celery_wheel/archive/", "celery_wheel/pipeline/", "celery_wheel/results/")),
    ],
)
def test_only_the_pipeline_knows_spark_and_only_results_are_read_by_arrow(library: str, rooms: tuple[str, ...]) -> None:
    importing = [
        path.relative_to(ROOT).as_posix()
        for package in ("celery_wheel", "django_wheel")
        for path in (ROOT / package).rglob("*.py")
        if re.search(rf"^\s*(import|from) {library}", path.read_text(), re.MULTILINE)
    ]
    assert importing
    assert [name for name in importing if not name.startswith(rooms)] == []


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(NEVER))
def test_an_import_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    found = [name for name in NEVER[module].split() if any(one == name or one.startswith(name + ".") for one in loaded)]
    assert not found, f"importing {module} loads {found}"


#: Rooms that know the tables: the store, the models (they are the tables) with their migrations, and the pipeline's
#: source, which reads the tables in parallel parts.
KNOW_TABLES = (
    "celery_wheel/store/",
    "django_wheel/models.py",
    "django_wheel/migrations/",
    "celery_wheel/pipeline/source/",
)
TABLES = re.compile(
    r"^\s*(from|import) celery_wheel\.store\.(sql|sqlite|postgresql)\b"
    r"|^\s*from celery_wheel\.store import [^\n]*\b(sql|sqlite|postgresql)\b"
    r"|^\s*from sqlalchemy import [^\n]*\b(Table|Column|Connection|select|insert|update|delete|func)\b"
    r"|\bstore\.database\b",
    re.MULTILINE,
)


def test_only_the_store_knows_its_tables() -> None:
    """All other rooms use ``celery_wheel.store.ports``."""
    paths = [
        path.relative_to(ROOT).as_posix()
        for package in ("celery_wheel", "django_wheel", "example_project")
        for path in (ROOT / package).rglob("*.py")
        if TABLES.search(path.read_text())
    ]
    assert any(name.startswith("celery_wheel/store/") for name in paths), "the pattern matches imports of the store"
    assert [name for name in sorted(paths) if not name.startswith(KNOW_TABLES)] == []


@pytest.mark.slow
def test_a_scheduler_on_windows_says_that_it_does_not_run_there_and_a_producer_runs() -> None:
    program = (
        "import sys, celery.beat, celery.bin.celery, celery.fixups.django, kombu.transport.memory\n"
        "sys.platform = 'win32'\n"
        "import celery_wheel\n"
        "celery_wheel.Celery('shop', broker='memory://').send_task('app.report', countdown=3_600)\n"
        "try:\n    import celery_wheel.beat\n"
        "except ValueError as error:\n    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.stdout.startswith("a scheduler of celery-wheel must run on Linux or macOS: Windows lacks"), (
        found.stderr
    )
