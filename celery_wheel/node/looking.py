"""What the node answers about the shards that this scheduler holds. Every answer is bounded and says when it is cut.

::

    scheduled    SHOWN tasks, the next due first
    query        ASKED ids at most
    cancelled    SHOWN ids, the latest first
    wheel        pending, lateness and more of each shard, as its holder last said them
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from celery_wheel.node import forms
from celery_wheel.node.view import View
from celery_wheel.store.ports.pages import Criteria, Task

logger = logging.getLogger(__name__)

#: Tasks in one answer: about 500 bytes each, and who asks waits for a second.
SHOWN = 1_000

#: Ids that one question may name.
ASKED = 1_000


def scheduled(view: View) -> list[dict[str, Any]]:
    """What waits, the next due first."""
    found: list[Task] = []
    cut = False
    for shard in view.held():
        page = view.store.browse.pending(Criteria(shard=shard), limit=SHOWN)
        found += page.items
        cut |= page.next is not None
    found.sort(key=lambda task: task.position)
    cut |= len(found) > SHOWN
    del found[SHOWN:]
    heads = view.store.browse.heads([task.id for task in found])
    shown = [forms.scheduled(task, heads[task.id], view.name) for task in found if task.id in heads]
    if cut and found:
        left = max(1, sum(pending(view, shard) for shard in view.held()) - len(found))
        logger.info("inspect scheduled shows %d tasks of %d", SHOWN, SHOWN + left, extra={"action": "scheduled_cut"})
        shown.append(forms.more(found[-1], left, view.name))
    return shown


def query(view: View, task_ids: Sequence[str]) -> dict[str, list[Any]]:
    """Those of the tasks that wait here; of several tries the one that is due next."""
    if len(task_ids) > ASKED:
        logger.warning("query_task looks for %d of %d ids", ASKED, len(task_ids), extra={"action": "query_cut"})
    asked = [one for one in task_ids[:ASKED] if isinstance(one, str)]
    rows = [task for shard in view.held() for task in view.store.browse.waiting_of(shard, asked)]
    found = {task.task_id: task for task in sorted(rows, key=lambda task: task.position, reverse=True)}
    heads = view.store.browse.heads([task.id for task in found.values()])
    there = {task_id: task for task_id, task in found.items() if task.id in heads}
    return {task_id: ["scheduled", forms.request(task, heads[task.id], view.name)] for task_id, task in there.items()}


def cancelled(view: View) -> list[str]:
    """Ids of tasks that were cancelled and are still known, the latest first."""
    found = [
        one
        for shard in view.held()
        for one in view.store.browse.outcomes(["cancelled"], Criteria(shard=shard), limit=SHOWN).items
    ]
    found.sort(key=lambda one: one.position, reverse=True)
    return list(dict.fromkeys(one.task_id for one in found))[:SHOWN]


def wheel(view: View) -> dict[str, Any]:
    """The part of ``stats`` that no worker has."""
    shards = {str(shard): _shard(view, shard) for shard in view.held()}
    return {
        "pending": sum(one["pending"] for one in shards.values()),
        "late_ms_max": max((one["late_ms_max"] for one in shards.values()), default=0),
        "shards": shards,
    }


def _shard(view: View, shard: int) -> dict[str, Any]:
    state = view.store.state(shard)
    said = state.snapshot or {}
    counts = {name: said.get(name, 0) for name in ("late_ms_max", "accepted", "dispatched", "cancelled", "rejected")}
    # Not the holder's own: that knows of its window only, and most of what waits is further away.
    _, due_ms = view.store.browse.standing(shard)
    next_due_ms = min(due_ms.values(), default=None)
    return {"pending": pending(view, shard), "epoch": state.epoch, "next_due_ms": next_due_ms, **counts}


def pending(view: View, shard: int) -> int:
    return sum(view.store.pending(shard).values())
