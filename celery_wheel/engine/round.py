"""Rounds: the generators in which an engine's activities run, the context that they share, and its limits.

A round yields the name of each step when it is done; its last item is a Round, by which its job waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Self, TypeVar, cast

from celery_wheel.engine.delivery import Delivery
from celery_wheel.engine.due_clock import DueClock
from celery_wheel.engine.port import Broker, ask
from celery_wheel.engine.recurring.occurrence import OccurrenceRenderer, OnOverlap
from celery_wheel.engine.state.depths import Depths
from celery_wheel.engine.state.gates import Rate
from celery_wheel.engine.state.groups import Limit
from celery_wheel.engine.state.lane import Refusal
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.engine.stats import Stats
from celery_wheel.errors import BrokerError, Fenced, StoreError, StoreRolledBack
from celery_wheel.store.model import Row
from celery_wheel.store.ports import Renewal, Store
from celery_wheel.timing import RetryLog

_Answer = TypeVar("_Answer")


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


class SharedCall(str):
    """A step that is a call: the rounds of several shards may make it as one, by its name (see ``shared``)."""

    def __new__(cls, name: str, *_: Any) -> Self:
        return super().__new__(cls, name)

    def __init__(
        self,
        _name: str,
        one: Callable[..., Any],
        several: Callable[[Sequence[Any]], Sequence[Any]],
        arguments: tuple[Any, ...],
    ) -> None:
        self._one, self._several, self._arguments = one, several, arguments
        self._answers: list[Any] | None = None  #: one, or an error

    def make_with(self, calls: Sequence[SharedCall]) -> None:
        """Make calls of one name, this one among them; each has its own answer, or error, afterwards."""
        try:
            alone = len(calls) == 1
            answers = [self._one(*self._arguments)] if alone else self._several([one._arguments for one in calls])
        except Exception as error:  # each round raises it at its own step
            answers = [error] * len(calls)
        for call, answer in zip(calls, answers, strict=True):
            call._answers = [answer]

    def answer(self) -> Any:
        """Return the answer, or raise the error; makes the call where nobody has."""
        if self._answers is None:
            return self._one(*self._arguments)
        [found] = self._answers
        if isinstance(found, Exception):
            raise found
        return found


#: The steps of a part of a round, by name.
Steps = Iterator[str]


def make_call(steps: Steps) -> None:
    """Take the steps to the end of their first call, which is not shared: the caller holds a lock meanwhile."""
    while isinstance(next(steps), SharedCall):
        pass


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
OnCancelled = Callable[[Sequence[Row]], set[int]]


#: Returns the shard of a group, or of the name of a schedule that is of no group.
ShardOf = Callable[[str], int]


#: Called after each publish with its rows, and with the due times at which it began and ended. A call is short.
OnPublished = Callable[[Sequence[Row], int, int], None]


class Signal:
    """A flag with a listener, which is called at each ``set``; any thread may set it."""

    def __init__(self) -> None:
        self.listener: Callable[[], None] = lambda: None
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self.listener()

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set


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
    shard_of: ShardOf
    retries: RetryLog  #: of failures that are tried again
    stats: Stats = field(default_factory=Stats)
    wake: Signal = field(default_factory=Signal)  #: set when dispatch may have more to do
    room: Signal = field(default_factory=Signal)  #: set when prefetch may have more to read
    queue: QueueWatch = field(default_factory=QueueWatch)
    unsettled: Signal = field(default_factory=Signal)  #: set when settle has something to do
    freed: Signal = field(default_factory=Signal)  #: set when a row may be released from a line
    accepted: int = 0  #: what ``alone`` was when the last state of this process ended
    unannounced: Signal = field(default_factory=Signal)  #: set when announce has something to do
    stamps: RevokedStamps = field(default_factory=RevokedStamps)
    depths: Depths = field(default_factory=dict)
    on_cancelled: OnCancelled | None = None  #: None: cancelled rows are not announced
    renderer: OccurrenceRenderer | None = None  #: None: no schedule runs here
    on_overlap: OnOverlap | None = None  #: None: a run that is replaced goes on
    on_published: OnPublished | None = None  #: None: nobody traces publishes
    shares: bool = False  #: rounds of other shards run in step with those of this one

    def call(
        self,
        name: str,
        one: Callable[..., _Answer],
        several: Callable[[Sequence[Any]], Sequence[Any]],
        arguments: tuple[Any, ...],
    ) -> Generator[str, None, _Answer]:
        """Return ``one(*arguments)``; ``several`` takes those of several shards, and returns answers or errors."""
        call = SharedCall(name, one, several, arguments)
        if self.shares:
            yield call
        return cast(_Answer, call.answer())

    def ask(self, name: str, *arguments: Any) -> Generator[str, None, Any]:
        """Return the broker's answer to ``publish``, ``peek`` or ``trim``."""
        return (yield from self.call(name, ask, self.delivery.together, (self.broker, name, *arguments)))

    @property
    def broker(self) -> Broker:
        return self.delivery.broker

    def second_clock_ms(self) -> int | None:
        """Return the broker's clock, else the store's. Raises StoreError, or the broker's if the store has none."""
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

    def fence(self, epoch: int, known: int) -> None:
        """Raise Fenced where another holder has acquired the shard after ``epoch``, and StoreRolledBack where the store
        has accepted fewer messages than are ``known``; commits need no such check."""
        found = self.store.state(self.shard)
        if found.epoch != epoch:
            raise Fenced(f"another holder has taken shard {self.shard}; this process publishes nothing more from it")
        if found.accepted < known:
            raise StoreRolledBack(f"the store lost its last commits of shard {self.shard}; nothing was published")


