"""The model of a disk after a power cut, SQLite on it, and schedulers over cuts: what was synced is there.

Each can fail: without syncs, acknowledged commits and tasks are lost. ``python -m tests.faults cuts`` takes any number
of live cuts, and ``python -m tests.faults points`` any number of points of a recorded run.
"""

import random
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.contents import Recover
from tests.faults.cuts import damage
from tests.faults.points import Recording, cut, record
from tests.faults.power import SECTOR, Disk, Event, WriteLog, put
from tests.faults.power_cuts import live, reader_of, stack_of_cuts
from tests.faults.turns import Turn, run

X = "/disk/x"


@pytest.fixture(scope="module")
def recordings() -> Iterator[Callable[..., tuple[Recording, Recover]]]:
    """Return runs of a second, and how the store is read after a cut, by the store and its settings."""
    with ExitStack() as places:

        @cache
        def recording(store: str, durability: str, fsync: str) -> tuple[Recording, Recover]:
            folder = Path(places.enter_context(tempfile.TemporaryDirectory(prefix="wheel-cuts-")))
            stack = places.enter_context(stack_of_cuts(store, folder, 7, durability, fsync))
            return record(stack, 1), reader_of(stack)

        yield recording


def event(kind: str, path: str = X, at: int = 0, data: bytes = b"", size: int = 0) -> Event:
    return Event(kind, path, at, size or len(data), 1, data)


SYNC = [event("b"), event("e")]
NAMES = [event("b", "/disk"), event("e", "/disk")]


def cuts(*events: Event, base: bytes | None = b"") -> set[bytes | None]:
    """Return what fifty cuts may leave of a file; None: no file."""
    disk = Disk({} if base is None else {X: base})
    for one in events:
        disk.see(one)
    return {disk.cut(random.Random(seed)).get(X) for seed in range(50)}


def test_synced_writes_stay_and_other_writes_may() -> None:
    first, second = event("w", data=b"a" * SECTOR), event("w", at=SECTOR, data=b"b" * SECTOR)
    a, ab = first.data, first.data + second.data
    assert cuts(first, *SYNC) == {a}
    assert cuts(first, *SYNC, second) == {a, ab}
    assert cuts(first, second) == {b"", a, ab, bytes(SECTOR) + second.data}, "in part, and in another order"
    assert cuts(event("b"), first, event("e")) == {b"", a}, "it was written after the sync had begun"
    assert cuts(first, *SYNC, event("t", size=1)) == {a, a[:1]}
    assert cuts(event("w", data=b"c" * 2 * SECTOR), base=ab) == {
        one + two for one in (a, b"c" * SECTOR) for two in (second.data, b"c" * SECTOR)
    }, "torn at sectors"


def test_a_new_name_is_certain_after_the_sync_of_its_folder() -> None:
    made = event("o")
    assert cuts(made, event("w", data=b"a"), *SYNC, base=None) == {None, b"a"}
    assert cuts(made, event("w", data=b"a"), *SYNC, *NAMES, base=None) == {b"a"}
    assert cuts(event("u"), base=b"a") == {None, b"a"}
    assert cuts(event("u"), *NAMES, base=b"a") == {None}


def test_a_rename_is_whole_or_not_at_all() -> None:
    y = "/disk/y"
    new = [event("o", y), event("w", y, data=b"b"), event("b", y), event("e", y)]
    rename = event("r", f"{y}\0{X}")
    assert cuts(*new, *NAMES, rename, base=b"a") == {b"a", b"b"}, "the old file, or the new one"
    assert cuts(*new, *NAMES, rename, *NAMES, base=b"a") == {b"b"}
    assert cuts(*new[:2], *NAMES, rename, *NAMES, base=b"a") == {b"", b"b"}, "the content was not synced"
    assert cuts(event("l", f"{X}\0{y}"), event("u"), *NAMES, base=b"a") == {None}


@given(st.lists(st.tuples(st.integers(0, 3_000), st.binary(min_size=1, max_size=1_500), st.booleans()), max_size=8))
def test_a_cut_after_the_last_sync_leaves_what_a_file_has(writes: list[tuple[int, bytes, bool]]) -> None:
    content, events = bytearray(), list[Event]()
    for at, data, is_synced in writes:
        content.extend(bytes(max(0, at - len(content))))
        content[at : at + len(data)] = data
        events += [event("w", at=at, data=data), *(SYNC if is_synced else ())]
    assert cuts(*events, *SYNC) == {bytes(content)}


