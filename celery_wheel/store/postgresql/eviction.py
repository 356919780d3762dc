"""End the session of a holder that stopped with its shard's row locked.

::

    lease expired? ─► a session with the row locked? ─► for long? ─► end that session ─► the row is free
                       └ none: take the row              └ no: it works, or takes the shard over: try again later

The transaction that takes the shard runs this query first. The query compares the lease with the begin of that
transaction, as the takeover does: with two instants, a lease could expire between them; no session would be ended, and
the takeover would wait for the stopped holder's lock. A lease also counts as expired when it ends further in the future
than any lease can: then the server's clock was put back.

PostgreSQL shows the age of another user's session only to members of pg_read_all_stats. Without the age, a session
counts as stopped when it has the row a second time, since the first attempt waited for it as long as a lease. Where
this user may not end the session, the error names the necessary grant.
"""

from __future__ import annotations

from sqlalchemy import Connection

from celery_wheel.errors import StoreError
from celery_wheel.store.postgresql.statements import BEGAN_SQL, CLOCK_SQL

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

    def __init__(self, name: str, patience_ms: int, lease_ms: int) -> None:
        self._name = name
        self._patience_ms = patience_ms
        self._lease_ms = lease_ms
        self._seen: dict[int, int] = {}

    def end(self, connection: Connection, shard: int, own_epoch: int) -> bool:
        """End the stopped session; returns False where another session works on the shard.

        Raises StoreError where the session belongs to another user and this user may not end it.
        """
        values = (self._patience_ms, shard, own_epoch, self._lease_ms)
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
