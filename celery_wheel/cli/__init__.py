"""``celery -A proj wheel …``: read the wheel's store, and change pending tasks; ``--json`` is for programs.

Reading commands read the store, so they work in any process that reaches it, also while no scheduler runs; ``doctor``
reads the broker as well. Values that only the holder has (levels, horizon) come from its last snapshot, with its age.
Commands that change tasks send a request to the holders, and print its results. Errors go to stderr.

Celery imports this package on every ``celery`` call, so commands import the engine, the broker, the database and rich
inside their functions.
"""

from __future__ import annotations

# Each module adds its commands to the group.
from celery_wheel.cli import (  # noqa: F401
    bulk,
    doctor,
    erase,
    groups,
    history,
    operations,
    pause,
    pending,
    schedules,
    status,
)
from celery_wheel.cli.group import wheel

__all__ = ["wheel"]
