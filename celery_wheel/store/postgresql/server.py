"""A PostgreSQL server: its promises and its oldest transaction, and the storage parameters of the tables.

PostgreSQL shows the transactions of other users only to members of pg_read_all_stats. Without it they are counted as
unseen. ``reset_val`` is what the setting would be if the store's session did not set it.

Autovacuum's defaults wait until a fifth of a table is dead, and pause often. Measured (docs/benchmarks.md; python -m
tests.benchmarks.bloat --rows 2000000): with these parameters, tables and indexes stop growing after the first vacuum;
with the defaults they ended 2.5 and 2.9 times as large. So there are no partitions. For more than about 5,000 tasks/s
all day, lower autovacuum_naptime on the server.
"""

from __future__ import annotations

from sqlalchemy import Connection

from celery_wheel.store.store_model import OpenTransaction, ServerState

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
            WHERE schemaname = current_schema() AND starts_with(relname, 'wheel_')),
           current_setting('is_superuser') = 'on'
"""


def read_server(connection: Connection) -> ServerState:
    settings: dict[str, str] = dict(connection.exec_driver_sql(_SETTINGS).all())
    oldest = connection.exec_driver_sql(_OLDEST).first()
    standbys, unseen, dead_rows, is_superuser = connection.exec_driver_sql(_COUNTS).one()
    return ServerState(
        fsync=settings["fsync"] == "on",
        full_page_writes=settings["full_page_writes"] == "on",
        synchronous_commit=settings["synchronous_commit"],
        standbys=standbys,
        synchronous_standby_names=settings["synchronous_standby_names"],
        oldest=None if oldest is None else OpenTransaction(*oldest),
        unseen=unseen,
        dead_rows=int(dead_rows),
        is_superuser=is_superuser,
    )


#: Vacuum after few dead rows of a large table, and with short pauses.
_LOG = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "20000",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_vacuum_insert_threshold": "50000",
    "autovacuum_analyze_scale_factor": "0.05",
    "autovacuum_analyze_threshold": "20000",
    "autovacuum_vacuum_cost_delay": "1",
    "autovacuum_vacuum_cost_limit": "1000",
}

#: Free space in each page for new versions of its rows, so that no index changes.
_HOT = {"fillfactor": "40", "autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "1000"}

_BURSTS = {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "2000"}

PARAMETERS = {
    "wheel_timer": _LOG,
    "wheel_outcome": _LOG,
    "wheel_batch": _LOG,
    "wheel_shard": _HOT,
    "wheel_snapshot": _HOT,
    "wheel_lane": _HOT,
    "wheel_tally": {**_HOT, "fillfactor": "70"},
    "wheel_total": {**_HOT, "fillfactor": "70"},
    "wheel_inbox": _BURSTS,
    "wheel_load_chunk": _BURSTS,
    "wheel_answer": _BURSTS,
    "wheel_tombstone": _BURSTS,
    "wheel_watch": _LOG,
    "wheel_schedule": {**_LOG, "fillfactor": "80"},
    "wheel_run": _LOG,
    "wheel_schedule_skip": _LOG,
}

#: Set the parameters of the tables that exist: of all, or of those that a migration of Django has made so far. After a
#: change here, a new migration runs them again.
STATEMENTS = [
    f"ALTER TABLE IF EXISTS {table} SET ({', '.join(f'{name} = {value}' for name, value in parameters.items())})"
    for table, parameters in PARAMETERS.items()
]