#: Commits rows, and notes each commit that was acknowledged in a file beside the database.
WRITER = """
    import os, sqlite3, sys
    folder, synchronous = sys.argv[1:]
    database = sqlite3.connect(f"{folder}/a.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = wal")
    database.execute(f"PRAGMA synchronous = {synchronous}")
    database.execute("PRAGMA wal_autocheckpoint = 10")
    database.execute("CREATE TABLE t (n INTEGER, x BLOB)")
    acknowledged = os.open(f"{folder}/acknowledged", os.O_WRONLY | os.O_CREAT)
    for n in range(60):
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO t VALUES (?, randomblob(900))", [(n,)] * (1 + n % 7))
        database.execute("COMMIT")
        os.pwrite(acknowledged, bytes([n + 1]), 0)
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("synchronous", "deaf", "loses"),
    [("FULL", "", False), ("OFF", "", True), ("FULL", "-wal", True), ("FULL", "a.db", True)],
    ids=["synced", "not synced", "without the syncs of the log", "without the syncs of the database"],
)
def test_sqlite_has_each_acknowledged_commit_after_a_cut(
    tmp_path: Path, synchronous: str, deaf: str, *, loses: bool
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    log = WriteLog(folder, tmp_path / "log")
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(folder), synchronous]
    subprocess.run(command, env=log.environment, check=True, timeout=60)
    disk, rng, acknowledged, lost = Disk({}), random.Random(7), 0, 0
    for one in log.events():
        if deaf and one.kind in "be" and one.path.endswith(deaf):
            continue
        disk.see(one)
        if one.path.endswith("acknowledged") and one.kind == "w":
            acknowledged = one.data[0]
        if acknowledged and rng.random() < 0.2:
            put(folder, disk.cut(rng))
            lost += not has_commits(folder / "a.db", acknowledged, tmp_path / "copy")
    assert acknowledged == 60
    assert (lost > 0) is loses, f"{lost} cuts lost a commit"


def has_commits(path: Path, count: int, copy: Path) -> bool:
    if not path.exists() or damage(path, copy) != "ok":
        return False
    with closing(sqlite3.connect(path)) as database:
        try:
            rows = dict(database.execute("SELECT n, count(*) FROM t GROUP BY n").fetchall())
        except sqlite3.OperationalError:  # no table
            return False
    return all(rows.get(n) == 1 + n % 7 for n in range(count)) and all(rows[n] == 1 + n % 7 for n in rows)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_schedulers_lose_nothing_over_cuts(tmp_path: Path, store: str) -> None:
    with stack_of_cuts(store, tmp_path, 7) as stack:
        verdict = live(stack, 3)
    print(verdict)
    assert verdict.is_clean, str(verdict)
    assert verdict.with_unsynced, "something could have been lost"


@pytest.mark.slow
@pytest.mark.xdist_group("recordings")
@pytest.mark.parametrize(
    ("store", "durability", "fsync", "deaf", "loses"),
    [
        ("sqlite", "disk", "on", "", False),
        ("sqlite", "disk", "on", "-wal", True),
        ("sqlite", "memory", "on", "", True),
        ("postgresql", "disk", "on", "", False),
        ("postgresql", "disk", "on", "pg_wal/", True),
        ("postgresql", "disk", "off", "", True),
    ],
    ids=[
        "SQLite",
        "SQLite without the syncs of the log",
        "SQLite that does not sync",
        "PostgreSQL",
        "PostgreSQL without the syncs of the log",
        "PostgreSQL without fsync",
    ],
)
def test_each_promise_of_a_recorded_run_is_in_the_store_after_a_cut(
    recordings: Callable[..., tuple[Recording, Recover]],
    store: str,
    durability: str,
    fsync: str,
    deaf: str,
    *,
    loses: bool,
) -> None:
    recording, recover = recordings(store, durability, fsync)
    verdict = cut(recording, 60 if store == "sqlite" else 12, random.Random(7), recover, deaf)
    print(verdict)
    assert verdict.with_unsynced
    assert all(verdict.checks[kind] for kind in ("accepted", "cancelled", "made")), "there was something to lose"
    assert (verdict.broken["accepted"] > 0) is loses, str(verdict)
    assert loses or verdict.is_clean, str(verdict)


def test_turns_go_on_after_a_finding_and_are_counted() -> None:
    def failing(folder: Path, seed: int) -> Turn:
        raise AssertionError("it never came")

    turns = {
        "a": lambda folder, seed: Turn(5, 100, True, "fine"),
        "b": lambda folder, seed: Turn(2, 10, False, "1 lost"),
        "c": failing,
    }
    report = run(0, 7, turns)
    assert report.counts == {"a": (1, 5, 100), "b": (1, 2, 10), "c": (1, 0, 0)}
    assert report.findings[0] == "b, seed 7: 1 lost"
    assert "it never came" in report.findings[1]
    assert str(report).count("\n") > 4
