"""Names of tasks that schedules send: those that are certainly wrong, and those that an app does not have.

::

    shop.tasks.report     registered                                    good
    shop.tasks.reprot     other tasks of shop.tasks are registered      refused by create, update and create_many
    billing.tasks.charge  no task of billing.tasks is registered        sent by its name, as Beat does, with a warning:
                                                                        another project's workers may have it

The modules of the app's tasks are imported first, so the answer is the same in every process.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from celery_wheel.conf.task_registry import find_task
from celery_wheel.errors import ArgumentError


def check_task_name(app: Any, name: Any) -> None:
    """Refuse a name that its module does not have. Raises ArgumentError."""
    if not isinstance(name, str) or find_task(app, name) is not None:
        return
    module, _, function = name.rpartition(".")
    others = sorted(one for of, _, one in (known.rpartition(".") for known in app.tasks) if module and of == module)
    if others:
        close = get_close_matches(function, others, 1)
        hint = f"did you mean {module}.{close[0]}?" if close else f"{module} has {', '.join(others[:5])}"
        raise ArgumentError(
            f"task must be a task of the app, got {name!r:.100} ({hint}); with check_task=False the task is sent by "
            "its name, where only other workers have it"
        )


def unknown_tasks(app: Any, names: Iterable[str]) -> set[str]:
    """Return the names that the app does not have once the modules of its tasks are imported, as a worker does.

    Raises whatever these modules raise.
    """
    app.loader.import_default_modules()
    return {name for name in names if name not in app.tasks}