@dataclass(frozen=True, slots=True)
class Limits:
    tick_ms: int = 1
    wheel_size: int = 512
    window_ms: int = 300_000
    window_count: int = 100_000
    window_bytes: int = 64 * 2**20
    chunk_count: int = 1_000
    chunk_bytes: int = 4 * 2**20  #: of one call to the broker; a single larger message is still published
    load_count: int = 25_000  #: rows of one prefetched slice; of a cold disk, many are read faster than few
    load_bytes: int = 32 * 2**20
    intake_count: int = 5_000  #: messages of the wheel queue in one group commit
    intake_bytes: int = 16 * 2**20
    inbox_count: int = 1_000  #: items of the inbox beside them: a full inbox must not delay the wheel queue for long
    bulk_count: int = 2_500  #: messages of bulk loads, and packed ones of the inbox, beside them: some 50 ms of work
    occurrence_count: int = 1_000  #: occurrences of schedules beside them, and schedules read for them
    look_ahead_ms: int = 2_000  #: occurrences are accepted this long before their instants
    herd_count: int = 1_000  #: the fewest schedules, due within a short time, that are a herd (see ``materialise``)
    herd_ms: int = 300_000  #: occurrences of a herd are accepted at most this long before their instants
    herd_per_s: int = 1_000  #: the pace at which they are accepted
    late_ms: int = 10_000  #: an instant that is not accepted this long after its time was missed: catch-up decides
    ahead_ms: int = 0  #: rows are published this long before they are due; above 0 only for a drain
    lease_ms: int = 2_000
    retention_ms: int = 7 * 86_400_000
    retentions: Mapping[str, int] = field(default_factory=dict)  #: shorter ones, by "queue:mail" or "task:app.report"
    history_bytes: int = 10 * 2**30
    archived_only: bool = False  #: remove only history that was archived
    forget_count: int = 2_000  #: rows of history removed in one round
    audit_ms: int = 90 * 86_400_000  #: the audit log keeps a request for this time
    audit_programs: bool = True  #: it has the ordinary commands of programs, too
    max_clock_skew_ms: int = 5_000
    replay_on_rollback: bool = True
    rollback_window_ms: int = 300_000
    lane_idle_ms: int = 300_000  #: an idle lane is closed after this time; not below the rollback window
    rates: Mapping[str, Rate] = field(default_factory=dict)  #: this shard's part, by the name of a queue or a task
    groups: Mapping[str, Limit] = field(default_factory=dict)  #: of each group of a class, by the class
    depths: Mapping[str, int] = field(default_factory=dict)  #: the most ready messages, by queue
    unsigned: str = "accept"  #: accept, count or refuse: messages of the wheel queue without a signature
    refusal: Refusal | None = None  #: None: rows may have any destination
