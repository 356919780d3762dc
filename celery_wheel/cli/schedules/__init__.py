"""``celery wheel schedules …``: read and change recurring schedules, as ``app.wheel.schedules`` does.

::

    group        the group, the filter, the names and the results that its commands share
    listing      list                          reads the store
    detail       show, history, preview        reads the store
    definition   the options of a definition   ─► arguments of ``app.wheel.schedules.create``
    define       create, update                by the holder, with a result
    change       delete, pause, resume, trigger, backfill, rollback
    imports      import                        from other systems: ``celery_wheel.operations.schedule_import``
"""

from __future__ import annotations

from celery_wheel.cli.schedules import change, define, imports, reading  # noqa: F401 - each adds its commands to the group
from celery_wheel.cli.schedules.group import schedules

__all__ = ["schedules"]
