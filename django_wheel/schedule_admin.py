"""The pages of recurring schedules in the admin.

::

    …/schedule/            GET          view     the list, with filters
    …/schedule/one/?name=  GET          view     a schedule: next instants, runs, revisions
    …/schedule/act/        POST         manage   confirmation of an action on selected schedules, then the action
    …/schedule/edit/       GET, POST    manage   the form of a new schedule; with ?name= of that one, whose arguments
                                                 it has: view_payload as well
    …/schedule/preview/    POST         manage   the form's next instants and errors, as JSON

A change is a request to the holder of the schedule's shard, as each action of the other pages is.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext

from celery_wheel.control import Wheel
from django_wheel.formats import printable
from django_wheel.page_admin import READING, PageAdmin
from django_wheel.permissions import may_manage_schedules, may_view_payload
from django_wheel.views.payload import sight_of
from django_wheel.views.query import PageQuery
from django_wheel.views.schedules import acts, editing, listing
from django_wheel.views.schedules.detail import schedule_values


class ScheduleAdmin(PageAdmin):
    template = "django_wheel/schedules.html"
    values = staticmethod(listing.schedules)
    may_act = staticmethod(may_manage_schedules)

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("one/", self.guarded(self.one), name=f"{name}_one"),
            path("act/", self.for_operators(self.act, ("POST",)), name=f"{name}_act"),
            path("edit/", self.for_operators(self.edit, (*READING, "POST")), name=f"{name}_edit"),
            path("preview/", self.for_operators(editing.preview, ("POST",)), name=f"{name}_preview"),
        ]

    def one(self, request: HttpRequest) -> HttpResponse:
        name = request.GET.get("name", "")

        def values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
            found = wheel.store.browse.schedule(name) if name and "\0" not in name else None
            if found is None:
                raise Http404(f"the store has no schedule {name!r:.100}")
            return schedule_values(wheel, name, found, sight_of(request))

        title = gettext("Schedule %(name)s") % {"name": printable(name)}
        return self.answer(request, "django_wheel/schedule.html", values, title=title)

    def act(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation of an action on the selected schedules; or carry it out."""

        def render(title: str, values: dict[str, Any]) -> HttpResponse:
            template = "django_wheel/schedule_confirm.html"
            return self.answer(request, template, lambda wheel, query: values, title=title)

        return acts.handle(request, render)

    def edit(self, request: HttpRequest) -> HttpResponse:
        """Show the form of a schedule; or, when the user has sent it, show its preview or save it."""

        if "name" in request.GET and not may_view_payload(request):
            raise PermissionDenied

        def render(title: str, values: dict[str, Any]) -> HttpResponse:
            template = "django_wheel/schedule_edit.html"
            return self.answer(request, template, lambda wheel, query: values, title=title)

        return editing.handle(request, render)
