"""The values that ``Browse`` returns: lines of pages, pages, counts. Instants are Unix milliseconds.

``Browse.overview`` returns them too; ``celery_wheel.overview`` makes an ``Overview`` of them. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeVar

from celery_wheel.store.model import MAX_SEQ, STOPPED, Gate, GroupLimit, LaneState, Position, ShardRecord
from celery_wheel.values import ItemPage
from celery_wheel.values.format import format_utc

#: A position after every row: a page in descending order begins here.
END = Position(2**62, MAX_SEQ)

#: The size of a message is at most this.
ALL_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True, repr=False)
class Task:
    """A message without its bytes."""

    id: int
    shard: int
    lane: int
    due_ms: int
    seq: int
    eta_ms: int
    task_id: str
    task: str
    target: str  #: the queue, or the routing key where the producer named no queue
    priority: int | None
    key: str | None
    group: str | None
    expires_ms: int | None
    created_ms: int
    accepted_ms: int
    size: int
    dispatched_ms: int | None = None  #: None while it is pending, and where the history no longer says it

    @property
    def position(self) -> Position:
        return Position(self.due_ms, self.seq)

    @property
    def late_ms(self) -> int | None:
        """The time between its eta and its dispatch."""
        return None if self.dispatched_ms is None else self.dispatched_ms - self.eta_ms

    def __repr__(self) -> str:
        when = f"due {format_utc(self.due_ms)}"
        if self.dispatched_ms is not None:
            when = f"dispatched {format_utc(self.dispatched_ms)}"
        return f"<{self.task} {self.task_id}: {when}, queue {self.target!r}>"


@dataclass(frozen=True, slots=True, repr=False)
class StoppedTask:
    """An outcome with the message that it is of."""

    id: int
    shard: int
    timer_id: int
    kind: str  #: ``rejected``, ``cancelled``, ``expired`` or ``moved``
    reason: str
    actor: str
    at_ms: int  #: of the outcome
    task_id: str
    task: str
    target: str
    size: int
    lane: int

    @property
    def is_stopped(self) -> bool:
        """Whether the message is still stopped; False where it was requeued."""
        return self.lane == STOPPED

    @property
    def position(self) -> Position:
        """The line's place on a page, by the time of the outcome."""
        return Position(self.at_ms, self.id)

    def __repr__(self) -> str:
        return f"<{self.task} {self.task_id}: {self.kind} {format_utc(self.at_ms)}, {self.reason!r}>"


@dataclass(frozen=True, slots=True)
class StoredSettlement:
    """One settlement: the messages of a lane in (from, to] were dispatched at ``dispatched_ms``."""

    id: int
    shard: int
    lane: int
    from_due_ms: int
    from_seq: int
    to_due_ms: int
    to_seq: int
    count: int
    bytes: int
    dispatched_ms: int
    epoch: int

    @property
    def from_(self) -> Position:
        return Position(self.from_due_ms, self.from_seq)

    @property
    def to(self) -> Position:
        return Position(self.to_due_ms, self.to_seq)

    @property
    def position(self) -> Position:
        """The line's place on a page, by the time of the dispatch: ids of two shards are in no order of time."""
        return Position(self.dispatched_ms, self.id)


class HasPosition(Protocol):
    @property
    def position(self) -> Position: ...


T = TypeVar("T", bound=HasPosition)


@dataclass(frozen=True, slots=True, repr=False)
class Page(ItemPage[T]):
    """``next`` is the ``after`` (or ``before``) of the next page; None on the last page."""

    items: list[T]
    next: Position | None


@dataclass(frozen=True, slots=True)
class Criteria:
    """The filter of a page; a field that is None does not filter.

    ``from_ms`` is included and ``to_ms`` is not. They limit the due time of a task, or the time of an outcome or of a
    settlement.
    """

    shard: int | None = None
    task: str | None = None
    queue: str | None = None
    key: str | None = None
    group: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def first(self) -> Position:
        """The position before every included one."""
        return Position(self.from_ms or 0, 0).previous()

    @property
    def last(self) -> Position:
        """The last included position."""
        return END if self.to_ms is None else Position(self.to_ms, 0).previous()


