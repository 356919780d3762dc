"""Schedules on their way from a drain to an import: their progress goes along in the lines of the drain's file.

::

    drain     no scheduler runs; under an epoch of its own the drain writes the lines and removes the schedules
    import_   a command restores them: some time later, with other commands before it, and now and then twice

Here the tasks stay in the store. The import of tasks is a message in the inbox like any other.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from celery_wheel.operations.drain.file import schedule_line_of, schedule_of
from celery_wheel.store.model import Change
from celery_wheel.store.schedule_model import Revision, Schedule
from celery_wheel.store.store_model import HandoverSchedule
from tests.simulation.model_store import ModelStore


def drain(store: ModelStore, names: Collection[str], now_ms: int) -> tuple[list[Schedule], dict[str, Any]]:
    """Remove schedules, after all schedulers were stopped; returns them, and the documents of the command restore."""
    data = store.disk.shard(0)
    data.holder, data.owner, data.lease_until_ms = None, None, 0
    epoch = store.acquire(0, "drain", now_ms, 1)
    assert epoch is not None
    found = store.schedules_named(0, list(names))
    revisions = {one.id: [change for change in data.revisions if change.schedule == one.id] for one in found}
    lines = [schedule_line_of(HandoverSchedule(0, one, revisions[one.id])) for one in found]
    removed = [
        Revision(one.id, one.revision + 1, one.name, "deleted", "drain", "", now_ms, json.dumps(asdict(one)))
        for one in found
    ]
    store.apply(0, epoch, Change(removed_schedules=[one.id for one in found], revisions=removed))
    store.release(0, epoch)
    drained = [schedule_of(line, same_store=True) for line in lines]
    return found, {one.schedule.name: one.document for one in drained}
