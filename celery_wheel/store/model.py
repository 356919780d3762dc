"""What the store keeps, as plain values. Standard library only.

::

    Message ──accepted──► Row = a message at a Position (due_ms, seq) in a lane of a shard
                           │
      lane 0 … n           │   leaves in order of position; ``offset`` = all up to here is settled
      ─────────┼───────┼───┴────────────►
              offset    watermark            (offset ≤ watermark: what was handed to the broker)

      lane REST (-1)  rows that do not leave: rejected, cancelled, expired; ordered by when they came to rest

The one write of a holder is a ``Change``: all of it is committed, or none.

Units: integer milliseconds; instants are UTC epoch. ``seq`` is ``counter << SHARD_BITS | shard``:
unique in the store, increasing within its shard. Every id in the store is such a number. The holder's threads commit in
another order than these were given in; batches and outcomes get later ones then, so that theirs are in the order of
commits: whoever reads a shard's history up to a number, and later on from there, misses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Low bits of a seq carry the shard, so that one number is unique in the whole store.
SHARD_BITS = 8

#: The lane of rows that will not leave by themselves. Lanes that leave are >= 0.
REST = -1

MAX_SEQ = 2**63 - 1
HOUR_MS = 3_600_000

#: Commands in the inbox, see ``celery_wheel.engine.inbox``.
CANCEL, MOVE, COMPLETE, REQUEUE, REPLAY = "cancel", "move", "complete", "requeue", "replay"
PAUSE, RESUME = "pause", "resume"

#: States of a bulk load; what is aborted had to be open, what is done was committed and is all taken in.
OPEN, COMMITTED, DONE, ABORTED = "open", "committed", "done", "aborted"

#: States of a gate.
PAUSED, SLOW = "paused", "slow"

#: Kinds of outcomes after which a row rests, and can leave again.
SET_ASIDE = ("rejected", "expired", "parked")

#: A kind of watch, see ``Watch``.
WITHDRAWN = "withdrawn"

#: What happens to a message whose unique key another one has that waits: it is dropped, takes the other's place, or is
#: set aside as rejected.
KEEP, REPLACE, REJECT = "keep", "replace", "reject"

#: Kinds of a timer's claim on a key: it is completed with the key; it is the only one of the key that waits.
WATCH, UNIQUE = "watch", "unique"


class Position(NamedTuple):
    """Where a row stands in the order of its lane: first by due time, then by arrival."""

    due_ms: int
    seq: int

    def next(self) -> Position:
        """The lowest position after this one."""
        return Position(self.due_ms, self.seq + 1)

    def previous(self) -> Position:
        """The highest position before this one that a row of the same due time may have."""
        return Position(self.due_ms, self.seq - 1)


#: Before every row: the offset of a lane from which nothing has left.
ORIGIN = Position(0, 0)


@dataclass(slots=True, eq=False)
class Message:
    """A delayed message as its producer made it. Nothing in it is ever opened.

    ``headers`` and ``properties`` are JSON objects as UTF-8 bytes, without the wheel's envelope;
    ``properties`` holds ``content_type`` and ``content_encoding`` beside the AMQP ones. ``body`` is
    the serialised (perhaps compressed) body, never decoded.
    """

    envelope_id: str  #: UUID, 36 characters; what makes accepting idempotent
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
    misfire_ms: int | None = None  #: found later than this after its eta it is set aside, a duration
    watch: list[str] | None = None  #: keys with which it is completed
    unique: str | None = None  #: of this key it is to be the only one that waits
    on_conflict: str | None = None  #: what happens if it is not; None: as KEEP

    @property
    def size(self) -> int:
        """Bytes this message weighs in the window and in the history."""
        return len(self.headers) + len(self.properties) + len(self.body)


@dataclass(slots=True, eq=False)
class Unreadable:
    """Bytes that came to the wheel and are no message: kept whole, with the reason."""

    envelope_id: str  #: derived from the bytes, so that reading them twice is one rejection
    reason: str
    raw: bytes


@dataclass(slots=True, eq=False)
class Row:
    """A stored message that is to leave: what the window holds and a chunk carries.

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
    """Pending counts are kept by these three."""

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
    """Unreadable bytes, laid to rest as a row of lane REST at (accepted_ms, seq) with an outcome."""

    id: int
    accepted_ms: int
    unreadable: Unreadable


