"""The store: it answers, agrees with the settings, has no forgotten bulk load, has room, lasts; history is archived."""

from __future__ import annotations

import glob
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from celery_wheel.operations.doctor.installation import Finding, Installation, error, note, ok, split_remedy, warning
from celery_wheel.store.model import OPEN, SCHEMA_VERSION
from celery_wheel.store.place import place_of
from celery_wheel.store.ports import FullStore
from celery_wheel.store.store_model import ARCHIVE, ServerState
from celery_wheel.values.format import format_count, format_duration, format_utc, printable
from celery_wheel.values.instants import now_ms
from celery_wheel.values.keyring import encryption_keys


def check(site: Installation) -> Iterator[Finding]:
    store = site.store
    if store is None:
        problem, remedy = split_remedy(site.store_trouble)
        yield error("store", problem, remedy or "Correct wheel_store.")
        return
    yield ok("store", f"{store.name} answers; its tables have version {SCHEMA_VERSION}, as required")
    if store.shards != site.conf.shards:
        yield error(
            "shards",
            f"the store has {store.shards} shards, and wheel_shards is {site.conf.shards}: producers send to queues "
            "that no scheduler reads, or schedulers refuse to start",
            f"Set wheel_shards = {store.shards} everywhere, or: celery -A proj wheel reshard {site.conf.shards}",
        )
    yield from _left_open(site, store)
    yield from _keys(site, store)
    if place_of(site.conf.store).url.drivername.startswith("sqlite"):
        yield _room(store)
        yield _modes(store)
        yield file_system(store.name, _mounts())
    server = store.browse.server()
    if server is not None:
        yield from durability(server, durable=site.conf.durability == "disk")
        yield from vacuum(server)
    if site.conf.history_archive:
        yield _archived(site, store)


def _left_open(site: Installation, store: FullStore) -> Iterator[Finding]:
    for one in store.loads.unfinished():
        age_ms = now_ms() - one.begun_ms
        if one.state == OPEN and age_ms > 86_400_000:  # hardly any takes longer
            yield warning(
                "load",
                f"the bulk load {printable(one.name)} was begun {format_duration(age_ms)} ago and is open: nothing "
                "of it is scheduled",
                "Run the same job again to complete it, or: "
                f"celery -A proj wheel loads --abort {shlex.quote(printable(one.name))}",
            )


def _keys(site: Installation, store: FullStore) -> Iterator[Finding]:
    """Compare the keys that the stored messages need with those of wheel_encryption_keys."""
    secrets = site.conf.encryption_keys
    own, needed = encryption_keys(secrets), store.browse.keys()
    if missing := [one for one in needed if one is not None and one not in own.ids]:
        yield error(
            "keys",
            f"messages of the store are encrypted by the key {missing[0]}, whose secret is not in "
            "wheel_encryption_keys: they can be neither shown nor dispatched",
            "Add its secret, behind the first one.",
        )
    elif secrets and needed:
        present = None if own.current is None else own.current.hex()
        others = [one or "no key" for one in needed if one != present]
        spare = [one for one in own.ids if one not in (*needed, present)]
        if others:
            yield note(
                "keys",
                f"some messages of the store still have {', '.join(others)}, not the first key, {present or 'none'}",
                "Keep all secrets; schedulers that began with these settings encrypt them anew in the background.",
            )
        else:
            yield ok("keys", f"all messages have the first key of wheel_encryption_keys, {present or 'none'}")
        if spare:
            yield note(
                "keys",
                f"the store no longer needs the key {spare[0]}",
                "Remove its secret, once no process encrypts by it any more.",
            )


def _modes(store: FullStore) -> Finding:
    """Look at who else on this machine may open the files of a store; a group is a choice of the user."""
    path = Path(store.name)
    files = sorted(path.parent.glob(f"{glob.escape(path.name)}*"))
    wide = {str(one): one.stat().st_mode & 0o777 for one in files if one.stat().st_mode & 0o007}
    if not wide:
        return ok("modes", f"only the owner of {path} and their group may open the files of the store")
    named = ", ".join(f"{name} ({mode:04o})" for name, mode in wide.items())
    return warning(
        "modes",
        f"every user of this machine may open files of the store, read arguments of tasks, or keep a lock: {named}",
        f"Run: chmod 600 {' '.join(map(shlex.quote, wide))}",
    )


#: File systems of other machines, and of programs (fuse). A FUSE mount of a local disk is the exception ``fuseblk``.
_NETWORK = re.compile(r"nfs\d*|cifs|smb\d*|smbfs|9p|afs|ceph|glusterfs|lustre|gfs2?|ocfs2|fuse(\..*)?")


def power(site: Installation) -> Iterator[Finding]:
    """Yield whether a loss of power damages the store, or makes it forget what it has acknowledged."""
    if site.store is None:
        return
    server = site.store.browse.server()
    yield from () if server is None else (warning(*risk) for risk in server.risks)
    if place_of(site.conf.store).url.drivername.startswith("sqlite"):
        yield file_system(site.store.name, _mounts())


