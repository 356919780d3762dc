"""``celery -A proj wheel …``: read the wheel's store, and change pending tasks; ``--json`` is for programs.

::

    status      status, levels, forecast                    group      the group, exit codes, the wheel of a command
    pending     list, show, cancel, reschedule, run-now,    paging     pages of rows
                complete                                    selection  names or a filter, requests, each name's result
    history     history, rejected, requeue, replay, audit
    pause       pause, resume                               schedules  schedules …
    operations  migrate, move, reshard, claim-broker, claim-store, drain, import, clock, loads
    doctor      doctor, bench

Reading commands read the store, so they work in any process that reaches it, also while no scheduler runs; ``doctor``
reads the broker as well. Values that only the holder has (levels, horizon) come from its last snapshot, with its age.
Commands that change tasks send a request to the holders, and print its results.

Exit codes of every command: 0 done; 1 an error, which stderr explains; 2 a wrong command line; 3 done, and the answer
needs action (no holder, no such task, a warning, too late); 4 no scheduler answered in time, and the request was
withdrawn. Errors go to stderr.

Celery imports this package on every ``celery`` call, so commands import the engine, the broker, the database and rich
inside their functions.
"""

from __future__ import annotations

# Each module adds its commands to the group.
from celery_wheel.cli import doctor, history, operations, pause, pending, schedules, status  # noqa: F401
from celery_wheel.cli.group import wheel

__all__ = ["wheel"]