@dataclass(slots=True)
class Move:
    """Row ``id`` takes a new place. Every move has a new seq."""

    id: int
    lane: int
    due_ms: int
    seq: int
    eta_ms: int | None = None  #: what is asked for now, where somebody asked for another time; None: as before


@dataclass(slots=True)
class Outcome:
    """What became of a row that did not simply leave."""

    id: int  #: a seq of its own; as stored it is a later one, where others were committed since
    timer_id: int
    kind: str  #: cancelled | moved | expired | rejected | parked
    reason: str
    actor: str
    at_ms: int


@dataclass(slots=True)
class Answer:
    """What became of a command.

    Of a task id: ``done``, ``too_late`` or ``unknown``. Of a key: how many tasks were ``done`` or ``too_late``.
    """

    id: str  #: the command's, a UUID in 36 characters
    verdicts: dict[str, Any]  #: as JSON can hold it
    at_ms: int


@dataclass(slots=True)
class Tombstone:
    """Messages of this task id that come until ``until_ms`` are laid to rest as they come."""

    task_id: str
    until_ms: int
    reason: str
    actor: str


@dataclass(slots=True)
class Watch:
    """A timer's claim on a key, of kind ``watch`` or ``unique``; or, of kind WITHDRAWN and without a key, that it was
    cancelled and nobody outside has been told yet."""

    kind: str
    key: str
    timer_id: int


@dataclass(slots=True)
class Withdrawn:
    """A row that was cancelled, for whoever keeps the books of tasks."""

    task_id: str
    row: Row


@dataclass(slots=True)
class Gate:
    """Tasks that leave slowly or not at all. ``scope`` is all, queue or task; ``state`` is paused or slow."""

    scope: str
    name: str
    state: str
    per_ms: int
    reason: str
    actor: str
    at_ms: int

    def in_force(self, now_ms: int) -> bool:
        """What leaves slowly does so for its time only."""
        return self.state == PAUSED or self.at_ms + self.per_ms > now_ms

    @property
    def for_all(self) -> bool:
        return self.scope == "all"

    @property
    def what(self) -> str:
        """As people call it; the name is as it came."""
        return "everything" if self.for_all else f"{self.scope} {self.name}"


@dataclass(slots=True)
class Batch:
    """One settlement: the rows of a lane in (from_, to] were handed to the broker at dispatched_ms."""

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

    ``target`` and ``scope``: the one destination that refused something (see ``Row.target``), scope None; or the name
    of a gate, scope ``queue`` or ``task``. Both None: it is for all.
    """

    lane: int
    offset: Position
    watermark: Position
    target: str | None = None
    redelivered: bool = False  #: some of its rows may be in their queue already
    scope: str | None = None


@dataclass(slots=True)
class Change:
    """All that one transaction of a holder writes. An empty part costs nothing.

    ``lanes`` sets the offset and the watermark of a lane, and opens a lane that is not there yet.
    ``tally`` is added to the pending counts. ``inbox`` are the ids of inbox items this change takes in,
    ``loaded`` those of chunks of bulk loads.
    """

    seq: int = 0  #: the highest seq given so far; 0 leaves the stored one
    rows: list[NewRow] = field(default_factory=list)
    rejects: list[NewReject] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    lanes: list[LaneState] = field(default_factory=list)
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
    """Something that others wrote for the holder: ``kind`` is ``message`` or a command's name."""

    id: int
    kind: str
    payload: bytes


class LoadChunk(NamedTuple):
    """Messages of a bulk load, packed (``celery_wheel.store.packed``)."""

    id: int
    rows: int
    payload: bytes


@dataclass(slots=True)
class ShardState:
    """A shard as anybody may read it: who holds it, and what the holder last said of itself."""

    shard: int
    epoch: int
    holder: str | None
    lease_until_ms: int | None
    seq: int
    snapshot: dict[str, object] | None  #: the holder's own words, at most about a second old
    snapshot_at_ms: int | None


@dataclass(slots=True)
class RangeSummary:
    """What stands in a range of positions: for settling rows that another holder dispatched."""

    count: int
    bytes: int
    tally: dict[TallyKey, int]
