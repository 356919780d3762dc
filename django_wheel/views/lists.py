"""The pages with lines: pending tasks, history, rejected, batches, shards; and one task with all that is known of it.

Each is a page by key: the store reads as many lines as are shown, wherever in the store that is. Nothing is counted.
"""

from __future__ import annotations

from typing import Any

from celery_wheel.control import Wheel, now_ms
from celery_wheel.store.browse import Detail, Names, Page
from celery_wheel.store.model import ORIGIN
from django_wheel.present import seen
from django_wheel.views.request import LINES, Asked

KINDS = ("rejected", "cancelled", "expired", "parked", "moved")


def pending(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    if asked.task_id:
        found = wheel.find(asked.task_id, with_bytes=False)
        return {"found": found, "searched": asked.task_id, "page": Page([], None)}
    page = wheel.pending(asked.place or ORIGIN, LINES, **_criteria(asked))
    return {"names": offered(wheel.counts()), "page": page, "now_ms": now_ms()}


def history(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    before = {} if asked.place is None else {"before": asked.place}
    return {"page": wheel.history(limit=LINES, **before, **_criteria(asked))}


def rejected(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    kind = asked.text("kind") or KINDS[0]
    if kind not in KINDS:
        asked.problems.append(f"kind must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {kind!r}")
        kind = KINDS[0]
    before = {} if asked.place is None else {"before": asked.place}
    links = [(one, asked.link(kind=one, after=None), one == kind) for one in KINDS]
    return {"page": wheel.outcomes(kind, limit=LINES, **before, **_criteria(asked)), "kinds": links, "kind": kind}


def batches(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    before = {} if asked.place is None else {"before": asked.place}
    return {"page": wheel.batches(limit=LINES, **before, shard=asked.criteria.shard)}


def shards(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    return {"shards": wheel.status(), "now_ms": now_ms()}


def one_task(detail: Detail) -> dict[str, Any]:
    return {"detail": detail, "task": detail.task, "now_ms": now_ms()}


def _criteria(asked: Asked) -> dict[str, Any]:
    wanted = asked.criteria
    return {
        "shard": wanted.shard,
        "task": wanted.task,
        "queue": wanted.queue,
        "from_ms": wanted.from_ms,
        "to_ms": wanted.to_ms,
    }


def offered(names: Names) -> Names:
    """What the filters offer. A name that a line would cut or show by codes can only be asked for in full, by hand."""
    queues, tasks = (
        {name: count for name, count in one.items() if seen(name) == name} for one in (names.queues, names.tasks)
    )
    return Names(queues, tasks)
