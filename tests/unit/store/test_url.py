"""``open_store`` makes a missing store, and refuses an unusable one with a reason and a remedy."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.store import open_store
from celery_wheel.store.model import SCHEMA_VERSION
from celery_wheel.store.sql.store import SqlStore

OpenStore = Callable[..., SqlStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "wheel.sqlite3"


@pytest.fixture
def open_it(path: Path) -> Iterator[OpenStore]:
    """Open the store at ``path``; the fixture closes every store."""
    opened = []

    def open_one(**options: Any) -> SqlStore:
        opened.append(open_store(f"sqlite:///{path}", **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


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


def test_two_stores_have_two_uuids(tmp_path: Path) -> None:
    uuids = set()
    for name in ("a", "b"):
        store = open_store(f"sqlite:///{tmp_path}/{name}.sqlite3")
        uuids.add(store.uuid)
        store.close()
    assert len(uuids) == 2


def test_several_threads_may_open_a_new_store_at_the_same_moment(path: Path) -> None:
    together, uuids = threading.Barrier(6), []

    def open_one() -> None:
        together.wait()
        store = open_store(f"sqlite:///{path}", shards=2)
        uuids.append(store.uuid)
        store.close()

    threads = [threading.Thread(target=open_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(uuids) == 6
    assert len(set(uuids)) == 1


def test_opening_an_existing_store_writes_nothing(path: Path, open_it: OpenStore) -> None:
    open_it().close()
    before = path.read_bytes()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")  # every other writer would wait
    open_it(create=False).state(0)
    open_it()
    writer.execute("ROLLBACK")
    writer.close()
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
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE auth_user (id INTEGER PRIMARY KEY, name TEXT)")
    other.execute("INSERT INTO auth_user (name) VALUES ('anna')")
    other.commit()
    open_it().acquire(0, "host-a", 0, 1)
    assert other.execute("SELECT name FROM auth_user").fetchall() == [("anna",)]
    other.close()


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
    assert f"the folder {tmp_path}/no/such for the store does not exist; no store was made; make it" in refusal(
        f"sqlite:///{tmp_path}/no/such/wheel.sqlite3"
    )


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
    assert refusal(f"sqlite:///{tmp_path}") == (
        f"the store {tmp_path} is a folder; nothing was read or written; let wheel_store name a file in it"
    )


def test_a_file_that_is_no_database_stays_unchanged(path: Path) -> None:
    path.write_text("dear diary " * 100)
    said = refusal(f"sqlite:///{path}")
    assert f"the store {path} is no SQLite database" in said
    assert "a file of its own" in said
    assert path.read_text() == "dear diary " * 100


def test_opening_without_create_makes_nothing(path: Path) -> None:
    said = refusal(f"sqlite:///{path}", create=False)
    assert said.startswith(
        f"there is no store at {path}; a scheduler makes it when it starts: celery -A proj beat -S wheel"
    )
    assert not path.exists()


def test_opening_a_database_without_a_store_changes_nothing(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE auth_user (id INTEGER PRIMARY KEY)")
    other.close()
    before = path.read_bytes()
    assert "has no tables of a store" in refusal(f"sqlite:///{path}", create=False)
    assert path.read_bytes() == before


def test_a_store_of_a_newer_version_stays_unchanged(path: Path, open_it: OpenStore) -> None:
    open_it().close()
    database = sqlite3.connect(path)
    database.execute("UPDATE wheel_meta SET schema_version = 99")
    database.commit()
    database.close()
    said = refusal(f"sqlite:///{path}")
    assert (
        f"was made by a newer celery-wheel (its tables have version 99, this celery-wheel knows {SCHEMA_VERSION})"
        in said
    )
    assert "pip install -U celery-wheel" in said


def test_a_store_of_an_older_version_stays_unchanged(path: Path, open_it: OpenStore) -> None:
    open_it().close()
    database = sqlite3.connect(path)
    database.execute("UPDATE wheel_meta SET schema_version = 0")
    database.commit()
    database.close()
    said = refusal(f"sqlite:///{path}")
    assert (
        f"was made by an older celery-wheel (its tables have version 0, this celery-wheel needs {SCHEMA_VERSION})"
        in said
    )


@pytest.mark.parametrize("create", [True, False])
def test_another_number_of_shards_is_refused(path: Path, open_it: OpenStore, create: bool) -> None:
    open_it(shards=2).close()
    said = refusal(f"sqlite:///{path}", shards=3, create=create)
    assert f"the store {path} has 2 shards, not 3" in said
    assert "set wheel_shards = 2" in said


def test_a_refused_store_is_closed(path: Path, open_it: OpenStore) -> None:
    open_it(shards=2).close()
    refusal(f"sqlite:///{path}", shards=3)
    assert not [file.path for file in psutil.Process().open_files() if file.path.startswith(str(path))]


def test_importing_the_package_loads_no_sqlalchemy() -> None:
    program = "import sys, celery_wheel.store, celery_wheel.store.model, celery_wheel.store.ports; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "sqlalchemy" not in loaded
