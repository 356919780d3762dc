"""Read the store in the files that a cut has left: ids of tasks, cancelled ones, and each schedule's next instant.

::

    sqlite_in(scratch)(folder, files)       SQLite recovers the files; PRAGMA integrity_check
    postgresql_in(scratch)(folder, files)   a server for one user recovers them; amcheck of all tables and B-trees

Each raises Damaged where the database finds damage, or does not start.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.faults.power import put
from tests.kit.servers.postgres import _user, postgres_binaries


class Damaged(Exception):
    """A store says that its files are damaged."""


@dataclass(frozen=True, slots=True)
class Found:
    """The contents of a store: ids of tasks, of cancelled ones, and each schedule's next instant."""

    tasks: frozenset[str]
    cancelled: frozenset[str]
    next_ms: Mapping[str, int | None]


Recover = Callable[[Path, dict[str, bytes]], Found]

CANCELLED = """
    SELECT t.task_id FROM wheel_timer t JOIN wheel_outcome o ON o.timer_id = t.id AND o.shard = t.shard
    WHERE o.kind = 'cancelled'
"""

#: A row or an error for each finding: of each B-tree and its table, and of each row of each table.
CHECKS = (
    "SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "JOIN pg_am a ON a.oid = c.relam WHERE a.amname = 'btree' AND i.indisvalid AND c.relpersistence = 'p'",
    "SELECT c.relname || ': ' || v.msg FROM pg_class c, LATERAL verify_heapam(c.oid) v "
    "WHERE c.relkind IN ('r', 't', 'm') AND c.relpersistence = 'p'",
)


def sqlite_in(scratch: Path) -> Recover:
    """Return a function that reads a SQLite store in such a folder."""
    scratch.mkdir()

    def recover(folder: Path, files: dict[str, bytes]) -> Found:
        put(scratch, {str(scratch / Path(name).relative_to(folder)): content for name, content in files.items()})
        try:
            with closing(sqlite3.connect(scratch / "wheel.sqlite3")) as database:
                if (said := database.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
                    raise Damaged(said)
                return Found(
                    frozenset(task_id(one.hex()) for (one,) in database.execute("SELECT task_id FROM wheel_timer")),
                    frozenset(task_id(one.hex()) for (one,) in database.execute(CANCELLED)),
                    dict(database.execute("SELECT name, next_ms FROM wheel_schedule").fetchall()),
                )
        except sqlite3.DatabaseError as error:
            raise Damaged(str(error)) from error

    return recover


def postgresql_in(scratch: Path) -> Recover:
    """Return a function that reads a store of PostgreSQL in such a folder, which the server's user has to reach."""
    binaries, user = postgres_binaries(), _user()
    assert binaries is not None
    place = scratch / "data"
    _make(scratch)
    out = {name: scratch / name for name in ("tasks", "cancelled", "schedules", "damage")}
    queries = {
        "tasks": "SELECT encode(task_id, 'hex') FROM wheel_timer",
        "cancelled": CANCELLED.replace("t.task_id", "encode(t.task_id, 'hex')", 1),
        "schedules": "SELECT json_build_array(name, next_ms) FROM wheel_schedule",
        "damage": CHECKS[1],
    }
    copies = [f"COPY ({query}) TO '{out[name]}'" for name, query in queries.items()]
    commands = ";\n\n".join([*copies, CHECKS[0], ""])
    server = [str(binaries / "postgres"), "--single", "-D", str(place), "-c", "fsync=off", "-j", "postgres"]

    def recover(folder: Path, files: dict[str, bytes]) -> Found:
        if not place.exists():
            for path in (folder, *sorted(one for one in folder.rglob("*") if one.is_dir())):
                _make(place / path.relative_to(folder))
        put(place, {str(place / Path(name).relative_to(folder)): content for name, content in files.items()})
        (place / "postmaster.pid").unlink(missing_ok=True)  # PostgreSQL refuses one that a cut left empty: remove it
        for path in out.values():
            path.unlink(missing_ok=True)
        done = subprocess.run(
            server, input=commands, cwd=scratch, capture_output=True, text=True, check=False, timeout=120, **user
        )
        lines = done.stderr.splitlines()
        wrong = [line for line in lines if any(word in line for word in ("ERROR:", "PANIC:", "FATAL:"))]
        if wrong or done.returncode or not all(path.exists() for path in out.values()):
            raise Damaged("; ".join(wrong or lines[-3:]))
        if damage := out["damage"].read_text():
            raise Damaged(damage)
        return Found(
            frozenset(map(task_id, out["tasks"].read_text().split())),
            frozenset(map(task_id, out["cancelled"].read_text().split())),
            dict(json.loads(line) for line in out["schedules"].read_text().splitlines()),
        )

    return recover


def _make(path: Path) -> None:
    """Make a folder as the server wants its own: no other user may open it."""
    path.mkdir(mode=0o700)
    owner = path.parent.stat()
    os.chown(path, owner.st_uid, owner.st_gid)


def task_id(text: str) -> str:
    """Return the id of a task of these runs, a UUID, from the 16 bytes of the column as hexadecimal digits."""
    return str(uuid.UUID(text))
