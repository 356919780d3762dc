"""The tasks of an app, the same in every process.

::

    app.tasks has the name     the task
    else                       the modules of the app's tasks are imported, as a worker does when it starts: those of
                               ``imports`` and ``include``, and those that ``autodiscover_tasks`` finds
    no module has the task     None: it is sent by its name, as by Beat: workers of another project may have it

A process that only sends has often imported none of these modules: its answer would depend on what it happened to use.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any
from weakref import WeakSet

logger = logging.getLogger(__name__)


#: Apps whose modules of tasks are imported.
_imported = WeakSet[Any]()


def import_tasks(app: Any) -> str:
    """Import the modules of the app's tasks, once; returns the reason where that fails, in parentheses."""
    if app in _imported:
        return ""
    try:
        with _same_language():
            app.loader.import_default_modules()
    except Exception as error:  # raised by modules of the project, which this process may lack
        return f" (the modules of its tasks cannot be imported here: {error!r:.200})"
    _imported.add(app)
    return ""


def _same_language() -> AbstractContextManager[Any]:
    """Keep Django's language: Celery checks a Django project then, which leaves another one behind."""
    conf = sys.modules.get("django.conf")
    if conf is None or not conf.settings.configured:
        return nullcontext()
    translation = import_module("django.utils.translation")
    found: AbstractContextManager[Any] = translation.override(translation.get_language())
    return found


def find_task(app: Any, name: str) -> Any:
    """Return the task of a name, or None with a warning in the log."""
    task = app.tasks.get(name)
    if task is not None:
        return task
    failed = import_tasks(app)
    task = app.tasks.get(name)
    if task is None:
        logger.warning(
            "task %s is not registered in this app%s: it is sent by its name, and a worker that does not know it "
            "rejects it",
            name,
            failed,
            extra={"action": "unknown_task", "task": name},
        )
    return task
