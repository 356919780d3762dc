"""The pages with rows: pending tasks, history, rejected tasks, settlements and shards.

Each list pages by key: the store reads as many rows as the page shows, wherever in the store they are, and counts none.
Names for filters come from the process's overview, which is read once a second. A column is a line of ``COLUMNS``, its
cell a line of ``_CELLS`` in ``templatetags/wheel_format``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel
from celery_wheel.store.model import ORIGIN, OUTCOMES, REQUEUABLE
from celery_wheel.store.ports.pages import END, Page
from celery_wheel.values.format import printable
from django_wheel import models
from django_wheel.drawing import charts
from django_wheel.views import bulk as bulk_actions
from django_wheel.views import requests, task
from django_wheel.views.page import READING, PageAdmin, may_view_payload
from django_wheel.views.query import LINES, PageQuery
from django_wheel.views.task_actions import ACTIONS, OF_PENDING, OF_REJECTED

#: Most names of the list of a filter; a longer list is of no use to people.
NAMES = 1_000

#: Fields that have a column where a row of the page has a value → the column's label and class.
COLUMNS = {
    "task": (_("Task"), ""),
    "target": (_("Queue"), ""),
    "priority": (_("Priority"), "wheel-figure"),
    "key": (_("Key"), ""),
    "group": (_("Group"), ""),
    "size": (_("Size"), "wheel-figure"),
    "reason": (_("Reason"), ""),
    "actor": (_("By"), ""),
    "late_ms": (_("Late"), "wheel-figure"),
    "dispatched_ms": (_("Dispatched"), ""),
    "shard": (_("Shard"), "wheel-figure"),
}


def pending(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    if query.task_id:
        found = wheel.find(query.task_id, with_bytes=False)
        page: Page[Any] = Page([], None)
        return {"found": found, "searched": query.task_id, **_table(wheel, page, [one.task for one in found])}
    page = wheel.pending(query.place or ORIGIN, LINES, **asdict(query.criteria))
    return {"names": filter_names(wheel), **_table(wheel, page), "actions": OF_PENDING}


def history(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    page = wheel.history(query.place or END, LINES, **asdict(query.criteria))
    chart = charts.of_tasks(page.items, wheel.conf.objective_ms)
    return {**_table(wheel, page), "chart": chart, "names": filter_names(wheel)}


def rejected(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    kind = query.choice("kind", OUTCOMES) or OUTCOMES[0]
    links = [(one, query.link(kind=one, after=None, selected=None), one == kind) for one in OUTCOMES]
    page = wheel.outcomes(kind, before=query.place or END, limit=LINES, **asdict(query.criteria))
    actions = OF_REJECTED if kind in REQUEUABLE else ()
    return {**_table(wheel, page), "kinds": links, "kind": kind, "actions": actions}


def settlements(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    return _table(wheel, wheel.settlements(query.place or END, LINES, shard=query.criteria.shard))


def shards(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    return {"shards": wheel.overview().shards}


def _table(wheel: Wheel, page: Page[Any], rows: Sequence[Any] | None = None) -> dict[str, Any]:
    """Return a page with the columns that it needs, each with its head and the start of its cells."""
    shown = page.items if rows is None else rows
    several = wheel.store.shards > 1
    columns = {
        name: (
            format_html('<th scope="col" class="{}">{}</th>', kind, label),
            format_html('<td class="{}" data-label="{}">', kind, label),
        )
        for name, (label, kind) in COLUMNS.items()
        if any(getattr(row, name, None) not in (None, "") for row in shown) and (several or name != "shard")
    }
    return {"page": page, "columns": columns, "several": several}


def filter_names(wheel: Wheel) -> dict[str, list[tuple[str, int]]]:
    """Return the names for filters: the queues and tasks with the most pending messages, sorted, with their counts.

    Pairs: in a template ``items`` of a dict may be a task's name.
    """
    found = wheel.overview()
    return {"queues": sorted(_most(found.queues)), "tasks": sorted(_most(found.tasks))}


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(name, counts[name]) for name in readable(islice(counts, NAMES))]


def readable(names: Iterable[str]) -> list[str]:
    """Return the names that a filter offers: one that a row would cut or show by codes, a user has to enter in full."""
    return [name for name in names if printable(name) == name]


@admin.register(models.Pending)
class PendingAdmin(PageAdmin):
    template = "django_wheel/pending.html"
    values = staticmethod(pending)

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("act/", self.for_operators(self.act, ("POST",)), name=f"{name}_act"),
            path("bulk/", self.for_operators(self.bulks, READING), name=f"{name}_bulk"),
            path("bulk/<uuid:bulk>/", self.for_operators(self.bulk, (*READING, "POST")), name=f"{name}_bulk_one"),
            path("<int:timer_id>/", self.guarded(partial(task.page, self)), name=f"{name}_one"),
            path("<int:timer_id>/body/", self.guarded(task.body, may_view_payload), name=f"{name}_body"),
        ]

    def act(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation of an action on selected or on all matching tasks; or carry it out."""
        action = ACTIONS.get(request.POST.get("verb", ""))
        if action is None:
            return HttpResponseBadRequest(f"verb must be one of {', '.join(ACTIONS)}", content_type="text/plain")
        if "all" in request.POST:
            return bulk_actions.handle(request, action, partial(self.show, request, "django_wheel/bulk_confirm.html"))
        return requests.handle(request, action, partial(self.show, request, "django_wheel/confirm.html"))

    def bulks(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request, "django_wheel/bulk_list.html", bulk_actions.listed, title=gettext("Bulk actions"))

    def bulk(self, request: HttpRequest, bulk: UUID) -> HttpResponse:
        """Show a bulk action, or its progress to the page's script; or stop, continue or discard it."""
        if request.method == "POST":
            return bulk_actions.change(request, str(bulk))
        if request.headers.get("Accept") == "application/json":
            return bulk_actions.progress(request, str(bulk))
        values = partial(bulk_actions.shown, bulk=str(bulk))
        title = gettext("All matching tasks")
        return self.answer(request, "django_wheel/bulk.html", lambda wheel, query: values(wheel), title=title)


admin.site.register(models.History, PageAdmin, template="django_wheel/history.html", values=staticmethod(history))
admin.site.register(models.Rejected, PageAdmin, template="django_wheel/rejected.html", values=staticmethod(rejected))
admin.site.register(
    models.Settlement, PageAdmin, template="django_wheel/settlements.html", values=staticmethod(settlements)
)
admin.site.register(models.Shard, PageAdmin, template="django_wheel/shards.html", values=staticmethod(shards))
