"""The arrows between the parts run one way, and a light import stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    "celery_wheel.store.sql": ["celery", "kombu", "django", "redis", "psycopg", "celery_wheel.engine"],
    "celery_wheel.store.opening": ["celery", "kombu", "django", "redis", "psycopg", "celery_wheel.engine"],
    "celery_wheel.store.sqlite_place": ["celery", "kombu", "django", "redis", "psycopg", "celery_wheel.engine"],
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
    "celery_wheel.app": ["sqlalchemy", "redis", "celery_wheel.engine.engine"],
    "celery_wheel.cli": ["sqlalchemy", "redis", "rich", "celery_wheel.engine.engine"],
}


@pytest.mark.parametrize("module", sorted(NEVER))
def test_no_arrow_runs_back(module: str) -> None:
    program = f"import sys, {module}; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    found = [name for name in NEVER[module] if any(one == name or one.startswith(name + ".") for one in loaded)]
    assert not found, f"importing {module} loads {found}"
