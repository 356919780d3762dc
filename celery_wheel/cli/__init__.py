"""``celery -A proj wheel …``: what the wheel holds, and what is to become of it; ``--json`` is for programs.

::

    group     the group, and the wheel that its commands ask      status    status, levels
    options   filters, instants, places                           tasks     list, show
    output    tables, JSON, progress                              past      history, rejected
    listing   pages                                               acting    cancel, reschedule, run-now
    chosen    ids, ids on stdin, a filter                         again     requeue, replay
    verdicts  what the holders said of each                       gates     pause, resume
                                                                  completing  complete
                                                                  clock     clock
                                                                  leaving   drain, import
                                                                  loads     bulk loads
                                                                  migrate, reshard, claim, bench, forecast, doctor

Everything is read from the store, so any process that reaches it can ask, also while no scheduler runs; ``doctor`` asks
the broker as well. What only the holder knows (levels, edge) is its last snapshot, with its age. What acts is a request
to the holders, with a verdict.

Exit codes, of every command: 0 done; 1 it could not be done, and why is said; 2 the command line makes no sense; 3 it
was done, and the answer is one to act upon (no holder, no such task, a warning, too late); 4 no scheduler answered in
time, and what was asked was withdrawn. Errors go to stderr.

Imported on every ``celery`` call: the heavy imports are inside the commands.
"""

from __future__ import annotations

from celery_wheel.cli import (
    acting,
    again,
    bench,
    claim,
    clock,
    completing,
    doctor,
    forecast,
    gates,
    leaving,
    loads,
    migrate,
    past,
    reshard,
    status,
    tasks,
)
from celery_wheel.cli.group import wheel

__all__ = [
    "acting",
    "again",
    "bench",
    "claim",
    "clock",
    "completing",
    "doctor",
    "forecast",
    "gates",
    "leaving",
    "loads",
    "migrate",
    "past",
    "reshard",
    "status",
    "tasks",
    "wheel",
]
