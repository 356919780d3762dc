"""The tables' storage parameters, set when the tables are made: autovacuum and fillfactor.

::

    wheel_timer                     every row is inserted once and deleted once, anywhere in the table
    wheel_outcome, wheel_batch      the same
    wheel_schedule                  a row is updated with each occurrence, anywhere in the table
    wheel_shard, wheel_lane         a row or a few, updated twenty times a second: HOT, pruned in place
    wheel_snapshot                  a row for each shard, updated twice a second
    wheel_tally, wheel_total        updated in every commit, one row an hour, queue and task; and their sums
    wheel_inbox, wheel_load_chunk   empty most of the time, written and deleted in bursts

The defaults wait until a fifth of a table is dead, 2 million rows of 10 million; they also pause often.

Measured (docs/benchmarks.md; python -m tests.benchmarks.bloat --rows 2000000): with these
parameters, tables and indexes stop growing after the first vacuum, since the dead rows are those of one nap and one
vacuum; with the defaults, no large table was vacuumed in 192 s, and both ended 2.5 and 2.9 times as large. So
there are no partitions. For more than about 5,000 tasks/s all day, lower autovacuum_naptime on the server.
"""

from __future__ import annotations

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
    "wheel_schedule_run": _LOG,
    "wheel_schedule_skip": _LOG,
}

#: Set the parameters of the tables that exist: of all, or of those that a migration of Django has made so far. After a
#: change here, a new migration runs them again.
STATEMENTS = [
    f"ALTER TABLE IF EXISTS {table} SET ({', '.join(f'{name} = {value}' for name, value in parameters.items())})"
    for table, parameters in PARAMETERS.items()
]
