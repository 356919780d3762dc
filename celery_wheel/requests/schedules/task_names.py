"""Names of tasks that schedules send: those that are certainly wrong, and those that an app does not have.

::

    shop.tasks.report     registered                                    good
    shop.tasks.reprot     other tasks of shop.tasks are registered      refused by create, update and create_many
    billing.tasks.charge  no task of billing.tasks is registered        sent by its name, as Beat does, with a warning:
                                                                        another project's workers may have it

The names of an app are those that this process has imported. A process that only sends may have imported few: no module
is imported for the answer, since Celery would check the whole Django project then, within a request for a page.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any
from weakref import WeakKeyDictionary

from celery_wheel.errors import ArgumentError

logger = logging.getLogger(__name__)

#: App → names that the log has warned of.
_warned = WeakKeyDictionary[Any, set[str]]()


def check_task_name(app: Any, name: Any) -> None:
    """Refuse a name that its module does not have. Raises ArgumentError."""
    if not isinstance(name, str) or name in app.tasks:
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
    warn_of_unknown(app, name)


def warn_of_unknown(app: Any, name: str) -> None:
    """Write a name that the app does not have into the log, once in a process."""
    warned = _warned.setdefault(app, set())
    if name not in app.tasks and name not in warned:
        warned.add(name)
        logger.warning(
            "task %s is not registered in this process: it is sent by its name, and a worker that does not know it "
            "rejects it",
            name,
            extra={"action": "unknown_task", "task": name},
        )


def unknown_tasks(app: Any, names: Iterable[str]) -> set[str]:
    """Return the names that the app does not have once the modules of its tasks are imported, as a worker does.

    Raises whatever these modules raise.
    """
    app.loader.import_default_modules()
    return {name for name in names if name not in app.tasks}
