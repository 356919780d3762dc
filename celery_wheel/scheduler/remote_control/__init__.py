"""The scheduler as a node of Celery's own remote control: commands for workers reach pending tasks as well.

``node`` hears the broadcasts and sends the events of a worker; ``revocation`` puts a revoke into the inbox of every
shard, ``inspection`` answers as a worker does, and ``revoked_state`` records what a worker records of a revoked task.
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
