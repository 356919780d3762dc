"""The part of a scheduler that its node reads."""

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
