"""Entries in the admin's log: one for each request that was carried out, with its results.

The store keeps the actor and the reason with each message. If an entry cannot be written, the action stays done and a
message tells the user so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from celery_wheel.requests.results import CommandResult, ScheduleAnswer
from celery_wheel.store.ports.pages import Task
from django_wheel import models
from django_wheel.formats import counted, number, printable, result_label
from django_wheel.views.actions import TaskAction
from django_wheel.views.bulk_action import BulkAction

#: Task ids in an entry.
IDS = 20
#: Characters of an entry's title, as Django's table has them.
TITLE_CUT = 200

_PAGES = {"pending": models.Pending, "rejected": models.Rejected}
_SCHEDULES = ngettext_lazy("%(number)s schedule", "%(number)s schedules", "count")
_TASKS = ngettext_lazy("%(number)s task", "%(number)s tasks", "count")


def record_tasks(
    request: HttpRequest, action: TaskAction, tasks: Sequence[Task], results: Mapping[str, CommandResult], reason: str
) -> None:
    counts = Counter(results.values())
    phrases = ", ".join(f"{number(count)} {result_label(result)}" for result, count in counts.items())
    ids = [printable(task_id, 40) for task_id in list(results)[:IDS]] + ["…"] * (len(results) > IDS)
    row = str(tasks[0].id) if len(tasks) == 1 else ""
    title = f"{action.label}: {ids[0] if len(results) == 1 else counted(_TASKS, len(results))}"
    named = _("tasks: %(ids)s") % {"ids": ", ".join(ids)}
    _write(request, _PAGES[action.page], row, title, f"{action.label}: {phrases}", reason, named)


def record_bulk(request: HttpRequest, bulk: BulkAction) -> None:
    title = f"{bulk.action.label}: {counted(_TASKS, bulk.count)}"
    phrases = ", ".join(f"{number(count)} {label}" for label, count in bulk.counts)
    named = _("filter: %(filter)s") % {"filter": printable(bulk.filter, 500)}
    _write(request, _PAGES[bulk.action.page], "", title, f"{bulk.action.label}: {phrases}", bulk.reason, named)


def record_schedules(request: HttpRequest, label: Promise, answers: Mapping[str, ScheduleAnswer], reason: str) -> None:
    counts = Counter(answer.result for answer in answers.values())
    phrases = ", ".join(f"{number(count)} {result_label(result)}" for result, count in counts.items())
    names = [printable(name, 40) for name in list(answers)[:IDS]] + ["…"] * (len(answers) > IDS)
    title = f"{label}: {names[0] if len(answers) == 1 else counted(_SCHEDULES, len(answers))}"
    named = _("schedules: %(names)s") % {"names": ", ".join(names)}
    _write(request, models.Schedule, "", title, f"{label}: {phrases}", reason, named)


def record_gate(request: HttpRequest, label: Promise, name: str, reason: str) -> None:
    title = f"{label}: {printable(name)}"
    _write(request, models.Wheel, "", title, title, reason)


def _write(request: HttpRequest, page: Any, row: str, title: str, result: str, reason: str, *more: str) -> None:
    reasons = [_("reason: %(reason)s") % {"reason": printable(reason, 500)}] if reason else []
    try:
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type_id=ContentType.objects.get_for_model(page, for_concrete_model=False).pk,
            object_id=row,
            object_repr=title[:TITLE_CUT],
            action_flag=CHANGE,
            change_message="; ".join([result, *reasons, *more]),
        )
    except DatabaseError as error:
        text = _("The action is done, but the admin's log has no entry of it: %(error)s.")
        messages.warning(request, text % {"error": printable(error, 300)})
