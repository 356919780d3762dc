"""The scheduler as a node of Celery's own remote control: commands for workers reach pending tasks as well.

::

    celery.pidbox ──► node ──┬─► revocation        revoke: into the inbox of every shard
                       │     └─► inspection        scheduled, query_task, stats: as a worker shows its own
                       └──► celeryev               worker-online, worker-heartbeat, worker-offline
    engine ── announce ──► revoked_state           REVOKED, chords, task-revoked: as a worker does
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.store.ports import FullStore
from celery_wheel.values.mask import NO_MASK, Mask


@dataclass(frozen=True, slots=True)
class SchedulerView:
    name: str  #: of the node, as wheel@beat.host
    store: FullStore
    held: Callable[[], list[int]]  #: returns the shards that this scheduler holds now; other nodes answer for theirs
    stamps: RevokedStamps
    mask: Mask = NO_MASK
