"""Names of tasks that schedules send: those that are certainly wrong, and those that an app does not have.

::

    shop.tasks.report     registered                                    good
    shop.tasks.reprot     other tasks of shop.tasks are registered      refused by create, update and create_many
    billing.tasks.charge  no task of billing.tasks is registered        sent by its name, as Beat does, with a warning:
                                                                        another project's workers may have it

The modules of the app's tasks are imported first, as by a worker that starts: those of ``imports`` and ``include``, and
those that ``autodiscover_tasks`` finds. So the answer is the same in every process, also in one that only sends.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from importlib import import_module
from typing import Any
from weakref import WeakSet

from celery_wheel.errors import ArgumentError

logger = logging.getLogger(__name__)

#: Apps whose modules of tasks are imported.
_imported = WeakSet[Any]()


def check_task_name(app: Any, name: Any) -> None:
    """Refuse a name that its module does not have. Raises ArgumentError."""
    if not isinstance(name, str) or _find(app, name) is not None:
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


def _import_tasks(app: Any) -> str:
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


def _find(app: Any, name: str) -> Any:
    """Return the task of a name, or None with a warning in the log."""
    task = app.tasks.get(name)
    if task is not None:
        return task
    failed = _import_tasks(app)
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
