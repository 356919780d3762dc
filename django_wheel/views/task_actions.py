"""The actions on tasks: their texts, their forms, their requests, and the tasks that a browser selected.

A browser sends row numbers. It may send any number, so the store decides which tasks exist, and no text from a browser
is used as a task id. Requests name tasks by id: each pending try of a selected task is included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel
from celery_wheel.requests.arguments import id_of
from celery_wheel.requests.results import CommandResult
from celery_wheel.store.model import REQUEUABLE
from celery_wheel.store.ports.pages import StoppedTask, Task
from celery_wheel.values.format import printable
from celery_wheel.values.text import whole_number
from django_wheel.formats import counted, ngettext_lazy, number
from django_wheel.forms import ReasonForm, RescheduleForm
from django_wheel.views.requests import Action, SelectedRows, SelectionError, log_names

#: Tasks in one request, as in one command of ``celery_wheel.requests``; and task ids in a message.
MAX_TASKS, IDS = 500, 5

TASKS = ngettext_lazy("%(number)s task", "%(number)s tasks")
_ALREADY = ngettext_lazy(
    "%(number)s task was cancelled by an earlier request and will not be dispatched.",
    "%(number)s tasks were cancelled by earlier requests and will not be dispatched.",
)
_TOO_LATE = ngettext_lazy(
    "%(number)s task was too late: it has been handed to the broker, or may have been (%(ids)s).",
    "%(number)s tasks were too late: they have been handed to the broker, or may have been (%(ids)s).",
)
_UNKNOWN = ngettext_lazy(
    "%(number)s task is unknown to the wheel (%(ids)s).", "%(number)s tasks are unknown to the wheel (%(ids)s)."
)
_UNANSWERED = ngettext_lazy("%(number)s task had no answer: %(error)s", "%(number)s tasks had no answer: %(error)s")
_MISSING = ngettext_lazy(
    "%(number)s selected task is not in the store any more.", "%(number)s selected tasks are not in the store any more."
)
_UNNAMED = ngettext_lazy(
    "%(number)s selected task has no task id and cannot be changed.",
    "%(number)s selected tasks have no task id and cannot be changed.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAction(Action):
    question_of_all: Promise  #: asks for confirmation where the action is for all tasks that match a filter
    page: str = "pending"
    form: type[ReasonForm] = ReasonForm
    unanswered: Promise = _UNANSWERED
    too_late: Promise = _TOO_LATE
    unknown: Promise = _UNKNOWN

    def select(self, wheel: Wheel, rows: Iterable[str]) -> SelectedRows:
        distinct = list(dict.fromkeys(rows))
        if not distinct:
            raise SelectionError(_("Nothing was done, because no task was selected. Select tasks first."))
        if len(distinct) > MAX_TASKS:
            command = f"celery -A proj wheel {self.verb.replace('_', '-')}"
            text = _(
                "Nothing was done, because at most %(most)s tasks can be selected at once, got %(number)s. "
                "Select all tasks that match the filter, or use the command line: %(command)s"
            )
            values = {"most": number(MAX_TASKS), "number": number(len(distinct)), "command": command}
            raise SelectionError(text % values)
        found = wheel.store.browse.tasks({id_ for id_ in map(whole_number, distinct) if id_ is not None})
        tasks = [task for task in found if has_usable_id(task)]
        left_out = ((_MISSING, len(distinct) - len(found)), (_UNNAMED, len(found) - len(tasks)))
        problems = " ".join(counted(text, count) for text, count in left_out if count)
        if not tasks:
            raise SelectionError(_("Nothing was done. %(problems)s") % {"problems": problems})
        ids = list(dict.fromkeys(task.task_id for task in tasks))
        return SelectedRows(ids, tasks, problems, str(tasks[0].id) if len(tasks) == 1 else "")

    def report(self, request: HttpRequest, results: Mapping[str, CommandResult]) -> None:
        for result, add, text in (
            (CommandResult.DONE, messages.success, self.done),
            (CommandResult.ALREADY, messages.info, _ALREADY),
            (CommandResult.TOO_LATE, messages.warning, self.too_late),
            (CommandResult.UNKNOWN, messages.warning, self.unknown),
        ):
            if ids := [task_id for task_id, one in results.items() if one is result]:
                shown = ", ".join(printable(task_id, 40) for task_id in ids[:IDS]) + (" …" if len(ids) > IDS else "")
                add(request, counted(text, len(ids), ids=shown))

    def log(self, request: HttpRequest, results: Mapping[str, CommandResult], reason: str, row: str) -> None:
        log_names(request, self.page, self.label, results, (TASKS, _("tasks: %(ids)s")), reason, row)


def has_usable_id(task: Task | StoppedTask) -> bool:
    try:
        id_of(task.task_id)
    except ValueError:  # a message that could not be read has none
        return False
    return True


CANCEL = TaskAction(
    "cancel",
    _("Cancel"),
    ngettext_lazy("Cancel %(number)s task?", "Cancel %(number)s tasks?"),
    _("A cancelled task is not dispatched. If several retries of a task are pending, all of them are cancelled."),
    ask=lambda wheel, ids, values, options: wheel.cancel(ids, **options),
    question_of_all=ngettext_lazy("Cancel all %(number)s task?", "Cancel all %(number)s tasks?"),
    done=ngettext_lazy("%(number)s task is cancelled.", "%(number)s tasks are cancelled."),
    unknown=ngettext_lazy(
        "%(number)s task is unknown to the wheel; if it arrives within a day, it will not be dispatched (%(ids)s).",
        "%(number)s tasks are unknown to the wheel; those that arrive within a day will not be dispatched (%(ids)s).",
    ),
)
RUN_NOW = TaskAction(
    "run_now",
    _("Run now"),
    ngettext_lazy("Run %(number)s task now?", "Run %(number)s tasks now?"),
    _("The scheduler dispatches the tasks to their queues at once."),
    ask=lambda wheel, ids, values, options: wheel.run_now(ids, **options),
    question_of_all=ngettext_lazy("Run all %(number)s task now?", "Run all %(number)s tasks now?"),
    done=ngettext_lazy("%(number)s task is dispatched now.", "%(number)s tasks are dispatched now."),
)
RESCHEDULE = TaskAction(
    "reschedule",
    _("Reschedule"),
    ngettext_lazy("Reschedule %(number)s task?", "Reschedule %(number)s tasks?"),
    _("The scheduler dispatches the tasks at the new time, all of them at the same time."),
    ask=lambda wheel, ids, values, options: wheel.reschedule(ids, eta=values["eta"], **options),
    question_of_all=ngettext_lazy("Reschedule all %(number)s task?", "Reschedule all %(number)s tasks?"),
    done=ngettext_lazy("%(number)s task is rescheduled.", "%(number)s tasks are rescheduled."),
    form=RescheduleForm,
)
REQUEUE = TaskAction(
    "requeue",
    _("Requeue"),
    ngettext_lazy("Requeue %(number)s task?", "Requeue %(number)s tasks?"),
    _("The scheduler dispatches the tasks to their queues at once. Fix the cause of the rejection first."),
    page="rejected",
    ask=lambda wheel, ids, values, options: wheel.requeue(ids, **options),
    question_of_all=ngettext_lazy("Requeue all %(number)s task?", "Requeue all %(number)s tasks?"),
    done=ngettext_lazy("%(number)s task is requeued.", "%(number)s tasks are requeued."),
    too_late=ngettext_lazy(
        "%(number)s task is not rejected any more (%(ids)s).", "%(number)s tasks are not rejected any more (%(ids)s)."
    ),
    unknown=ngettext_lazy(
        "%(number)s task is not in the store any more (%(ids)s).",
        "%(number)s tasks are not in the store any more (%(ids)s).",
    ),
)

OF_PENDING = (CANCEL, RUN_NOW, RESCHEDULE)
OF_REJECTED = (REQUEUE,)
ACTIONS = {action.verb: action for action in (*OF_PENDING, *OF_REJECTED)}


def of_state(state: str) -> tuple[TaskAction, ...]:
    """Return the actions on a task in this state, as ``Detail.state`` has it."""
    if state == "pending":
        return OF_PENDING
    return OF_REJECTED if state in REQUEUABLE else ()
