"""The pages with rows: pending tasks, history, rejected tasks, batches and shards; and the page of a task.

Each list pages by key: the store reads as many rows as the page shows, wherever in the store they are, and counts none.
Names for filters and the gates that hold a task come from the process's overview, which is read once a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from django.utils.translation import gettext as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.store.model import ORIGIN, REQUEUABLE
from celery_wheel.store.ports.pages import END, Detail, Page
from django_wheel.drawing import lateness_chart
from django_wheel.drawing.timeline import timeline
from django_wheel.formats import printable
from django_wheel.project import project_wheel
from django_wheel.views.actions import OF_PENDING, OF_REJECTED, of_state
from django_wheel.views.query import LINES, PageQuery
from django_wheel.views.task_events import OPEN, events
from django_wheel.views.task_result import task_result


@dataclass(frozen=True, slots=True)
class FilterNames:
    """Names that a filter offers, with their counts. Pairs: in a template ``items`` of a dict may be a task's name."""

    queues: list[tuple[str, int]]
    tasks: list[tuple[str, int]]


#: Most names of the list of a filter; a longer list is of no use to people.
NAMES = 1_000

KINDS = ("rejected", "cancelled", "expired", "parked", "moved")

#: Fields that have a column where a row of the page has a value.
OPTIONAL = ("task", "task_id", "target", "priority", "key", "size", "reason", "actor", "late_ms", "dispatched_ms")


def pending(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    if query.task_id:
        found = wheel.find(query.task_id, with_bytes=False)
        page: Page[Any] = Page([], None)
        return {"found": found, "searched": query.task_id, **_table(wheel, page, [one.task for one in found])}
    page = wheel.pending(query.place or ORIGIN, LINES, **asdict(query.criteria))
    return {"names": filter_names(wheel), **_table(wheel, page), "actions": OF_PENDING}


def history(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    page = wheel.history(query.place or END, LINES, **asdict(query.criteria))
    chart = lateness_chart.of_tasks(page.items, wheel.conf.objective_ms)
    return {**_table(wheel, page), "chart": chart, "names": filter_names(wheel)}


def rejected(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    kind = query.choice("kind", KINDS) or KINDS[0]
    links = [(one, query.link(kind=one, after=None, selected=None), one == kind) for one in KINDS]
    page = wheel.outcomes(kind, before=query.place or END, limit=LINES, **asdict(query.criteria))
    actions = OF_REJECTED if kind in REQUEUABLE else ()
    return {**_table(wheel, page), "kinds": links, "kind": kind, "actions": actions}


def batches(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    return _table(wheel, wheel.batches(query.place or END, LINES, shard=query.criteria.shard))


def shards(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    return {"shards": wheel.overview().shards, "now_ms": now_ms()}


def task_values(detail: Detail) -> dict[str, Any]:
    """Return the values of the page of a task."""
    wheel, task, at_ms = project_wheel(), detail.task, now_ms()
    result = task_result(wheel.conf.app, task.task_id) if detail.state == "dispatched" else None
    life = events(detail, wheel.overview().gates, result, at_ms)
    return {
        "title": f"{printable(task.task)} {printable(task.task_id, 40)}".strip() or _("Unreadable message"),
        "detail": detail,
        "task": task,
        "now_ms": at_ms,
        "timeline": timeline(life, at_ms, goes_on=detail.state in OPEN),
        "result": result,
        "several": wheel.store.shards > 1,
        "actions": of_state(detail.state),
    }


def _table(wheel: Wheel, page: Page[Any], rows: Sequence[Any] | None = None) -> dict[str, Any]:
    """Return a page with the columns that it needs: a field that is empty in each row has none."""
    shown = page.items if rows is None else rows
    columns = {name for name in OPTIONAL if any(getattr(row, name, None) not in (None, "") for row in shown)}
    several = wheel.store.shards > 1
    return {
        "page": page,
        "columns": columns | ({"shard"} if several else set()),
        "several": several,
        "now_ms": now_ms(),
    }


def filter_names(wheel: Wheel) -> FilterNames:
    """Return the names for filters: the queues and tasks with the most pending messages, in the order of their names.

    A name that a row would cut or show by codes is left out: a user can only enter it in full.
    """
    found = wheel.overview()
    queues, tasks = (
        sorted((name, count) for name, count in islice(counts.items(), NAMES) if printable(name) == name)
        for counts in (found.queues, found.tasks)
    )
    return FilterNames(queues, tasks)
