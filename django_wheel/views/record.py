"""Django's own log of the admin: one entry a request that was carried out, with what was said to it.

Each message's own history is in the store, with the same name and reason. An entry that cannot be written undoes
nothing: what was done is done, and it is told.
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

from celery_wheel.present import many, seen
from celery_wheel.requests.verdicts import Verdict
from celery_wheel.store.ports.pages import Task
from django_wheel import models
from django_wheel.views.actions import Action

#: Ids that an entry names.
NAMED = 20

_PAGES = {"pending": models.Pending, "rejected": models.Rejected}


def tasks(
    request: HttpRequest, action: Action, chosen: Sequence[Task], verdicts: Mapping[str, Verdict], reason: str
) -> None:
    counts = Counter(str(one) for one in verdicts.values())
    said = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())
    ids = [seen(one, 40) for one in list(verdicts)[:NAMED]] + ["…"] * (len(verdicts) > NAMED)
    row = str(chosen[0].id) if len(chosen) == 1 else ""
    what = f"{action.label}: {ids[0] if len(verdicts) == 1 else many(len(verdicts), 'task')}"
    _write(request, _PAGES[action.page], row, what, f"{action.label}: {said}", reason, f"tasks: {', '.join(ids)}")


def gate(request: HttpRequest, label: str, what: str, reason: str) -> None:
    _write(request, models.Wheel, "", f"{label}: {seen(what)}", f"{label}: {seen(what)}", reason)


def _write(request: HttpRequest, page: Any, row: str, what: str, said: str, reason: str, *more: str) -> None:
    parts = [said, *([f"reason: {seen(reason, 500)}"] if reason else []), *more]
    try:
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type_id=ContentType.objects.get_for_model(page, for_concrete_model=False).pk,
            object_id=row,
            object_repr=what[:200],
            action_flag=CHANGE,
            change_message="; ".join(parts),
        )
    except DatabaseError as error:
        messages.warning(request, f"It is done; the admin's log could not take it down: {seen(error, 300)}.")
