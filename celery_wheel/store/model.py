"""The values that the store keeps. Standard library only.

::

    Message ──accepted──► Row = a message at a Position (due_ms, seq) in a lane of a shard
                           │
      lane 0 … n           │   published in order of position; rows up to ``offset`` are settled
      ─────────┼───────┼───┴────────────►
              offset    watermark            (offset ≤ watermark: rows up to it may have been published)

      lane REST (-1)  rows that are not published: rejected, cancelled, expired; in the order of their outcomes

A holder writes a ``Change``: all of it is committed, or none.

Units: integer milliseconds; instants are UTC epoch. ``seq`` is ``counter << SHARD_BITS | shard``:
unique in the store, increasing within its shard. Every id in the store is such a number. The holder's threads may
commit in another order than they took numbers; batches and outcomes get later numbers then, so that these are in the
order of commits: a reader who reads a shard's history up to a number, and later from there, misses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Low bits of a seq carry the shard, so that one number is unique in the whole store.
SHARD_BITS = 8

#: The lane of rows that are not published. The numbers of other lanes are >= 0.
REST = -1

MAX_SEQ = 2**63 - 1
HOUR_MS, DAY_MS = 3_600_000, 86_400_000

#: Raised by every change of the tables (``schema``); a store carries the version it was made or migrated with.
SCHEMA_VERSION = 1

#: Commands in the inbox, see ``celery_wheel.engine.intake.inbox``.
CANCEL, MOVE, COMPLETE, REQUEUE, REPLAY = "cancel", "move", "complete", "requeue", "replay"
PAUSE, RESUME, ACCEPT_CLOCK = "pause", "resume", "accept_clock"

#: States of a bulk load; only an open load can be aborted; a committed load is done once all of it is accepted.
OPEN, COMMITTED, DONE, ABORTED = "open", "committed", "done", "aborted"
#: States of a gate.
PAUSED, SLOW = "paused", "slow"

#: Kinds of outcomes after which a row can be requeued.
SET_ASIDE = ("rejected", "expired", "parked")
#: Outcomes of a message whose unique key a pending task has: it is cancelled, it replaces that task, or it is rejected.
KEEP, REPLACE, REJECT = "keep", "replace", "reject"

#: Kinds of a row's claim: a key completes the row; it is the only pending row of a key; without a key, see ``Watch``.
WATCH, UNIQUE, UNANNOUNCED = "watch", "unique", "unannounced"


class Position(NamedTuple):
    """A place in the order of a lane: by due time, then by seq."""

    due_ms: int
    seq: int

    def next(self) -> Position:
        """Return the lowest position after this one."""
        return Position(self.due_ms, self.seq + 1)

    def previous(self) -> Position:
        """Return the highest position before this one that a row of the same due time may have."""
        return Position(self.due_ms, self.seq - 1)


#: The position before every row: the offset of a lane from which no row was settled.
ORIGIN = Position(0, 0)


@dataclass(slots=True, eq=False)
class Message:
    """A delayed message as its producer made it. Its body is never opened.

    ``headers`` and ``properties`` are JSON objects as UTF-8 bytes, without the wheel's envelope;
    ``properties`` holds ``content_type`` and ``content_encoding`` beside the AMQP ones. ``body`` is
    the serialised (perhaps compressed) body, never decoded.
    """

    envelope_id: str  #: UUID, 36 characters; it makes accepting idempotent
    task_id: str
    task: str
    eta_ms: int  #: as asked, microseconds rounded up
    created_ms: int  #: when the producer sent it
    exchange: str
    exchange_type: str
    routing_key: str
    queue: str | None
    priority: int | None
    key: str | None
    expires_ms: int | None  #: the task's own ``expires``
    queue_expires_ms: int | None  #: ``x-expires`` of the target queue, a duration
    headers: bytes
    properties: bytes
    body: bytes
    misfire_ms: int | None = None  #: the task expires when it is later than this duration after its eta
    watch: list[str] | None = None  #: keys that complete the task
    unique: str | None = None  #: key of which only one task may be pending
    on_conflict: str | None = None  #: KEEP, REPLACE or REJECT where another task is; None: KEEP

    @property
    def size(self) -> int:
        """Bytes this message weighs in the window and in the history."""
        return len(self.headers) + len(self.properties) + len(self.body)


@dataclass(slots=True, eq=False)
class Unreadable:
    """Bytes in the wheel queue or the inbox that are no message, kept whole with the reason."""

    envelope_id: str  #: derived from the bytes, so that reading them twice is one rejection
    reason: str
    raw: bytes


@dataclass(slots=True, eq=False)
class Row:
    """A stored message to publish: the window and chunks hold these.

    ``id`` never changes; ``due_ms`` and ``seq`` do when the row is moved.
    """

    id: int
    lane: int
    due_ms: int
    seq: int
    eta_ms: int
    task: str
    exchange: str
    exchange_type: str
    routing_key: str
    queue: str | None
    priority: int | None
    expires_ms: int | None
    queue_expires_ms: int | None
    headers: bytes
    properties: bytes
    body: bytes
    misfire_ms: int | None = None

    @classmethod
    def of(cls, message: Message, row_id: int, lane: int, due_ms: int, seq: int) -> Row:
        """A message at its position."""
        return cls(
            id=row_id,
            lane=lane,
            due_ms=due_ms,
            seq=seq,
            eta_ms=message.eta_ms,
            task=message.task,
            exchange=message.exchange,
            exchange_type=message.exchange_type,
            routing_key=message.routing_key,
            queue=message.queue,
            priority=message.priority,
            expires_ms=message.expires_ms,
            queue_expires_ms=message.queue_expires_ms,
            headers=message.headers,
            properties=message.properties,
            body=message.body,
            misfire_ms=message.misfire_ms,
        )

    @property
    def position(self) -> Position:
        return Position(self.due_ms, self.seq)

    @property
    def size(self) -> int:
        return len(self.headers) + len(self.properties) + len(self.body)

    @property
    def tally_key(self) -> TallyKey:
        return TallyKey(self.due_ms // HOUR_MS, self.target, self.task)

    @property
    def target(self) -> str:
        """The destination's name: the queue, or the routing key where none is known."""
        return self.queue or self.routing_key


