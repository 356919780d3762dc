"""``open_store`` makes a missing store, and refuses an unusable one with a reason and a remedy."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore

OpenStore = Callable[..., SqlStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "wheel.sqlite3"


@pytest.fixture
def open_it(path: Path) -> Iterator[OpenStore]:
    """Open the store at ``path``; the fixture closes every store."""
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(closing(open_store(f"sqlite:///{path}", **options)))


def refusal(url: object, **options: Any) -> str:
    with pytest.raises(StoreUnusable) as caught:
        open_store(str(url), **options)
    return str(caught.value)


# -- making and finding --------------------------------------------------------------------------------


def test_a_store_is_made_once_and_found_again(open_it: OpenStore) -> None:
    first, second = open_it(shards=3), open_it(shards=3)
    assert first.uuid == second.uuid
    assert [first.state(shard).epoch for shard in range(3)] == [0, 0, 0]
    assert [lane.lane for lane in second.lanes(2)] == [0]


def test_opening_an_existing_store_writes_nothing(path: Path, open_it: OpenStore) -> None:
    open_it().close()
    before = path.read_bytes()
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")  # every other writer would wait
        open_it(create=False).state(0)
        open_it()
        writer.execute("ROLLBACK")
    assert path.read_bytes() == before


def test_a_store_is_opened_as_it_is_without_a_number_of_shards(open_it: OpenStore) -> None:
    open_it(shards=4)
    assert open_it(shards=None, create=False).shards == 4


def test_the_path_stays_when_the_process_changes_its_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    store = open_store("sqlite:///wheel.sqlite3")
    monkeypatch.chdir("/")
    store.acquire(0, "host-a", 0, 1)
    store.close()
    assert path.exists()
    assert path.with_name("wheel.sqlite3.shard-0.lock").exists()


def test_a_store_can_live_in_a_file_that_has_other_tables(path: Path, open_it: OpenStore) -> None:
    """A Django project with one file has its own tables there."""
    with closing(sqlite3.connect(path)) as other:
        other.executescript("CREATE TABLE auth_user (name TEXT); INSERT INTO auth_user VALUES ('anna')")
        before = path.read_bytes()
        assert "has no tables of a store" in refusal(f"sqlite:///{path}", create=False)
        assert path.read_bytes() == before
        open_it().acquire(0, "host-a", 0, 1)
        assert other.execute("SELECT name FROM auth_user").fetchall() == [("anna",)]


# -- refusing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("mysql://user:secret@db/wheel", "must be a database URL like .*, got mysql://…$"),
        ("postgresql+psycopg2://user:secret@db/wheel", "must be a database URL like .*, got postgresql.psycopg2://…$"),
        ("postgresql://user:secret@db", "must name a database"),
        ("postgresql://user:pass@db:secret/wheel", "must be a database URL like .*, got no URL$"),
        ("redis://localhost", "must be a database URL"),
        ("sqlite+aiosqlite:////tmp/x", "must be a database URL"),
        ("wheel.sqlite3", "must be a database URL like sqlite:////var/lib"),
        ("", "must be a database URL"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
        ("sqlite:///file:x?mode=ro&uri=true", "must name a file"),
        ("sqlite:////tmp/x?timeout=3", "must name a file and nothing else"),
    ],
)
def test_a_url_that_cannot_be_a_store_is_a_wrong_setting(url: str, rule: str) -> None:
    with pytest.raises(SettingError, match=f"^wheel_store {rule}") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("shards", [0, -1, 257])
def test_a_store_has_1_to_256_shards(path: Path, shards: int) -> None:
    with pytest.raises(SettingError, match=f"^wheel_shards must be from 1 to 256, got {shards}$"):
        open_store(f"sqlite:///{path}", shards=shards)


def test_durability_is_disk_or_memory(path: Path) -> None:
    with pytest.raises(SettingError, match=r"^wheel_durability must be 'disk' or 'memory', got 'raid'$"):
        open_store(f"sqlite:///{path}", durability="raid")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    said = refusal(f"sqlite:///{tmp_path}/no/such/wheel.sqlite3")
    assert f"the folder {tmp_path}/no/such for the store does not exist; no store was made; make it" in said


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may run the tests
    said = refusal(f"sqlite:///{tmp_path}/wheel.sqlite3")
    assert f"this user may not write to the folder {tmp_path} for the store" in said
    assert "change its owner or mode" in said


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_folder_that_takes_no_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: True)
    said = refusal("sqlite:////proc/wheel.sqlite3")
    assert "the store /proc/wheel.sqlite3 cannot be opened" in said
    assert "check that the folder exists and that this user may write to it" in said


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    expected = f"the store {tmp_path} is a folder; nothing was read or written; let wheel_store name a file in it"
    assert refusal(f"sqlite:///{tmp_path}") == expected


def test_a_file_that_is_no_database_stays_unchanged(path: Path) -> None:
    path.write_text("dear diary " * 100)
    said = refusal(f"sqlite:///{path}")
    assert f"the store {path} is no SQLite database" in said
    assert "a file of its own" in said
    assert path.read_text() == "dear diary " * 100


def test_opening_without_create_makes_nothing(path: Path) -> None:
    expected = f"there is no store at {path}; a scheduler makes it when it starts: celery -A proj beat -S wheel"
    assert refusal(f"sqlite:///{path}", create=False).startswith(expected)
    assert not path.exists()


def test_a_refused_store_is_closed(path: Path, open_it: OpenStore) -> None:
    open_it(shards=2).close()
    refusal(f"sqlite:///{path}", shards=3)
    assert not [file.path for file in psutil.Process().open_files() if file.path.startswith(str(path))]


def test_importing_the_package_loads_no_sqlalchemy() -> None:
    program = "import sys, celery_wheel.store, celery_wheel.store.model, celery_wheel.store.ports; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "sqlalchemy" not in loaded
