"""The stores that pass the suite. Another one is a line in ``SQL`` and a function that makes it in a folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from celery_wheel.store import open_store
from celery_wheel.store.port import Store
from celery_wheel.store.sql import SqlStore

ROOT = Path(__file__).parents[2]
SHARDS = 2

sys.path.insert(0, str(ROOT))  # for tests.simulation, however pytest was started

#: The simulation's store in memory passes the suite too, so that what is proved on it holds for the others.
HAS_MODEL = (ROOT / "tests/simulation/model_store.py").exists()


@dataclass(frozen=True)
class SqlBackend:
    """A SQL database, known by its URL, so that another process can open it too."""

    url: str
    durability: str = "disk"

    def __call__(self) -> SqlStore:
        return open_store(self.url, shards=SHARDS, durability=self.durability)


def sqlite(folder: Path) -> SqlBackend:
    return SqlBackend(f"sqlite:///{folder}/wheel.sqlite3")


def sqlite_memory(folder: Path) -> SqlBackend:
    return SqlBackend(f"sqlite:///{folder}/wheel.sqlite3", durability="memory")


def model(_folder: Path | None = None) -> Callable[[], Store]:
    module = importlib.import_module("tests.simulation.model_store")
    disk = module.Disk()
    return lambda: module.ModelStore(disk)


SQL = [pytest.param(sqlite, id="sqlite"), pytest.param(sqlite_memory, id="sqlite-memory")]
ALL = [*SQL, *([pytest.param(model, id="model")] if HAS_MODEL else [])]