class TallyKey(NamedTuple):
    """The key of a pending count."""

    hour: int  #: due_ms // HOUR_MS
    queue: str
    task: str


@dataclass(slots=True)
class NewRow:
    """A message accepted at a position. ``id`` is the first seq the row was given."""

    id: int
    lane: int
    due_ms: int
    seq: int
    accepted_ms: int
    message: Message


@dataclass(slots=True)
class NewReject:
    """Unreadable bytes, kept as a row of lane REST at (accepted_ms, id) with an outcome."""

    id: int
    accepted_ms: int
    unreadable: Unreadable


@dataclass(slots=True)
class Move:
    """A new position for row ``id``. Every move has a new seq."""

    id: int
    lane: int
    due_ms: int
    seq: int
    eta_ms: int | None = None  #: the new eta, where somebody asked for one; None: as before


@dataclass(slots=True)
class Outcome:
    """The outcome of a row that was not simply dispatched, or was moved."""

    id: int  #: a seq of its own; the stored one is later where others were committed since
    timer_id: int
    kind: str  #: cancelled | moved | expired | rejected | parked
    reason: str
    actor: str
    at_ms: int


@dataclass(slots=True)
class Answer:
    """The answer to a command.

    For a task id or a gate it is ``done``, ``already``, ``too_late`` or ``unknown``; for a key, the number of tasks
    that were ``done`` and ``too_late``; for a clock, ``accepted``, ``agreed`` or ``refused``.
    """

    id: str  #: the command's, a UUID in 36 characters
    verdicts: dict[str, Any]  #: as JSON can hold it
    at_ms: int


@dataclass(slots=True)
class Tombstone:
    """Cancels messages of a task id that arrive until ``until_ms``."""

    task_id: str
    until_ms: int
    reason: str
    actor: str


