"""The arrows between the parts run one way, and a light import stays light."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Importing the left side must load none of the right side. Kombu itself imports Django where that is installed.
NEVER = {
    "celery_wheel": ["celery", "kombu", "sqlalchemy", "django", "redis", "psycopg", "celery_wheel.app"],
    "celery_wheel.testing.plugin": [
        "celery",
        "kombu",
        "sqlalchemy",
        "django",
        "celery_wheel.app",
        "celery_wheel.store",
    ],
    "celery_wheel.timing": ["celery", "kombu", "sqlalchemy", "django", "redis", "celery_wheel.store"],
    "celery_wheel.store.model": ["celery", "kombu", "sqlalchemy", "django", "celery_wheel.timing"],
    "celery_wheel.store": [
        "celery",
        "kombu",
        "django",
        "redis",
        "psycopg",
        "celery_wheel.engine",
        "celery_wheel.broker",
    ],
    "celery_wheel.store.ports": ["celery", "kombu", "sqlalchemy", "django", "redis", "celery_wheel.engine"],
    "celery_wheel.store.sql": ["celery", "kombu", "django", "redis", "psycopg", "celery_wheel.engine"],
    "celery_wheel.store.opening": ["celery", "kombu", "django", "redis", "psycopg", "celery_wheel.engine"],
    "celery_wheel.store.sqlite.place": ["celery", "kombu", "django", "redis", "psycopg", "celery_wheel.engine"],
    "celery_wheel.store.browse": ["celery", "kombu", "django", "redis", "psycopg", "celery_wheel.engine"],
    "celery_wheel.status": ["celery", "kombu", "django", "redis", "psycopg", "celery_wheel.engine"],
    "celery_wheel.control": ["celery", "kombu", "django", "redis", "psycopg", "celery_wheel.engine", "django_wheel"],
    "celery_wheel.engine.engine": ["celery", "kombu", "sqlalchemy", "django", "redis", "celery_wheel.broker"],
    "celery_wheel.engine.runner": ["celery", "kombu", "sqlalchemy", "django", "redis", "celery_wheel.broker"],
    "celery_wheel.broker.envelope": ["celery", "kombu", "sqlalchemy", "django", "redis"],
    "celery_wheel.broker.redis.edge": ["celery", "sqlalchemy", "django", "celery_wheel.app", "celery_wheel.beat"],
    "celery_wheel.engine.announce": ["celery", "kombu", "sqlalchemy", "django", "redis", "celery_wheel.node"],
    "celery_wheel.node.looking": ["celery", "kombu", "django", "redis", "celery_wheel.engine.engine"],
    "celery_wheel.node.revoking": ["celery", "django", "redis", "celery_wheel.engine.engine", "celery_wheel.beat"],
    "celery_wheel.node.node": ["celery_wheel.engine.engine", "celery_wheel.service", "celery_wheel.beat"],
    "celery_wheel.bulk": ["sqlalchemy", "celery_wheel.app", "celery_wheel.control", "celery_wheel.pipeline"],
    "celery_wheel.app": ["sqlalchemy", "redis", "celery_wheel.engine.engine"],
    "celery_wheel.pipeline": ["pyspark", "pyarrow", "pandas", "celery", "django"],
    "celery_wheel.pipeline.cli": ["pyspark", "pyarrow", "pandas", "matplotlib", "django"],
    "celery_wheel.pipeline.results": ["pyspark", "pyarrow", "celery", "sqlalchemy", "django"],
    "celery_wheel.pipeline.figures": ["pyspark", "pyarrow", "celery", "sqlalchemy", "django"],
    "celery_wheel.pipeline.figures.lateness": ["pyspark", "py4j", "celery", "sqlalchemy", "django"],
    "celery_wheel.pipeline.figures.forecast": ["pyspark", "py4j", "celery", "sqlalchemy", "django"],
    "celery_wheel.pipeline.geometry": ["pyspark", "celery", "sqlalchemy", "django"],
    "celery_wheel.pipeline.session": ["pyspark", "pyarrow", "celery", "django"],
    "celery_wheel.cli": ["sqlalchemy", "redis", "rich", "celery_wheel.engine.engine"],
}


def test_only_the_pipeline_knows_spark() -> None:
    knows = [
        path.relative_to(ROOT).as_posix()
        for package in ("celery_wheel", "django_wheel")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"^\s*(import|from) (pyspark|pyarrow)", path.read_text(), re.MULTILINE)
    ]
    assert knows
    assert all(name.startswith("celery_wheel/pipeline/") for name in knows), knows


@pytest.mark.parametrize("module", sorted(NEVER))
def test_no_arrow_runs_back(module: str) -> None:
    program = f"import sys, {module}; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    found = [name for name in NEVER[module] if any(one == name or one.startswith(name + ".") for one in loaded)]
    assert not found, f"importing {module} loads {found}"


#: Rooms that know the tables: the store, the models (they are the tables), and the pipeline's source, which reads parts
#: of them in parallel.
KNOW_TABLES = ("celery_wheel/store/", "django_wheel/models/", "celery_wheel/pipeline/source/")
TABLES = re.compile(
    r"^\s*(from|import) celery_wheel\.store\.(schema|statements|fields|prepared|sql|database|changes|browse|loads"
    r"|handover|resharding|maintenance|sqlite|postgresql)\b"
    r"|^\s*from celery_wheel\.store import [^\n]*\b(schema|statements|browse|loads|handover|maintenance)\b"
    r"|^\s*from sqlalchemy import [^\n]*\b(Table|Column|Connection|select|insert|update|delete|func)\b"
    r"|\bstore\.database\b",
    re.MULTILINE,
)


def test_only_the_store_knows_its_tables() -> None:
    """Everything else asks through ``celery_wheel.store.ports``."""
    paths = [
        path.relative_to(ROOT).as_posix()
        for package in ("celery_wheel", "django_wheel", "example_project")
        for path in (ROOT / package).rglob("*.py")
        if TABLES.search(path.read_text())
    ]
    assert any(name.startswith("celery_wheel/store/") for name in paths), "the pattern finds what it is for"
    assert [name for name in sorted(paths) if not name.startswith(KNOW_TABLES)] == []
