"""The page of groups: who waits, how many tasks are in flight, since when the first one waits, and the limits in force.

A page costs three statements, whatever the number of groups and of waiting tasks. An operator pauses and resumes groups
(see ``gate``), cancels their pending tasks from the list of these, and sets limits (see ``limits``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import admin
from django.urls import URLPattern, path

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import ArgumentError
from celery_wheel.store.model import PAUSED, Gate
from celery_wheel.store.ports.pages import SORTS, GroupSort, GroupState
from django_wheel import models
from django_wheel.views.limits import limits_page, limits_text
from django_wheel.views.page import READING, PageAdmin
from django_wheel.views.query import LINES, PageQuery


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
    return {
        "page": page,
        "lines": lines,
        "search": search,
        "sort": sort,
        "sorts": {one: query.link(sort=one, after_name=None) for one in SORTS},
        "now_ms": now_ms(),
    }


@admin.register(models.Group)
class GroupAdmin(PageAdmin):
    template = "django_wheel/groups.html"
    values = staticmethod(groups)

    def more_urls(self, name: str) -> list[URLPattern]:
        view = self.for_operators(partial(limits_page, self), (*READING, "POST"))
        return [path("limits/", view, name=f"{name}_limits")]
