"""Rounds: the generators in which an engine's activities run, and the context that they share.

::

    Round       IDLE, BUSY or FAILED: how a round ended; its job waits accordingly
    Signal      tells the runner that an activity has something to do
    LeaseCall   the renewal of a lease that is made with those of other shards
    Steps       a part of a round: yields the name of each step when it is done
    RoundSteps  a round: as Steps; its last item is a Round
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from celery_wheel.engine.delivery import Delivery
from celery_wheel.engine.due_clock import DueClock
from celery_wheel.engine.limits import Limits
from celery_wheel.engine.port import Broker
from celery_wheel.engine.recurring.port import OccurrenceRenderer, OnOverlap
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.stamps import RevokedStamps
from celery_wheel.engine.stats import Stats
from celery_wheel.errors import BrokerError, Fenced, StoreError
from celery_wheel.store.model import Row, TaskRow
from celery_wheel.store.ports import Renewal, Store
from celery_wheel.timing import RetryLog

logger = logging.getLogger(__name__)


class LeaseCall(NamedTuple):
    """The renewal of a lease, and the lease that follows from it."""

    state: ShardState
    lease_until_ms: int  #: monotonic, from an instant before the call
    renewal: Renewal


class Round(Enum):
    """How a round ended; its job waits accordingly."""

    IDLE = "there was no work"
    BUSY = "work was done; there may be more"
    FAILED = "a call was not answered; wait before the next round"


#: The steps of a part of a round, by name.
Steps = Iterator[str]

#: The steps of a round; its last item is a Round.
RoundSteps = Iterator[str | Round]


def run_round(steps: RoundSteps, on_step: Callable[[], None] = lambda: None) -> Round:
    """Run a round to its end; returns how it ended. The simulation steps through rounds by itself."""
    result = Round.IDLE
    for step in steps:
        on_step()
        if isinstance(step, Round):
            result = step
    return result


#: Announces cancelled rows; returns the ids of the rows that it has announced. A call may take long.
OnCancelled = Callable[[Sequence[TaskRow]], set[int]]


#: Called after each publish with its rows, and with the due times at which it began and ended. A call is short.
OnPublished = Callable[[Sequence[Row], int, int], None]


class Signal:
    """A flag with a listener, which is called at each ``set``; any thread may set it."""

    def __init__(self) -> None:
        self.listener: Callable[[], None] = _nobody_listens
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self.listener()

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set


def _nobody_listens() -> None: ...


@dataclass(slots=True)
class QueueWatch:
    """Whether the wheel queue may have messages, as far as ``listen`` and ``ingest`` know."""

    arrived: Signal = field(default_factory=Signal)  #: set when ingest has to peek
    emptied: Signal = field(default_factory=Signal)  #: set when a peek has found nothing and the broker can wait
    is_open: bool = False  #: the broker will tell when a message comes

    def may_have_messages(self) -> bool:
        return not self.is_open or self.arrived.is_set()


@dataclass(slots=True)
class Context:
    shard: int
    store: Store
    delivery: Delivery
    clock: DueClock
    limits: Limits
    stats: Stats = field(default_factory=Stats)
    wake: Signal = field(default_factory=Signal)  #: set when dispatch may have more to do
    room: Signal = field(default_factory=Signal)  #: set when prefetch may have more to read
    queue: QueueWatch = field(default_factory=QueueWatch)
    unsettled: Signal = field(default_factory=Signal)  #: set when settle has something to do
    unannounced: Signal = field(default_factory=Signal)  #: set when announce has something to do
    stamps: RevokedStamps = field(default_factory=RevokedStamps)
    on_cancelled: OnCancelled | None = None  #: None: cancelled rows are not announced
    renderer: OccurrenceRenderer | None = None  #: None: no schedule runs here
    on_overlap: OnOverlap | None = None  #: None: a run that is replaced goes on
    on_published: OnPublished | None = None  #: None: nobody traces publishes
    retries: RetryLog = field(init=False)  #: of failures that are tried again, by cause

    def __post_init__(self) -> None:
        self.retries = RetryLog(logger, lambda: self.clock.monotonic_ms() / 1_000)

    @property
    def broker(self) -> Broker:
        return self.delivery.broker

    def second_clock_ms(self) -> int | None:
        """Return the broker's clock, or the store's where the broker has none or is down.

        Raises StoreError, or the broker's error where the store has no clock.
        """
        silent: BrokerError | None = None
        try:
            now_ms = self.broker.now_ms()
        except BrokerError as error:
            self.stats.add(broker_errors=1)
            now_ms, silent = None, error
        try:
            now_ms = self.store.now_ms() if now_ms is None else now_ms
        except StoreError:
            self.stats.add(store_errors=1)
            raise
        if now_ms is None and silent is not None:
            raise silent
        return now_ms

    def fence(self, epoch: int) -> None:
        """Raise Fenced where another holder has acquired the shard after ``epoch``; commits need no such check."""
        if self.store.state(self.shard).epoch != epoch:
            raise Fenced(f"another holder has taken shard {self.shard}; this process publishes nothing more from it")
