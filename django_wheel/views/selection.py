"""The selection of tasks that a browser sent: row numbers, looked up in the store.

A browser may send any number, so the store decides which tasks exist; no text from a browser is used as a task id.
Requests name tasks by id: each pending try of a selected task is included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from celery_wheel.control import Wheel
from celery_wheel.requests.arguments import id_of
from celery_wheel.store.ports.pages import StoppedTask, Task
from celery_wheel.values.text import whole_number
from django_wheel.formats import counted, number
from django_wheel.views.actions import TaskAction

#: Tasks in one request, as in one command of ``celery_wheel.requests``.
MAX_TASKS = 500

_MISSING = ngettext_lazy(
    "%(number)s selected task is not in the store any more.",
    "%(number)s selected tasks are not in the store any more.",
    "count",
)
_UNNAMED = ngettext_lazy(
    "%(number)s selected task has no task id and cannot be changed.",
    "%(number)s selected tasks have no task id and cannot be changed.",
    "count",
)


class SelectionError(Exception):
    """The selection has no task on which the action is possible; the text tells the user why."""


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """``missing``: how many rows the store no longer has; ``unnamed``: how many rows have no usable task id."""

    tasks: list[Task]
    missing: int
    unnamed: int

    @property
    def task_ids(self) -> list[str]:
        return list(dict.fromkeys(task.task_id for task in self.tasks))

    @property
    def problems(self) -> str:
        """Sentences about the rows that are left out; empty if there are none."""
        counts = ((_MISSING, self.missing), (_UNNAMED, self.unnamed))
        return " ".join(counted(text, count) for text, count in counts if count)


def selection_of(wheel: Wheel, action: TaskAction, rows: Iterable[str]) -> TaskSelection:
    """Raises SelectionError if no task is left to change."""
    distinct = list(dict.fromkeys(rows))
    if not distinct:
        raise SelectionError(_("Nothing was done, because no task was selected. Select tasks first."))
    if len(distinct) > MAX_TASKS:
        raise SelectionError(
            _(
                "Nothing was done, because at most %(most)s tasks can be selected at once, got %(number)s. "
                "Select all tasks that match the filter, or use the command line: %(command)s"
            )
            % {
                "most": number(MAX_TASKS),
                "number": number(len(distinct)),
                "command": f"celery -A proj wheel {action.verb.replace('_', '-')}",
            }
        )
    numbers = {id_ for id_ in map(whole_number, distinct) if id_ is not None}
    found = wheel.store.browse.tasks(numbers)
    tasks = [task for task in found if has_usable_id(task)]
    selection = TaskSelection(tasks, len(distinct) - len(found), len(found) - len(tasks))
    if not tasks:
        raise SelectionError(_("Nothing was done. %(problems)s") % {"problems": selection.problems})
    return selection


def has_usable_id(task: Task | StoppedTask) -> bool:
    try:
        id_of(task.task_id)
    except ValueError:  # a message that could not be read has none
        return False
    return True
