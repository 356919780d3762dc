"""The actions on tasks that the admin offers: their texts, their forms and the requests that they make.

::

    action                        applies to              too late means
    cancel, run_now, reschedule   pending tasks           the task was handed to the broker
    requeue                       rejected, expired and   the task is in no such state any more
                                  parked tasks
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from celery_wheel.requests.results import CommandResult
from celery_wheel.store.model import REQUEUABLE
from django_wheel.formats import counted
from django_wheel.forms import ReasonForm, RescheduleForm

#: Sends a request: the wheel, the task ids, the form's values, and the request's actor, reason and timeout.
Ask = Callable[[Any, list[str], dict[str, Any], dict[str, Any]], Mapping[str, CommandResult]]

_ALREADY = ngettext_lazy(
    "%(number)s task was cancelled by an earlier request and will not be dispatched.",
    "%(number)s tasks were cancelled by earlier requests and will not be dispatched.",
    "count",
)
_TOO_LATE = ngettext_lazy(
    "%(number)s task was too late: it has been handed to the broker, or may have been (%(ids)s).",
    "%(number)s tasks were too late: they have been handed to the broker, or may have been (%(ids)s).",
    "count",
)
_UNKNOWN = ngettext_lazy(
    "%(number)s task is unknown to the wheel (%(ids)s).",
    "%(number)s tasks are unknown to the wheel (%(ids)s).",
    "count",
)


@dataclass(frozen=True, slots=True)
class TaskAction:
    verb: str
    label: Promise
    question: Promise  #: asks for confirmation
    effect: Promise  #: what happens to the tasks
    page: str  #: the page that lists such tasks
    ask: Ask
    done: Promise
    too_late: Promise = _TOO_LATE
    unknown: Promise = _UNKNOWN
    form: type[ReasonForm] = ReasonForm

    def question_for(self, count: int) -> str:
        return counted(self.question, count)

    def result_text(self, result: CommandResult, count: int, ids: str) -> str:
        """Return the sentence that tells the result of ``count`` tasks; ``ids`` names the first few."""
        texts = {
            CommandResult.DONE: self.done,
            CommandResult.ALREADY: _ALREADY,
            CommandResult.TOO_LATE: self.too_late,
            CommandResult.UNKNOWN: self.unknown,
        }
        return counted(texts[result], count, ids=ids)


CANCEL = TaskAction(
    "cancel",
    _("Cancel"),
    ngettext_lazy("Cancel %(number)s task?", "Cancel %(number)s tasks?", "count"),
    _("A cancelled task is not dispatched. If several retries of a task are pending, all of them are cancelled."),
    "pending",
    lambda wheel, ids, values, options: wheel.cancel(ids, **options),
    done=ngettext_lazy("%(number)s task is cancelled.", "%(number)s tasks are cancelled.", "count"),
    unknown=ngettext_lazy(
        "%(number)s task is unknown to the wheel; if it arrives within a day, it will not be dispatched (%(ids)s).",
        "%(number)s tasks are unknown to the wheel; those that arrive within a day will not be dispatched (%(ids)s).",
        "count",
    ),
)
RUN_NOW = TaskAction(
    "run_now",
    _("Run now"),
    ngettext_lazy("Run %(number)s task now?", "Run %(number)s tasks now?", "count"),
    _("The scheduler dispatches the tasks to their queues at once."),
    "pending",
    lambda wheel, ids, values, options: wheel.run_now(ids, **options),
    done=ngettext_lazy("%(number)s task is dispatched now.", "%(number)s tasks are dispatched now.", "count"),
)
RESCHEDULE = TaskAction(
    "reschedule",
    _("Reschedule"),
    ngettext_lazy("Reschedule %(number)s task?", "Reschedule %(number)s tasks?", "count"),
    _("The scheduler dispatches the tasks at the new time, all of them at the same time."),
    "pending",
    lambda wheel, ids, values, options: wheel.reschedule(ids, eta=values["eta"], **options),
    done=ngettext_lazy("%(number)s task is rescheduled.", "%(number)s tasks are rescheduled.", "count"),
    form=RescheduleForm,
)
REQUEUE = TaskAction(
    "requeue",
    _("Requeue"),
    ngettext_lazy("Requeue %(number)s task?", "Requeue %(number)s tasks?", "count"),
    _("The scheduler dispatches the tasks to their queues at once. Fix the cause of the rejection first."),
    "rejected",
    lambda wheel, ids, values, options: wheel.requeue(ids, **options),
    done=ngettext_lazy("%(number)s task is requeued.", "%(number)s tasks are requeued.", "count"),
    too_late=ngettext_lazy(
        "%(number)s task is not rejected any more (%(ids)s).",
        "%(number)s tasks are not rejected any more (%(ids)s).",
        "count",
    ),
    unknown=ngettext_lazy(
        "%(number)s task is not in the store any more (%(ids)s).",
        "%(number)s tasks are not in the store any more (%(ids)s).",
        "count",
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
