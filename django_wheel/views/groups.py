"""The page of groups: who waits, how many tasks are in flight, and since when the first one waits.

A page costs three statements, whatever the number of groups and of waiting tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import ArgumentError
from celery_wheel.store.model import GroupLimit
from celery_wheel.store.ports.pages import SORTS, GroupSort, GroupState
from celery_wheel.values.format import format_duration
from django_wheel import models
from django_wheel.formats import number
from django_wheel.views.page import PageAdmin
from django_wheel.views.query import LINES, PageQuery


@dataclass(frozen=True, slots=True)
class GroupLine:
    group: GroupState
    limits: str


def groups(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    sort: GroupSort = "name" if query.choice("sort", SORTS) == "name" else "waiting"
    search = query.word("part")
    try:
        page = wheel.groups(search, LINES, sort=sort, after=query.word("after_name"))
    except ArgumentError as error:
        query.problems.append(str(error))
        page = wheel.groups(search, LINES, sort=sort)
    return {
        "page": page,
        "lines": [GroupLine(one, limit_text(one.limit)) for one in page.items],
        "search": search,
        "sort": sort,
        "sorts": {one: query.link(sort=one, after_name=None) for one in SORTS},
        "now_ms": now_ms(),
    }


def limit_text(limit: GroupLimit | None) -> str:
    """Return the limits that a group has of its own; empty where it has those of its class."""
    if limit is None:
        return ""
    found = []
    if limit.concurrency is not None:
        found.append(_("at most %(number)s in flight") % {"number": number(limit.concurrency)})
    if limit.rate_count is not None:
        values = {"number": number(limit.rate_count), "duration": format_duration(limit.rate_per_ms or 0)}
        found.append(_("at most %(number)s in %(duration)s") % values)
    if limit.weight is not None:
        found.append(_("weight %(number)s") % {"number": number(limit.weight)})
    if limit.max_runtime_ms is not None:
        found.append(_("a run is over after %(duration)s") % {"duration": format_duration(limit.max_runtime_ms)})
    return ", ".join(found)


admin.site.register(models.Group, PageAdmin, template="django_wheel/groups.html", values=staticmethod(groups))
