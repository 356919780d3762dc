"""The pages with rows: pending tasks, history, rejected tasks, batches and shards; and the page of a task.

Each list pages by key: the store reads as many rows as the page shows, wherever in the store they are, and counts none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from celery_wheel.control import Wheel, now_ms
from celery_wheel.store.model import ORIGIN, REQUEUABLE
from celery_wheel.store.ports.pages import END, Detail, Names, Page
from django_wheel.formats import printable
from django_wheel.views.actions import OF_PENDING, OF_REJECTED, of_state
from django_wheel.views.query import LINES, PageQuery


@dataclass(frozen=True, slots=True)
class FilterNames:
    """Names that a filter offers, with their counts. Pairs: in a template ``items`` of a dict may be a task's name."""

    queues: list[tuple[str, int]]
    tasks: list[tuple[str, int]]


#: Seconds for which a process keeps the names that its filters offer.
NAMES_FOR_S = 10

#: By the store's uuid: the time of the reading, and the names.
_names_read: dict[str, tuple[float, FilterNames]] = {}

KINDS = ("rejected", "cancelled", "expired", "parked", "moved")


def pending(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    if query.task_id:
        found = wheel.find(query.task_id, with_bytes=False)
        return {"found": found, "searched": query.task_id, "page": Page([], None)}
    page = wheel.pending(query.place or ORIGIN, LINES, **asdict(query.criteria))
    return {"names": filter_names(wheel), "page": page, "now_ms": now_ms(), "actions": OF_PENDING}


def history(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    return {"page": wheel.history(query.place or END, LINES, **asdict(query.criteria))}


def rejected(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    kind = query.choice("kind", KINDS) or KINDS[0]
    links = [(one, query.link(kind=one, after=None, selected=None), one == kind) for one in KINDS]
    page = wheel.outcomes(kind, before=query.place or END, limit=LINES, **asdict(query.criteria))
    return {"page": page, "kinds": links, "kind": kind, "actions": OF_REJECTED if kind in REQUEUABLE else ()}


def batches(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    return {"page": wheel.batches(query.place or END, LINES, shard=query.criteria.shard)}


def shards(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    return {"shards": wheel.status(), "now_ms": now_ms()}


def task_values(detail: Detail) -> dict[str, Any]:
    """Return the values of the page of a task."""
    return {"detail": detail, "task": detail.task, "now_ms": now_ms(), "actions": of_state(detail.state)}


def filter_names(wheel: Wheel) -> FilterNames:
    """Return the names for filters: queues and tasks that have pending messages, or had some a moment ago.

    They are a sum over the whole tally, so a process reads them every ``NAMES_FOR_S`` and not for each page. A name
    that a row would cut or show by codes is left out: a user can only enter it in full.
    """
    uuid, now_s = wheel.store.uuid, monotonic()
    last = _names_read.get(uuid)
    if last is None or now_s - last[0] > NAMES_FOR_S:
        last = _names_read[uuid] = (now_s, _readable(wheel.counts()))
    return last[1]


def _readable(names: Names) -> FilterNames:
    queues, tasks = (
        [(name, count) for name, count in counts.items() if printable(name) == name]
        for counts in (names.queues, names.tasks)
    )
    return FilterNames(queues, tasks)
