"""The list of schedules, and the addresses of the pages of schedules.

::

    …/schedule/            GET          view     the list, with filters
    …/schedule/one/?name=  GET          view     ``schedule``: next instants, runs, revisions
    …/schedule/act/        POST         manage   ``schedule_actions``: confirmation, then a request to the holders
    …/schedule/edit/       GET, POST    manage   ``schedule_edit``: the form of a new schedule; with ?name= of that one,
                                                 whose arguments it has: view_payload as well
    …/schedule/preview/    POST         manage   the form's next instants and errors, as JSON

The list pages by name; a page costs three statements, and five more while nothing matches.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.urls import URLPattern, path

from celery_wheel.control import Wheel
from celery_wheel.store.schedule_model import ScheduleCriteria, SchedulePage
from django_wheel import models
from django_wheel.views import requests, schedule, schedule_edit
from django_wheel.views.page import READING, PageAdmin, may_manage_schedules, may_view_payload
from django_wheel.views.query import LINES, PageQuery
from django_wheel.views.schedule_actions import ACTIONS, OF_SELECTION

#: Parts of the store that are read for one page while nothing matches the filter.
SEARCHES = 5

#: State → its flags in the store.
STATES: dict[str, dict[str, Any]] = {
    "active": {"paused": False, "broken": False},
    "paused": {"paused": True},
    "broken": {"broken": True},
}
#: Sources of this package; programs may have others.
SOURCES = ("api", "code", "beat", "django-celery-beat")


def schedules(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    state = query.choice("state", STATES)
    criteria = ScheduleCriteria(
        shard=query.criteria.shard,
        part=query.word("part"),
        source=query.word("source"),
        task=query.word("task"),
        **STATES.get(state or "", {}),
    )
    page = _page(wheel, criteria, query.word("after_name") or "")
    pending = wheel.store.browse.pending_runs([one.id for one in page.items])
    return {
        "page": page,
        "lines": [schedule.line_of(one, pending.get(one.id, 0)) for one in page.items],
        "criteria": criteria,
        "states": [(one, one == state) for one in STATES],
        "sources": SOURCES,
        "actions": OF_SELECTION,
    }


def _page(wheel: Wheel, criteria: ScheduleCriteria, after: str) -> SchedulePage:
    """Return the first page that is not empty, or the last that was searched."""
    page = SchedulePage([], after)
    for _search in range(SEARCHES + 1):
        page = wheel.store.browse.schedules(criteria, page.next or "", LINES)
        if page.items or page.next is None:
            break
    return page


@admin.register(models.Schedule)
class ScheduleAdmin(PageAdmin):
    template = "django_wheel/schedules.html"
    values = staticmethod(schedules)
    may_act = staticmethod(may_manage_schedules)

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("one/", self.guarded(partial(schedule.page, self)), name=f"{name}_one"),
            path("act/", self.for_operators(self.act, ("POST",)), name=f"{name}_act"),
            path("edit/", self.for_operators(self.edit, (*READING, "POST")), name=f"{name}_edit"),
            path("preview/", self.for_operators(schedule_edit.preview, ("POST",)), name=f"{name}_preview"),
        ]

    def act(self, request: HttpRequest) -> HttpResponse:
        action = ACTIONS.get(request.POST.get("verb", ""))
        if action is None:
            return HttpResponseBadRequest(f"verb must be one of {', '.join(ACTIONS)}", content_type="text/plain")
        return requests.handle(request, action, partial(self.show, request, "django_wheel/schedule_confirm.html"))

    def edit(self, request: HttpRequest) -> HttpResponse:
        if "name" in request.GET and not may_view_payload(request):
            raise PermissionDenied
        return schedule_edit.handle(request, partial(self.show, request, "django_wheel/schedule_edit.html"))
