"""The pages with lines: pending tasks, history, rejected, batches, shards; and one task with all that is known of it.

Each is a page by key: the store reads as many lines as are shown, wherever in the store that is. Nothing is counted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from celery_wheel.control import Wheel, now_ms
from celery_wheel.store.model import ORIGIN, SET_ASIDE
from celery_wheel.store.ports.pages import END, Detail, Names, Page
from django_wheel.present import seen
from django_wheel.views.actions import OF_SET_ASIDE, OF_WAITING, of_state
from django_wheel.views.request import LINES, Asked


@dataclass(frozen=True, slots=True)
class Offers:
    """Names and their counts, as pairs: in a template ``items`` of a dict is the task of that name, if there is one."""

    queues: list[tuple[str, int]]
    tasks: list[tuple[str, int]]


#: For so long the filters' offers are as they were.
NAMES_FOR_S = 10

#: By the store's uuid: when they were taken, and what was there.
_offered: dict[str, tuple[float, Offers]] = {}

KINDS = ("rejected", "cancelled", "expired", "parked", "moved")


def pending(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    if asked.task_id:
        found = wheel.find(asked.task_id, with_bytes=False)
        return {"found": found, "searched": asked.task_id, "page": Page([], None)}
    page = wheel.pending(asked.place or ORIGIN, LINES, **asdict(asked.criteria))
    return {"names": offered_names(wheel), "page": page, "now_ms": now_ms(), "actions": OF_WAITING}


def history(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    return {"page": wheel.history(asked.place or END, LINES, **asdict(asked.criteria))}


def rejected(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    kind = asked.text("kind") or KINDS[0]
    if kind not in KINDS:
        asked.problems.append(f"kind must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {kind!r}")
        kind = KINDS[0]
    links = [(one, asked.link(kind=one, after=None, selected=None), one == kind) for one in KINDS]
    page = wheel.outcomes(kind, before=asked.place or END, limit=LINES, **asdict(asked.criteria))
    return {"page": page, "kinds": links, "kind": kind, "actions": OF_SET_ASIDE if kind in SET_ASIDE else ()}


def batches(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    return {"page": wheel.batches(asked.place or END, LINES, shard=asked.criteria.shard)}


def shards(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    return {"shards": wheel.status(), "now_ms": now_ms()}


def one_task(detail: Detail) -> dict[str, Any]:
    return {"detail": detail, "task": detail.task, "now_ms": now_ms(), "actions": of_state(detail.state)}


def offered_names(wheel: Wheel) -> Offers:
    """What the filters offer: names that have something pending, or had a moment ago.

    They are summed up from the whole tally, for which a page of a hundred lines need not wait each time. A name that a
    line would cut or show by codes is left out: it can only be asked for in full, by hand.
    """
    uuid, now_s = wheel.store.uuid, monotonic()
    taken = _offered.get(uuid)
    if taken is None or now_s - taken[0] > NAMES_FOR_S:
        taken = _offered[uuid] = (now_s, _readable(wheel.counts()))
    return taken[1]


def _readable(names: Names) -> Offers:
    queues, tasks = (
        [(name, count) for name, count in one.items() if seen(name) == name] for one in (names.queues, names.tasks)
    )
    return Offers(queues, tasks)
