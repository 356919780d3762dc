"""``celery wheel schedules …``: read and change recurring schedules, as ``app.wheel.schedules`` does.

::

    group     the group, its filter and results; delete, pause, resume, trigger, backfill, rollback
    reading   list, show, history, preview      from the store
    define    create, update                    ─► arguments of ``app.wheel.schedules.create``
    imports   import                            from other systems: ``celery_wheel.operations.schedule_import``
"""

from __future__ import annotations

# Each module adds its commands to the group.
from celery_wheel.cli.schedules import define, group, imports, reading  # noqa: F401
from celery_wheel.cli.schedules.group import schedules

__all__ = ["schedules"]
