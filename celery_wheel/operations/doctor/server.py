"""The server of a store: whether its commits last, and the transaction for which it keeps replaced rows."""

from __future__ import annotations

from collections.abc import Iterator

from celery_wheel.operations.doctor.finding import Finding, note, ok, warning
from celery_wheel.store.store_model import ServerState
from celery_wheel.values.format import format_count, format_duration

#: A dump or a report may take that long.
OLD_MS = 300_000


def durability(found: ServerState, *, durable: bool) -> Iterator[Finding]:
    """Yield what a commit survives; ``durable`` is whether wheel_durability promises it."""
    for about, text, remedy in found.risks:
        yield warning(about, text, remedy)
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
