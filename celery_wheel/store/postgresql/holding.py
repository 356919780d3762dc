"""Throwing out a holder that stopped while it had its shard's row locked.

::

    lease over? ─► who has the row locked? ─► since long? ─► end that session ─► the row is free
                    └ nobody: take it          └ no: it is at work, or takes the shard over: ask again later

Who takes a shard asks this first, in the same transaction, and whether the lease is over is asked of the instant in
which that began. Otherwise a lease that ends between the two questions would have nobody thrown out, and the taker
wait in line behind who has stopped. It is over, too, when it ends further in the future than any can: then the
server's clock was put back.

A session of another user shows no age to those who may not look (pg_read_all_stats). It counts as stopped when it has
the row a second time; the first waited for it as long as a lease. Whoever may not end it says so, and what to grant.
"""

from __future__ import annotations

from sqlalchemy import Connection

from celery_wheel.errors import StoreError
from celery_wheel.store.postgresql.statements import BEGAN_SQL, CLOCK_SQL

_WHO_HAS_THE_ROW = f"""
    SELECT session.pid, session.usename,
           NOT session.xact_start BETWEEN clock_timestamp() - %s * interval '1 millisecond' AND clock_timestamp(),
           pg_has_role(session.usesysid, 'USAGE') OR (pg_has_role('pg_signal_backend', 'USAGE') AND NOT owner.rolsuper)
    FROM wheel_shard
    JOIN pg_locks ON locktype = 'transactionid' AND transactionid = wheel_shard.xmax AND mode = 'ExclusiveLock'
    JOIN pg_stat_activity AS session ON session.pid = pg_locks.pid
    JOIN pg_roles AS owner ON owner.oid = session.usesysid
    WHERE granted AND shard = %s AND epoch <> %s
      AND NOT lease_until_ms BETWEEN {BEGAN_SQL} + 1 AND {CLOCK_SQL} + 2 * %s
"""  # noqa: S608 - nothing in it comes from outside


class Stopped:
    """Of one store object: whom it has met before, by shard."""

    def __init__(self, name: str, patience_ms: int, lease_ms: int) -> None:
        self._name = name
        self._patience_ms = patience_ms
        self._lease_ms = lease_ms
        self._met: dict[int, int] = {}

    def end(self, connection: Connection, shard: int, own_epoch: int) -> bool:
        """In the taker's transaction; False where another session is at work on the shard.

        Raises StoreError where it is another user's, and this one may not.
        """
        asked = (self._patience_ms, shard, own_epoch, self._lease_ms)
        found = connection.exec_driver_sql(_WHO_HAS_THE_ROW, asked).first()
        if found is None:
            self._met.pop(shard, None)
            return True
        pid, user, long_since, may = found
        stopped = self._met.get(shard) == pid if long_since is None else long_since
        self._met[shard] = pid
        if not stopped:
            return long_since is None
        if not may:
            raise StoreError(
                f"the store {self._name} has shard {shard} locked by process {pid} of the user {user}, which stopped "
                "in the middle of a transaction and which this user may not end; the shard is not taken; let all "
                f"schedulers connect as one user, or GRANT {user} to this one, or end it: "
                f"SELECT pg_terminate_backend({pid})"
            )
        connection.exec_driver_sql("SELECT pg_terminate_backend(%s)", (pid,)).fetchall()
        return True
