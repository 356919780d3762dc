"""The list of schedules. It pages by name; a page costs three statements, and five more while nothing matches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.utils.translation import get_language, gettext

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from celery_wheel.recurring.definition import BASE, read_definition
from celery_wheel.recurring.words import in_words
from celery_wheel.store.schedule_model import Schedule, ScheduleCriteria, SchedulePage
from django_wheel.views.query import LINES, PageQuery
from django_wheel.views.schedules.actions import OF_SELECTION

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


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """A schedule as a line of the list."""

    schedule: Schedule
    task: str
    words: str
    zone: str
    is_of_base: bool  #: an entry that Beat's own scheduler runs
    pending: int = 0

    @property
    def state(self) -> str:
        """A key of SCHEDULE_STATES: "ended" is without a further instant."""
        if self.is_of_base:
            return "base"
        if self.schedule.broken:
            return "broken"
        if self.schedule.paused:
            return "paused"
        if self.schedule.is_failing:
            return "failing"
        return "ended" if self.schedule.next_ms is None else "active"


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
        "lines": [line_of(one, pending.get(one.id, 0)) for one in page.items],
        "criteria": criteria,
        "states": [(one, one == state) for one in STATES],
        "sources": SOURCES,
        "actions": OF_SELECTION,
        "now_ms": now_ms(),
    }


def _page(wheel: Wheel, criteria: ScheduleCriteria, after: str) -> SchedulePage:
    """Return the first page that is not empty, or the last that was searched."""
    page = SchedulePage([], after)
    for _search in range(SEARCHES + 1):
        page = wheel.store.browse.schedules(criteria, page.next or "", LINES)
        if page.items or page.next is None:
            break
    return page


def line_of(schedule: Schedule, pending: int = 0) -> ScheduleLine:
    return ScheduleLine(schedule, *_described(schedule.definition, get_language()), pending)


@lru_cache(2_000)
def _described(text: str, language: str | None) -> tuple[str, str, str, bool]:
    """Return a definition's task, its recurrence in words, its zone, and whether Beat's own scheduler runs it.

    A value that cannot be read is an empty text.
    """
    try:
        document = json.loads(text)
        task, is_of_base = str(document["task"]), BASE in document
    except (ValueError, TypeError, KeyError, RecursionError):
        task, is_of_base = "", False
    try:
        recurrence = read_definition(text).recurrence
        return task, in_words(recurrence, gettext), recurrence.zone, is_of_base
    except WheelError:
        return task, "", "", is_of_base
