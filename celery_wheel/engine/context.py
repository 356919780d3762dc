"""What the activities of one engine share: the parts it was given, its limits and its counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from celery_wheel.engine.limits import Limits
from celery_wheel.engine.port import Broker
from celery_wheel.engine.stamps import RevokedStamps
from celery_wheel.engine.stats import Stats
from celery_wheel.store.model import Withdrawn
from celery_wheel.store.port import Store
from celery_wheel.timing import Clock


class Round(Enum):
    """How a round ended, for whoever runs the rounds."""

    IDLE = "nothing was to be done"
    BUSY = "something was done; there may be more"
    FAILED = "something did not answer; wait before the next"


#: The steps of a part of a round, by name.
Steps = Iterator[str]

#: The steps of a round; the last thing it yields is how it ended.
RoundSteps = Iterator[str | Round]


#: Told of rows that were cancelled, answers with the ids of those that it has seen to. It may take its time.
OnWithdrawn = Callable[[Sequence[Withdrawn]], set[int]]


@dataclass(slots=True)
class Context:
    shard: int
    store: Store
    broker: Broker
    clock: Clock
    limits: Limits
    stats: Stats = field(default_factory=Stats)
    wake: threading.Event = field(default_factory=threading.Event)  #: set when dispatch may have more to do
    unsettled: threading.Event = field(default_factory=threading.Event)  #: set when settle has something to do
    untold: threading.Event = field(default_factory=threading.Event)  #: set when announce has something to do
    stamps: RevokedStamps = field(default_factory=RevokedStamps)  #: what was revoked by its stamps
    on_withdrawn: OnWithdrawn | None = None  #: told of rows that were cancelled
