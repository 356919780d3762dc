"""Schedules that tasks declare beside their code, by the option ``wheel_schedule``: the source "code".

::

    @app.task(wheel_schedule=Crontab("0", "9"))                          a schedule with the name of the task
    @shared_task(wheel_schedule={"recurrence": crontab(hour=9), "zone": "Asia/Tokyo", "queue": "mail"})
    @app.task(wheel_schedule=[{"name": "hourly", "recurrence": 3600}, {"name": "nightly", …}])

A mapping has the arguments of ``app.wheel.schedules.create`` but the task. The entries are read when a scheduler takes
shard 0: added, changed and removed declarations are followed then. An invalid declaration becomes a broken schedule,
with the reason, and harms no other; of two schedules with one name, the second is broken under a name of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from celery_wheel.errors import RecurrenceError, WheelError
from celery_wheel.requests.schedules.definitions import definition_of
from celery_wheel.scheduler.sources.entry import SourceEntry, broken
from celery_wheel.values.text import text_rule

#: The option of a task, which Celery keeps as an attribute.
OPTION = "wheel_schedule"


def declared_entries(app: Any) -> dict[str, SourceEntry]:
    """Return the declared schedules of all tasks of an app by their names."""
    found: dict[str, SourceEntry] = {}
    for task_name, task in sorted(app.tasks.items()):
        value = getattr(task, OPTION, None)
        if value is None:
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            name, entry = _entry(app, task_name, one)
            if name in found:
                name, entry = _free_name(task_name, found), broken(task_name, f"another task declares {name!r:.100}")
            found[name] = entry
    return found


def _entry(app: Any, task_name: str, value: Any) -> tuple[str, SourceEntry]:
    declared = dict(value) if isinstance(value, Mapping) and "kind" not in value else {"recurrence": value}
    name = declared.pop("name", task_name)
    try:
        if rule := text_rule(name):
            raise RecurrenceError(f"name must be {rule}, got {name!r:.60}")
        return name, SourceEntry(definition_of(app, {**declared, "task": task_name}))
    except (WheelError, TypeError, ValueError) as error:
        return (task_name if text_rule(name) else name), broken(task_name, f"{OPTION} of {task_name}: {error}")


def _free_name(task_name: str, found: Mapping[str, SourceEntry]) -> str:
    names = (f"{task_name} {number}" for number in count(2))
    return next(name for name in names if name not in found)