@dataclass(frozen=True, slots=True, repr=False)
class Detail:
    """A message, its bytes and its outcomes.

    ``state``: ``pending``, ``in doubt`` (perhaps published, and not settled yet), ``dispatched``, or the kind of its
    last outcome: ``rejected``, ``cancelled``, ``expired``.
    """

    task: Task  #: as an item of ``pending``
    state: str  #: ``pending``, ``in doubt``, ``dispatched``, or the kind of its last outcome
    blocked_by: str | None  #: the destination, the gate, or the group (paused or not) and its queue that hold it back
    exchange: str
    exchange_type: str
    routing_key: str
    queue: str | None
    envelope_id: str
    headers: bytes
    properties: bytes
    body: bytes
    outcomes: list[StoppedTask]  #: as items of ``outcomes``
    lane: LaneState | None  #: None where the message is in no lane, because it was stopped
    dispatches_ms: list[int]  #: of the settlements around its position: the first dispatch, then repeated ones

    def __repr__(self) -> str:
        """Without headers and body: what is shown in a shell, a log or an error report is no place for arguments."""
        one = self.task
        return f"<{one.task} {one.task_id}: {self.state}, due {format_utc(one.due_ms)}, queue {one.target!r}>"


@dataclass(frozen=True, slots=True)
class MessageHead:
    headers: bytes = field(repr=False)  #: a JSON object
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class NamedHourCount:
    """The messages of the queue, task or group ``name`` that are due in the hour that begins at ``from_ms``."""

    from_ms: int
    name: str
    pending: int


@dataclass(frozen=True, slots=True)
class Names:
    """The queues and the tasks that have pending tasks, with their number."""

    queues: dict[str, int]  #: name → number of pending tasks
    tasks: dict[str, int]  #: the same


#: By what a forecast may be divided.
FORECASTS = ("queue", "task", "group")

GroupSort = Literal["waiting", "name"]
SORTS: tuple[GroupSort, ...] = ("waiting", "name")


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group that has waiting tasks or runs in flight."""

    name: str  #: empty: tasks without a group
    waiting: int  #: tasks that wait for a slot, a rate or room in their queue
    in_flight: int  #: dispatched tasks that are not reported as ended; counted where the group has a concurrency
    oldest_ms: int | None  #: due time of the waiting task that was due first
    limit: GroupLimit | None  #: its own limits; None: it has those of its class


@dataclass(frozen=True, slots=True, repr=False)
class GroupPage(ItemPage[GroupState]):
    """``next`` is the ``after`` of the next page; None on the last page.

    ``others`` are groups that follow on no page: with thousands of groups, a page of those with the most waiting tasks
    has no next one.
    """

    items: list[GroupState]
    next: str | None
    others: int = 0


#: Groups of a holder's snapshot, which is written twice a second: one takes 40 bytes of it.
LARGEST = 100


class LargeGroup(NamedTuple):
    """A group as the memory of its holder has it."""

    name: str
    waiting: int
    in_flight: int
    lines: list[tuple[int, int]]  #: its lines: shard and number


class ShardLanes(NamedTuple):
    """A shard's open lanes, and lane → due time of its first pending row; a lane without pending rows is left out."""

    lanes: list[LaneState]
    next_due_ms: dict[int, int]


class ShardHead(NamedTuple):
    record: ShardRecord
    inbox: int  #: messages and requests in the first thousand items of its inbox


#: Overdue rows of a lane, and items of an inbox, that are counted.
COUNTED = 1_000

#: Most pairs of queue and task of an overview: those with the most pending tasks.
PAIRS = 2_000


class LaneHead(NamedTuple):
    """An open lane."""

    shard: int
    state: LaneState
    next_due_ms: int | None  #: of its first pending row
    overdue: int  #: pending rows that are due; at most a thousand are counted


#: Most rows of an hour that are counted by the second: 60 ms on SQLite, by the index alone.
HOUR_ROWS = 200_000


class FullSecond(NamedTuple):
    from_ms: int
    pending: int
    tasks: list[str]  #: the most frequent task, and the next one; of the first two thousand rows


class Disk(NamedTuple):
    """A file system, in bytes; ``free`` is what this process may still use of it."""

    total: int
    free: int


class StoreSize(NamedTuple):
    """The bytes of a store; ``disk`` is None where the file system is another machine's."""

    bytes: int
    disk: Disk | None


class OverviewRows(NamedTuple):
    """Counts are of pending messages; hours, days and seconds are numbers since 1970."""

    shards: list[ShardHead]
    lanes: list[LaneHead]
    gates: list[tuple[int, Gate]]  #: with their shards
    pending: dict[int, int]  #: by shard
    names: dict[tuple[str, str], int] | None  #: by queue and task; None where they were not asked for
    hours: dict[int, int]  #: all hours up to the end of the second day from now
    days: dict[int, int]
    seconds: dict[int, int] | None  #: of the next 61 minutes; None where they were not asked for
    schedulers: dict[str, int]  #: name → its last sign of life
