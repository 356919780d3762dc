"""A session of a PostgreSQL store: its parameters and settings; and the end of a stopped holder's session.

A statement makes the settings, not ``options`` of the connection: a pooler that lends whole sessions (pgbouncer's
``pool_mode=session``) refuses those, or drops them silently. A setting that the server's version does not know is left
out. Where synchronous_commit is off, the session has it on; any other value is the operator's choice, and the session
sets it too: so a later reload of the server's configuration does not change it.

The takeover and its query for a stopped session compare the lease with one instant, the begin of their transaction. A
lease also counts as expired when it ends further in the future than any lease can: the server's clock was put back.
PostgreSQL shows the age of another user's session only to members of pg_read_all_stats. Without the age, a session
counts as stopped when it has the row a second time, since the first attempt waited for it as long as a lease.
"""

from __future__ import annotations

import traceback
from typing import Any

import psycopg
from sqlalchemy import URL, Connection

from celery_wheel.errors import StoreError, StoreUnusable
from celery_wheel.store.postgresql.statements import BEGAN_SQL, CLOCK_SQL

#: A statement that takes longer is a defect of celery-wheel or of the server.
STATEMENT_TIMEOUT_MS = 60_000

_SET = """
    SELECT set_config(name, CASE WHEN name = 'synchronous_commit' AND is_ <> 'off' THEN is_ ELSE value END, false)
    FROM unnest(%s::text[], %s::text[]) AS wanted (name, value), current_setting(name, true) AS is_
    WHERE is_ IS NOT NULL
"""


def patience_ms(lease_ms: int) -> int:
    """Return how long a session may hang: the session of a stopped holder must end before the lease expires."""
    return max(100, lease_ms // 2)


def connect(dialect: Any, _record: Any, args: Any, arguments: Any) -> Any:
    """Return a new connection of the driver. A server that is stopped accepts connections and never answers.

    The socket of such an attempt is closed at once: the frames of psycopg's error refer to it in a cycle, and the
    garbage collector of an idle scheduler may not run for an hour, in which it would reach the limit of open files.
    """
    try:
        return dialect.connect(*args, **arguments)
    except psycopg.Error as error:
        traceback.clear_frames(error.__traceback__)
        raise


def connect_args(url: URL, lease_ms: int) -> dict[str, Any]:
    """Return the driver's arguments, beside those in the URL."""
    arguments = {
        "autocommit": True,  # ``writing`` begins and ends transactions by statements
        "client_encoding": "utf8",
        "connect_timeout": max(2, lease_ms // 1000),
        "tcp_user_timeout": patience_ms(lease_ms),
        "keepalives_idle": 1,
        "keepalives_interval": 1,
        "keepalives_count": 2,
    }
    if "application_name" not in url.query:
        arguments["application_name"] = "celery-wheel"
    options = url.query.get("options", "")
    if not isinstance(options, str):  # the URL has several
        arguments["options"] = " ".join(options)
    return arguments


def settings(lease_ms: int) -> dict[str, str]:
    return {
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": str(patience_ms(lease_ms)),
        "tcp_user_timeout": str(patience_ms(lease_ms)),
        "tcp_keepalives_idle": "1",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "2",
        # A holder that waited so long for the shard's row has not renewed its lease: it is no longer the holder.
        "lock_timeout": str(lease_ms),
        "statement_timeout": str(STATEMENT_TIMEOUT_MS),
        # Sessions idle in the pool while nothing is due, and opening a large store is one long transaction.
        "idle_session_timeout": "0",
        "transaction_timeout": "0",
        "default_transaction_isolation": "read committed",
        "plan_cache_mode": "force_custom_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "jit": "off",
    }


def prepare(connection: Any, name: str, lease_ms: int) -> None:
    """Check the server and make the settings. ``connection`` is the driver's own, ``name`` the store's for people."""
    try:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreUnusable(
                f"the store {name} keeps text as {encoding}, so one task name could stop all tasks; nothing was "
                "written; make a database with UTF8: createdb --encoding=UTF8 --template=template0"
            )
        wanted = settings(lease_ms)
        connection.execute(_SET, (list(wanted), list(wanted.values())))
    except BaseException:
        connection.close()
        raise


_ROW_LOCK = f"""
    SELECT session.pid, session.usename,
           NOT session.xact_start BETWEEN clock_timestamp() - %s * interval '1 millisecond' AND clock_timestamp(),
           pg_has_role(session.usesysid, 'USAGE') OR (pg_has_role('pg_signal_backend', 'USAGE') AND NOT owner.rolsuper)
    FROM wheel_shard
    JOIN pg_locks ON locktype = 'transactionid' AND transactionid = wheel_shard.xmax AND mode = 'ExclusiveLock'
    JOIN pg_stat_activity AS session ON session.pid = pg_locks.pid
    JOIN pg_roles AS owner ON owner.oid = session.usesysid
    WHERE granted AND shard = %s AND epoch <> %s
      AND NOT lease_until_ms BETWEEN {BEGAN_SQL} + 1 AND {CLOCK_SQL} + 2 * %s
"""  # noqa: S608 - no part of it comes from outside


class StoppedHolders:
    """Remembers, for one store object, the process that had a shard's row locked at the last attempt."""

    def __init__(self, name: str, lease_ms: int) -> None:
        self._name = name
        self._lease_ms = lease_ms
        self._seen: dict[int, int] = {}

    def end(self, connection: Connection, shard: int, own_epoch: int) -> bool:
        """End the stopped session; returns False where another session works on the shard.

        Raises StoreError where the session belongs to another user and this user may not end it.
        """
        values = (patience_ms(self._lease_ms), shard, own_epoch, self._lease_ms)
        found = connection.exec_driver_sql(_ROW_LOCK, values).first()
        if found is None:
            self._seen.pop(shard, None)
            return True
        pid, user, is_old, may_end = found
        stopped = self._seen.get(shard) == pid if is_old is None else is_old
        self._seen[shard] = pid
        if not stopped:
            return is_old is None
        if not may_end:
            raise StoreError(
                f"process {pid} of the user {user} stopped in a transaction and has the row of shard {shard} of the "
                f"store {self._name} locked, and this user may not end it; the shard is not taken; let all schedulers "
                f"connect as one user, or GRANT {user} to this user, or end the process: "
                f"SELECT pg_terminate_backend({pid})"
            )
        connection.exec_driver_sql("SELECT pg_terminate_backend(%s)", (pid,)).fetchall()
        return True
