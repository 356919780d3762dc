"""The page of groups: who waits, how many tasks are in flight, since when the first one waits, and the limits in force.

A page costs three statements, whatever the number of groups and of waiting tasks. An operator pauses and resumes groups
(see ``gate``), cancels their pending tasks from the list of these, and sets or clears their own limits by a form with a
page of its own. A ``set`` replaces all own limits of a group, so the form begins with those that it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from celery_wheel.conf.setting import parse_rate
from celery_wheel.control import Wheel
from celery_wheel.errors import ArgumentError
from celery_wheel.requests.limits import GroupLimits
from celery_wheel.store.model import PAUSED, Gate
from celery_wheel.store.ports.pages import SORTS, GroupSort, GroupState
from celery_wheel.values.format import format_duration, printable
from celery_wheel.values.text import text_rule
from django_wheel import models
from django_wheel.formats import number
from django_wheel.forms import LimitsForm
from django_wheel.project import project_wheel
from django_wheel.views.page import READING, PageAdmin
from django_wheel.views.query import LINES, PageQuery
from django_wheel.views.requests import address, attempt_form, log, request_options


@dataclass(frozen=True, slots=True)
class GroupLine:
    group: GroupState
    limits: str
    pause: Gate | None


def groups(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    sort: GroupSort = "name" if query.choice("sort", SORTS) == "name" else "waiting"
    search = query.word("part")
    try:
        page = wheel.groups(search, LINES, sort=sort, after=query.word("after_name"))
    except ArgumentError as error:
        query.problems.append(str(error))
        page = wheel.groups(search, LINES, sort=sort)
    paused = {gate.name: gate for gate in wheel.overview().gates if gate.scope == "group" and gate.state == PAUSED}
    lines = [
        GroupLine(one, limits_text(wheel.limits.in_force(one.name, one.limit)), paused.get(one.name))
        for one in page.items
    ]
    sorts = {one: query.link(sort=one, after_name=None) for one in SORTS}
    return {"page": page, "lines": lines, "search": search, "sort": sort, "sorts": sorts}


def limits_page(page: PageAdmin, request: HttpRequest) -> HttpResponse:
    """Show the form for the group of a link; or, when the user has sent it, set or clear the limits."""
    form = LimitsForm(request.POST) if request.method == "POST" else None

    def values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
        group = query.word("group") or ""
        found = wheel.limits.get(group) if text_rule(group) is None else None
        own = wheel.limits.list(LINES + 1)
        rows = [(one, limits_text(one)) for one in own[:LINES]]
        more = {"in_force": found, "limits": limits_text(found) if found else ""}
        return {**more, "form": form or _form(found), "own": rows, "has_more": len(own) > len(rows)}

    if form is not None and form.is_valid() and attempt_form(form, partial(_change_limits, request, form)):
        return HttpResponseRedirect(address(request, "group_changelist"))
    return page.answer(request, "django_wheel/limits.html", values, title=_("Limits of a group"))


def _change_limits(request: HttpRequest, form: LimitsForm) -> bool:
    group, reason = form.cleaned_data["group"], form.cleaned_data["reason"]
    options, shown = request_options(request, reason), {"name": printable(group)}
    if request.POST.get("verb") != "clear":
        project_wheel().limits.set(group, **form.limits, **options)
        messages.success(request, _("The limits of group %(name)s are in force.") % shown)
        title = _("Set limits: %(name)s") % shown
    elif project_wheel().limits.clear(group, **options):
        text = _("Group %(name)s has no limits of its own any more. It is limited as its class is.")
        messages.success(request, text % shown)
        title = _("Clear limits: %(name)s") % shown
    else:
        text = _("Nothing was done, because group %(name)s had no limits of its own.")
        messages.warning(request, text % shown)
        return True
    log(request, "group", title, reason)
    return True


def _form(found: GroupLimits | None) -> LimitsForm:
    if found is None:
        return LimitsForm()
    own = {part: getattr(found, part) for part, source in found.sources.items() if source == "own"}
    if "max_runtime" in own:
        own["max_runtime"] = round(own["max_runtime"] * 1_000)
    return LimitsForm(initial={"group": found.group, **own})


def limits_text(found: GroupLimits) -> str:
    """Return the limits of a group in force, those of its class in brackets; empty where it has none."""
    count, per_ms = parse_rate(found.rate) if found.rate else (0, 0)
    texts = {
        "concurrency": _("at most %(number)s in flight") % {"number": number(found.concurrency or 0)},
        "rate": _("at most %(number)s in %(duration)s")
        % {"number": number(count), "duration": format_duration(per_ms)},
        "weight": _("weight %(number)s") % {"number": number(found.weight)},
        "max_runtime": _("a run is over after %(duration)s")
        % {"duration": format_duration(round(found.max_runtime * 1_000))},
    }
    shown = [(texts[part], source) for part, source in found.sources.items() if source != "default"]
    return ", ".join(text if source == "own" else f"({text})" for text, source in shown)


@admin.register(models.Group)
class GroupAdmin(PageAdmin):
    template = "django_wheel/groups.html"
    values = staticmethod(groups)

    def more_urls(self, name: str) -> list[URLPattern]:
        view = self.for_operators(partial(limits_page, self), (*READING, "POST"))
        return [path("limits/", view, name=f"{name}_limits")]
