"""``celery -A proj wheel …``: what the wheel holds, for people and, with ``--json``, for programs.

::

    group     the group, and the wheel that its commands ask      status    status, levels
    options   filters, instants, places                           tasks     list, show
    output    tables, JSON, progress                              past      history, rejected
                                                                  forecast, doctor, reshard

Everything is read from the store, so any process that reaches it can ask, also while no scheduler runs; ``doctor`` asks
the broker as well. What only the holder knows (levels, edge) is its last snapshot, with its age.

Exit codes, of every command: 0 done; 1 it could not be done, and why is said; 2 the command line makes no sense; 3 it
was done, and the answer is one to act upon (no holder, no such task, a warning). Errors go to stderr.

Imported on every ``celery`` call: the heavy imports are inside the commands.
"""

from __future__ import annotations

from celery_wheel.cli import doctor, forecast, past, reshard, status, tasks
from celery_wheel.cli.group import wheel

__all__ = ["doctor", "forecast", "past", "reshard", "status", "tasks", "wheel"]
