"""What the node knows of the scheduler that it speaks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from celery_wheel.engine.state.stamps import RevokedStamps
from celery_wheel.store.ports import FullStore


@dataclass(frozen=True, slots=True)
class View:
    """``held``: the shards that this scheduler holds at the moment; the others speak for theirs."""

    name: str  #: the node's, as wheel@host
    store: FullStore
    held: Callable[[], list[int]]
    stamps: RevokedStamps