def _mounts() -> str:
    """Return the mounted file systems; nothing where the system has no such file (macOS, Windows)."""
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def file_system(name: str, mounts: str) -> Finding:
    """Look at the file system of a SQLite store.

    Args:
        mounts: the text of ``/proc/self/mounts``; of two mounts at one place the later one is seen.
    """
    path = Path(name).resolve()
    kinds = {Path(line.split(" ")[1].replace("\\040", " ")): line.split(" ")[2] for line in mounts.splitlines()}
    kind = next((kinds[one] for one in path.parents if one in kinds), "")
    if not _NETWORK.fullmatch(kind):
        return ok("file system", f"{path.parent} is on {kind or 'a file system of unknown kind'}")
    return warning(
        "file system",
        f"{path} is on {kind}, the file system of another machine or of a program: SQLite's write-ahead log needs "
        "memory that all its processes share, and locks and syncs that hold; without them the store may be damaged",
        "Move the store to a local disk of the schedulers' host, or use PostgreSQL.",
    )


def _room(store: FullStore) -> Finding:
    path = Path(store.name)
    free = shutil.disk_usage(path.parent).free
    text = f"{free / 2**30:,.1f} GiB are free on the disk of {path}, which has {path.stat().st_size / 2**20:,.1f} MiB"
    if free >= 2**30:
        return ok("disk", text)
    remedy = "Make room, or lower wheel_history_max_bytes; on a full disk nothing is accepted, and nothing is lost."
    return (error if free < 100 * 2**20 else warning)("disk", text, remedy)


def _archived(site: Installation, store: FullStore) -> Finding:
    oldest = min(store.maintenance.unarchived(), key=lambda one: one.at_ms, default=None)
    at_ms, kept_ms = now_ms(), site.conf.history_retention_ms
    if oldest is None or at_ms - oldest.at_ms <= kept_ms:
        return ok("archive", f"all history of more than {format_duration(kept_ms)} ago is archived")
    return warning(
        "archive",
        f"history of shard {oldest.shard} since {format_utc(oldest.at_ms)}, {format_duration(at_ms - oldest.at_ms)} "
        "ago, waits for the archive and cannot be removed, though it is kept for "
        f"{format_duration(kept_ms)} only: the store grows",
        f"Run the archive more often than that; {ARCHIVE}; or set wheel_history_archive = False.",
    )


#: A dump or a report may take that long.
OLD_MS = 300_000


def durability(found: ServerState, *, durable: bool) -> Iterator[Finding]:
    """Yield what a commit survives; ``durable`` is whether wheel_durability promises it."""
    yield from (warning(*risk) for risk in found.risks)
    if found.synchronous_commit == "off":
        yield note(
            "synchronous_commit",
            "synchronous_commit is off for this user: the wheel's own durable commits wait for the disk nevertheless; "
            "a transaction of your code does not, and a crash of the server may lose it with the tasks that it sent "
            "(wheel_transactional)",
            "Set synchronous_commit = on for the user or the database where that matters.",
        )
    elif not found.risks:
        waits = "waits for the server's disk" if durable else "does not wait for the disk (wheel_durability = 'memory')"
        yield ok("durability", f"a commit {waits}; fsync and full_page_writes are on")
    yield _replication(found)
    if found.is_superuser:
        yield note(
            "rights",
            "the user in wheel_store is a superuser of PostgreSQL: who has the URL may read and change every database",
            'Let a user own the tables who is nothing else, as on the page "Users with few rights".',
        )


def _replication(found: ServerState) -> Finding:
    standbys = format_count(found.standbys, "standby")
    if found.waits_for_standby:
        return ok(
            "replication",
            f"synchronous: a commit waits for {found.synchronous_standby_names}, so a promotion of that standby loses "
            f"none; {standbys} connected",
        )
    if found.standbys:
        return note(
            "replication",
            f"asynchronous: no commit waits for the {standbys}, so a promotion may lose the last commits, which the "
            "wheel has acknowledged, and their tasks",
            "Set synchronous_standby_names, and synchronous_commit = on, where a promotion must not lose a task.",
        )
    return ok("replication", "none: no standby is connected, and the server has the only copy of the store")


def vacuum(found: ServerState) -> Iterator[Finding]:
    """Yield the transaction that keeps the server from removing replaced rows, and those that cannot be seen."""
    dead = format_count(found.dead_rows, "dead row")
    if found.oldest is None:
        yield ok("vacuum", f"no open transaction keeps replaced rows; the wheel's tables have {dead}")
    else:
        age_ms, session, pid = found.oldest
        age = format_duration(age_ms)
        text = f"the oldest transaction is open for {age} ({session}); the wheel's tables have {dead}"
        if age_ms < OLD_MS:
            yield ok("vacuum", text)
        else:
            end = f"SELECT pg_terminate_backend({pid})" if pid is not None else "ROLLBACK PREPARED"
            yield warning(
                "vacuum",
                f"{text}: until it ends PostgreSQL keeps every replaced row, tables grow, and commits become slower",
                f"End it: {end}; and set idle_in_transaction_session_timeout for such users.",
            )
    if found.unseen:
        yield note(
            "vacuum",
            f"{format_count(found.unseen, 'session')} of other users have transactions that this user may not see",
            "GRANT pg_read_all_stats to the user in wheel_store.",
        )
