"""The promises of a PostgreSQL server, and the transaction that holds back its vacuum, as any user may see them.

PostgreSQL shows the transactions of other users only to members of pg_read_all_stats. Without it they are counted as
unseen. ``reset_val`` is what the setting would be if the store's session did not set it.
"""

from __future__ import annotations

from sqlalchemy import Connection

from celery_wheel.store.ports.server import OpenTransaction, ServerState

_SETTINGS = """
    SELECT name, reset_val FROM pg_settings
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')
"""

#: A transaction without a snapshot and without changes keeps no row.
_OLDEST = """
    SELECT floor(extract(epoch FROM clock_timestamp() - began) * 1000)::bigint, session, pid
    FROM (
        SELECT xact_start, concat_ws(', ', 'process ' || pid || ' of the user ' || usename,
                                     nullif(application_name, ''), state), pid
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
          AND coalesce(backend_xmin, backend_xid) IS NOT NULL AND backend_type <> 'autovacuum worker'
        UNION ALL
        SELECT prepared, 'prepared transaction ' || gid || ' of the user ' || owner, NULL
        FROM pg_prepared_xacts WHERE database = current_database()
    ) AS found (began, session, pid)
    ORDER BY began LIMIT 1
"""

_COUNTS = """
    SELECT (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'),
           (SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND query = '<insufficient privilege>'),
           (SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables
            WHERE schemaname = current_schema() AND starts_with(relname, 'wheel_'))
"""


def read_server(connection: Connection) -> ServerState:
    settings: dict[str, str] = dict(connection.exec_driver_sql(_SETTINGS).all())
    oldest = connection.exec_driver_sql(_OLDEST).first()
    standbys, unseen, dead_rows = connection.exec_driver_sql(_COUNTS).one()
    return ServerState(
        fsync=settings["fsync"] == "on",
        full_page_writes=settings["full_page_writes"] == "on",
        synchronous_commit=settings["synchronous_commit"],
        standbys=standbys,
        synchronous_standby_names=settings["synchronous_standby_names"],
        oldest=None if oldest is None else OpenTransaction(*oldest),
        unseen=unseen,
        dead_rows=int(dead_rows),
    )
