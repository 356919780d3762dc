"""``celery -A proj wheel …``: read the wheel's store, and change pending tasks; ``--json`` is for programs.

::

    group      the group, its exit codes, the wheel of a command      status      status, levels
    paging     pages of rows                                          tasks       list, show
    selection  ids, ids on stdin, a filter                            history     history, rejected
    results    requests in parts, and each task's result              cancel      cancel, reschedule, run-now
    report     the tables of ``status``                               requeue     requeue, replay
    project    Django's set-up, for doctor and bench                  pause       pause, resume
                                                                      drain       drain, import
                                                                      bulk_loads  loads
                                                                      schedules   schedules …
                                      audit, bench, claim, clock, complete, doctor, forecast, migrate, reshard: one each

Reading commands read the store, so they work in any process that reaches it, also while no scheduler runs; ``doctor``
asks the broker as well. Values that only the holder has (levels, horizon) come from its last snapshot, with its age.
Commands that change tasks send a request to the holders, and print its results.

Exit codes of every command: 0 done; 1 an error, which stderr explains; 2 a wrong command line; 3 done, and the answer
needs action (no holder, no such task, a warning, too late); 4 no scheduler answered in time, and the request was
withdrawn. Errors go to stderr.

Celery imports this package on every ``celery`` call, so commands import the engine, the broker, the database and rich
inside their functions.
"""

from __future__ import annotations

from celery_wheel.cli import (  # noqa: F401 - each module adds its commands to the group
    bulk_loads,
    doctor,
    drain,
    history,
    operations,
    pause,
    pending,
    schedules,
    status,
)
from celery_wheel.cli.group import wheel

__all__ = ["wheel"]