@dataclass(slots=True)
class Watch:
    """A row's claim on a key, of kind WATCH or UNIQUE; or, of kind UNANNOUNCED and without a key, the note that the row
    was cancelled and is to be announced."""

    kind: str
    key: str
    timer_id: int


@dataclass(slots=True)
class Cancelled:
    """A cancelled row, to be announced to the result backend, events and signals."""

    task_id: str
    row: Row


@dataclass(slots=True)
class Gate:
    """A pause, or a slow resume. ``scope`` is all, queue or task; ``state`` is paused or slow."""

    scope: str
    name: str
    state: str
    per_ms: int
    reason: str
    actor: str
    at_ms: int

    def in_force(self, now_ms: int) -> bool:
        """Whether the gate still has an effect: a slow one ends after ``per_ms``."""
        return self.state == PAUSED or self.at_ms + self.per_ms > now_ms

    @property
    def for_all(self) -> bool:
        return self.scope == "all"

    @property
    def what(self) -> str:
        """The gate's name for people."""
        return "everything" if self.for_all else f"{self.scope} {self.name}"


@dataclass(slots=True)
class Batch:
    """One settlement: the rows of a lane in (from_, to] were dispatched, the last of them at dispatched_ms."""

    id: int  #: as that of an Outcome
    lane: int
    from_: Position
    to: Position
    count: int
    bytes: int
    dispatched_ms: int


@dataclass(slots=True)
class LaneState:
    """A lane as stored. offset <= watermark.

    ``target`` and ``scope`` name a destination that refused rows (see ``Row.target``), with scope None; or a gate, with
    scope ``queue`` or ``task``. Where both are None, the lane is for any row.
    """

    lane: int
    offset: Position
    watermark: Position
    target: str | None = None
    redelivered: bool = False  #: some of its rows may be in their queue already
    scope: str | None = None


@dataclass(slots=True)
class Change:
    """The writes of one transaction of a holder. An empty part costs nothing.

    ``lanes`` sets the offset and the watermark of a lane, and opens a lane that is not there yet or was closed.
    ``closed`` are lanes in which nothing is pending any more: their rows are history, found by the offset that stays.
    ``tally`` is added to the pending counts. ``inbox`` has the ids of inbox items that this change carries out or
    accepts, ``loaded`` the ids of chunks of bulk loads.
    """

    seq: int = 0  #: the highest seq given so far; 0 leaves the stored one
    rows: list[NewRow] = field(default_factory=list)
    rejects: list[NewReject] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    lanes: list[LaneState] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)  #: numbers of lanes, after ``lanes``
    tally: dict[TallyKey, int] = field(default_factory=dict)
    inbox: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)  #: ids of chunks of loads
    answers: list[Answer] = field(default_factory=list)
    tombstones: list[Tombstone] = field(default_factory=list)  #: a later one of the same task id takes the place
    watches: list[Watch] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)  #: timers that no key completes any more
    unwatched: list[int] = field(default_factory=list)  #: timers whose every claim is over, of whatever kind
    gates: list[Gate] = field(default_factory=list)  #: a later one of the same scope and name takes the place
    opened: list[tuple[str, str]] = field(default_factory=list)  #: (scope, name) of gates that are no more


@dataclass(slots=True)
class InboxItem:
    """A message or a command for the holder: ``kind`` is ``message`` or a command's name."""

    id: int
    kind: str
    payload: bytes


class LoadChunk(NamedTuple):
    """Messages of a bulk load, packed (``celery_wheel.store.packed``)."""

    id: int
    rows: int
    payload: bytes


@dataclass(slots=True)
class ShardRecord:
    """A shard's row: its holder and epoch, and the holder's last snapshot."""

    shard: int
    epoch: int
    holder: str | None
    lease_until_ms: int | None
    seq: int
    snapshot: dict[str, object] | None  #: see ``celery_wheel.engine.stats``; about half a second old
    snapshot_at_ms: int | None


@dataclass(slots=True)
class RangeSummary:
    """Counts of a range of positions, for settling rows that another holder dispatched."""

    count: int
    bytes: int
    tally: dict[TallyKey, int]
