r"""The values of the store: messages, rows, blocks, and the writes of a holder. Standard library only.

::

    Message ──accepted──► Row: a message at a Position (due_ms, seq) in a lane of a shard
    lane STOPPED (-1)     rows with an outcome: rejected, cancelled, expired; never published
    pack of a load ──► MessageBlock ──admitted──► NewBlock ──► executemany or COPY    no object for any of its messages
    headers, properties, body ──pack──► b'{"lang": …}\\x1e{"content_type": …}\\x1e[[1], {}, …]', or packed bytes

A holder writes a ``Change``: all of it is committed, or none. A block is all or nothing: where one of its messages may
be known, cancelled or due in another lane, or soon, the block is taken apart: 7 µs more for a message.

Units: integer milliseconds; instants are UTC epoch. ``seq`` is ``counter << SHARD_BITS | shard``:
unique in the store, increasing within its shard. Every id in the store is such a number. The holder's threads may
commit in another order than they took numbers; settlements and outcomes then get later numbers, so that their numbers
are in the order of commits: a reader who reads a shard's history up to a number, and later from there, misses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from celery_wheel.store.erasure_model import AuditErasure
from celery_wheel.store.schedule_model import ScheduleChange

SEPARATOR = b"\x1e"


class Parts(NamedTuple):
    """The bytes of a message."""

    headers: bytes
    properties: bytes
    body: bytes


class Packing(Protocol):
    """A way to pack messages; ``number`` tells a store by which way a row is packed."""

    number: int

    def unpack(self, packed: bytes) -> bytes:
        """Return what ``join`` returned. Raises ValueError for damaged bytes."""


class Plain:
    number = 0

    def unpack(self, packed: bytes) -> bytes:
        return packed


PLAIN = Plain()


def join(headers: bytes, properties: bytes, body: bytes) -> bytes:
    """Return the three parts as one value, which ``split`` takes apart again."""
    if SEPARATOR in headers or SEPARATOR in properties:
        raise ValueError("headers and properties must be JSON texts, which have no control characters")
    return b"%b\x1e%b\x1e%b" % (headers, properties, body)


def split(plain: bytes) -> Parts:
    """Return the three parts. Raises ValueError for other bytes."""
    headers, properties, body = plain.split(SEPARATOR, 2)
    return Parts(headers, properties, body)


def with_header(headers: bytes, name: str, value: int) -> bytes:
    """Return encoded headers with another one, which they do not have, before the others."""
    return b'{"%b": %d%b%b' % (name.encode(), value, b"" if headers == b"{}" else b", ", headers[1:])


#: Routes that a process keeps in memory.
MAX_ROUTES = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The task and the destination of messages: of very many messages, a few.

    ``Route.of`` returns the same object for the same values, so routes are compared and counted by identity, which
    costs a row a tenth of what a comparison of the names does. Two objects may be equal routes all the same.
    """

    task: str
    exchange: str
    exchange_type: str
    routing_key: str
    queue: str | None
    priority: int | None
    queue_expires_ms: int | None
    batch: int | None  #: see ``Message.batch``
    signed: bool  #: see ``Message.signed``

    @classmethod
    def of(cls, message: Any) -> Route:
        """Return the route of a message, whose attributes have the names of the fields."""
        values = _ROUTE_OF(message)
        return _ROUTES.get(values) or cls.make(*values)

    @classmethod
    def make(cls, *values: Any) -> Route:
        """Return the route with these values, in the order of the fields."""
        found = _ROUTES.get(values)
        if found is None:
            if len(_ROUTES) >= MAX_ROUTES:  # above it, where two threads made the last ones at once
                _ROUTES.clear()
            found = _ROUTES[values] = cls(*values)
        return found

    @classmethod
    def named(cls, queue: str, task: str) -> Route:
        """Return the route that has a queue's and a task's name and nothing else: counts are kept by it."""
        return cls.make(task, "", "", queue, None, None, None, None, False)

    @property
    def target(self) -> str:
        """The destination's name: the queue, or the routing key where the queue is unknown."""
        return self.queue or self.routing_key


_ROUTE_OF = attrgetter(*Route.__slots__)
_ROUTES: dict[tuple[Any, ...], Route] = {}


#: The low bits of a seq are the shard, so that one number is unique in the whole store.
SHARD_BITS = 8

#: The lane of stopped rows: they have an outcome and are not published. Lanes that publish have numbers >= 0.
STOPPED = -1

#: The lane of rows that wait for their group or for room in their queue, by lines. Nothing is published from it: its
#: offset stays at ORIGIN, and a released row moves to another lane.
WAITING = -2

#: The low bits of a row's ``line`` are its rank: FIRST_TIME, where it cannot be in its queue already, and its priority.
RANK_BITS, FIRST_TIME = 9, 256


def is_redelivered(line: int) -> bool:
    """Whether a waiting row may be in its queue already, by its ``line``."""
    return not line & FIRST_TIME


MAX_SEQ = 2**63 - 1
HOUR_MS, DAY_MS = 3_600_000, 86_400_000

#: Raised by every change of the tables (``schema``); a store carries the version it was made or migrated with.
SCHEMA_VERSION = 1
#: Commands in the inbox (``celery_wheel.engine.intake.inbox``); ``schedule_model`` has those of schedules.
CANCEL, MOVE, COMPLETE, REQUEUE, REPLAY = "cancel", "move", "complete", "requeue", "replay"
PAUSE, RESUME, LIMIT, ACCEPT_CLOCK, ERASE, BULK = "pause", "resume", "limit", "accept_clock", "erase", "bulk"

#: States of a bulk load; only an open load can be aborted; a committed load is done once all of it is accepted.
OPEN, COMMITTED, DONE, ABORTED = "open", "committed", "done", "aborted"
#: States of a gate.
PAUSED, SLOW = "paused", "slow"
#: Outcomes, and those after which a row can be requeued.
OUTCOMES, REQUEUABLE = ("rejected", "cancelled", "expired", "moved"), ("rejected", "expired")
#: A message whose unique key is taken: it is cancelled, it replaces the pending task, it is rejected, or it is due when
#: the key is free.
KEEP, REPLACE, REJECT, FOLLOW = "keep", "replace", "reject", "follow"

#: Kinds of ``Watch``: the key completes the row; the row is the only pending one of the key; see ``Watch``.
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


#: The position before every row: the offset of a lane that has settled no row.
ORIGIN = Position(0, 0)


@dataclass(slots=True, eq=False)
class Message:
    """A delayed message as its producer made it. Nothing here opens its body.

    ``headers`` and ``properties`` are JSON objects as UTF-8 bytes, without the wheel's envelope; ``properties`` also
    holds ``content_type`` and ``content_encoding``. ``body`` is the serialised, perhaps compressed body, never decoded.
    """

    envelope_id: str  #: UUID, 36 characters; it makes accepting idempotent
    task_id: str
    task: str
    eta_ms: int  #: the requested instant, microseconds rounded up
    created_ms: int  #: when the producer sent it
    exchange: str
    exchange_type: str
    routing_key: str
    queue: str | None
    priority: int | None
    key: str | None
    expires_ms: int | None  #: the task's own ``expires``
    queue_expires_ms: int | None  #: ``x-expires`` of the task's queue, a duration
    headers: bytes = field(repr=False)
    properties: bytes = field(repr=False)
    body: bytes = field(repr=False)
    misfire_ms: int | None = None  #: the task expires when it is later than this duration after its eta
    group: str | None = None  #: also its key: the tasks of a group share a shard and limits
    watch: list[str] | None = None  #: keys that complete the task
    unique: str | None = None  #: key of which only one task may be pending; or the name of its batch
    on_conflict: str | None = None  #: KEEP, REPLACE, REJECT or FOLLOW where another task has the key; None: KEEP
    latest_ms: int | None = None  #: a task that replaces this one, or joins its batch, is due then at the latest
    window_ms: int | None = None  #: the key stays taken for this duration after the eta
    batch: int | None = None  #: up to so many calls of its batch are one message for the worker
    signed: bool = False  #: by a key of ``wheel_signing_keys``: it may have any destination
    signed_for: int | None = None  #: the shard for which it was signed
    refused: str | None = None  #: the reason for which it is rejected as it arrives

    @property
    def size(self) -> int:
        """Bytes of its headers, properties and body."""
        return len(self.headers) + len(self.properties) + len(self.body)


@dataclass(slots=True, eq=False)
class Unreadable:
    """Bytes from the wheel queue or the inbox that are no message, kept whole with the reason."""

    envelope_id: str  #: derived from the bytes, so that two deliveries of them are one rejection
    reason: str
    raw: bytes = field(repr=False)
    of: tuple[str, str] = ("", "")  #: name and id of the task, where they can be read


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
    route: Route
    expires_ms: int | None
    misfire_ms: int | None
    size: int  #: bytes of its headers, properties and body
    packed: bytes
    packing: Packing
    task_id: str = ""  #: of a row that was found by it, by a key or as a run; the window has very many rows
    group: str | None = None
    line: int | None = None  #: of a row in lane WAITING: number of the line << RANK_BITS | rank
    reports: bool = False  #: its worker reports the end of its slot in a group: it is published with its id

    @classmethod
    def of(cls, message: Message, row_id: int, lane: int, due_ms: int, seq: int) -> Row:
        """Return the message as a row at that position."""
        packed = join(message.headers, message.properties, message.body)
        expires_ms, misfire_ms, route = message.expires_ms, message.misfire_ms, Route.of(message)
        place = (row_id, lane, due_ms, seq, message.eta_ms)
        return cls(*place, route, expires_ms, misfire_ms, message.size, packed, PLAIN, "", message.group)

    @property
    def position(self) -> Position:
        return Position(self.due_ms, self.seq)

    def parts(self) -> Parts:
        """Return headers, properties and body. Raises ValueError where the stored bytes are damaged."""
        return split(self.packing.unpack(self.packed))


class TallyKey(NamedTuple):
    """The key of a pending count."""

    hour: int  #: due_ms // HOUR_MS
    queue: str
    task: str


@dataclass(slots=True)
class StoredMessage:
    """A whole message at its place, as it is accepted, and as a drain reads it. ``id`` is the first seq of the row."""

    id: int
    lane: int
    due_ms: int
    seq: int
    accepted_ms: int
    message: Message
    redelivered: bool = False  #: it may be in its queue already
    outcome: str | None = None  #: why a stopped message stopped
    reason: str | None = None


@dataclass(slots=True)
class NewReject:
    """Unreadable bytes, stored as a row of lane STOPPED at (accepted_ms, id) with an outcome."""

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
    eta_ms: int | None = None  #: the new eta of a requested move; None: as before
    line: int | None = None  #: see ``Row.line``; only of a move to lane WAITING


@dataclass(slots=True)
class Outcome:
    """The outcome of a row that was stopped, or was moved elsewhere."""

    id: int  #: a seq of its own; the stored id is later where another change committed first
    timer_id: int
    kind: str  #: cancelled | moved | expired | rejected
    reason: str
    actor: str
    at_ms: int


@dataclass(slots=True)
class Answer:
    """The answer to a command.

    For a task id or a gate it is ``done``, ``already``, ``too_late`` or ``unknown``; for a key, the number of tasks
    that were ``done`` and ``too_late``; for a clock, ``accepted``, ``agreed`` or ``refused``.
    """

    id: str  #: of the command, a UUID in 36 characters
    results: dict[str, Any]  #: by name; values of JSON
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
    """A row's claim on a key (WATCH or UNIQUE), or the mark of a cancelled row yet to be announced (UNANNOUNCED)."""

    kind: str
    key: str
    timer_id: int
    latest_ms: int | None = None  #: of UNIQUE: as of the message
    window_ms: int | None = None


@dataclass(slots=True)
class Gate:
    """A pause, or a slow resume. ``scope`` is all, queue, task or group; ``state`` is paused or slow."""

    scope: str
    name: str
    state: str
    per_ms: int
    reason: str
    actor: str
    at_ms: int

    def in_force(self, now_ms: int) -> bool:
        """Whether the gate still has an effect: a slow gate ends after ``per_ms``."""
        return self.state == PAUSED or self.at_ms + self.per_ms > now_ms

    @property
    def for_all(self) -> bool:
        return self.scope == "all"

    @property
    def what(self) -> str:
        """The gate's name for people."""
        return "everything" if self.for_all else f"{self.scope} {self.name}"


@dataclass(slots=True)
class Settlement:
    """One settlement: the rows of a lane in (from_, to] were dispatched, the last row at dispatched_ms."""

    id: int  #: as the id of an Outcome
    lane: int
    from_: Position
    to: Position
    count: int
    bytes: int
    dispatched_ms: int


@dataclass(slots=True)
class LaneState:
    """A lane as stored. offset <= watermark.

    With scope None, ``target`` is a destination that refused rows (see ``Row.target``). With scope ``queue`` or
    ``task``, it is the name of a gate. Where both are None, the lane takes any row.
    """

    lane: int
    offset: Position
    watermark: Position
    target: str | None = None
    redelivered: bool = False  #: some of its rows may be in their queue already
    scope: str | None = None


@dataclass(slots=True)
class LineState:
    """A waiting line as stored; in a ``Change``, ``waiting`` is what is added to the stored number."""

    number: int
    group: str  #: "" for rows without a group
    queue: str
    waiting: int


#: A run of a group without a report counts as over after this time, where no limit says otherwise.
MAX_RUNTIME_MS = 3_600_000


@dataclass(slots=True)
class GroupLimit:
    """Limits of one group; None leaves a limit as the group's class has it."""

    group: str
    concurrency: int | None
    rate_count: int | None
    rate_per_ms: int | None
    weight: int | None
    max_runtime_ms: int | None
    actor: str
    at_ms: int


class PassedOn(NamedTuple):
    """An inbox item that goes to another shard; it keeps its id."""

    item: int
    shard: int
    payload: bytes


class StoredBulk(NamedTuple):
    """A shard's part of a bulk action as stored; see ``celery_wheel.store.bulk_model``."""

    action: str
    state: str
    request: str  #: JSON object
    progress: str  #: JSON object
    changed_ms: int
    stepped_ms: int | None  #: None: it is not running


@dataclass(slots=True)
class Change(ScheduleChange):
    """The writes of one transaction of a holder. An empty part costs nothing.

    ``lanes`` sets the offset and the watermark of a lane, and opens a lane that is new or was closed.
    ``closed`` are lanes without pending rows: their rows are history, up to the offset, which stays.
    ``tally`` is added to the pending counts. ``inbox`` has the ids of inbox items that are carried out or accepted.
    """

    seq: int = 0  #: the highest seq taken so far; 0 leaves the stored seq
    known: int = 0  #: messages that the shard has accepted, as far as the holder knows: a store with fewer lost some
    rows: list[StoredMessage] = field(default_factory=list)
    blocks: list[NewBlock] = field(default_factory=list)
    rejects: list[NewReject] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    lanes: list[LaneState] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)  #: numbers of lanes, after ``lanes``
    tally: dict[TallyKey, int] = field(default_factory=dict)
    inbox: list[int] = field(default_factory=list)
    passed_on: list[PassedOn] = field(default_factory=list)  #: inbox items that another shard carries out
    loaded: list[int] = field(default_factory=list)  #: ids of chunks of loads
    answers: list[Answer] = field(default_factory=list)
    tombstones: list[Tombstone] = field(default_factory=list)  #: each replaces an earlier one of its task id
    watches: list[Watch] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)  #: timers whose WATCH claims are removed
    unwatched: list[int] = field(default_factory=list)  #: timers whose claims of every kind are removed
    gates: list[Gate] = field(default_factory=list)  #: each replaces an earlier one of its scope and name
    opened: list[tuple[str, str]] = field(default_factory=list)  #: (scope, name) of gates to remove
    lines: list[LineState] = field(default_factory=list)
    ended_lines: list[int] = field(default_factory=list)  #: lines to remove if no row is left in them, after ``lines``
    limits: list[GroupLimit] = field(default_factory=list)  #: each replaces an earlier one of its group
    unlimited: list[str] = field(default_factory=list)  #: groups whose own limits are removed
    erased: list[int] = field(default_factory=list)  #: timers to remove with their outcomes, claims and runs
    erased_audits: list[AuditErasure] = field(default_factory=list)
    erased_schedules: list[int] = field(default_factory=list)  #: ids of schedules whose revisions and skips go
    bulks: list[StoredBulk] = field(default_factory=list)  #: each replaces an earlier one of its action
    rates: dict[str, int] = field(default_factory=dict)  #: group → when its rate is as unused; a later one stays

    @property
    def accepted(self) -> int:
        """How many messages it accepts, whatever becomes of them."""
        return len(self.rows) + sum(len(one.block) for one in self.blocks) + len(self.rejects)

    @property
    def may_share(self) -> bool:
        """Whether it may share a transaction with changes of other shards: nothing of it can be withdrawn, and no other
        shard's change touches the same rows."""
        withdrawable = self.inbox or self.passed_on or self.loaded
        common = self.audits or self.erased_audits or self.erased_schedules or self.moved_schedules
        return not (withdrawable or common)


class ShardChange(NamedTuple):
    """A change, and the epoch under which a shard's holder makes it."""

    shard: int
    epoch: int
    change: Change


#: The kind of an inbox item with messages that are packed (``celery_wheel.store.message_pack``).
MESSAGES = "messages"

#: Kind and payload of an item for the inbox; and how many messages it has, where they are packed.
NewItem = tuple[str, bytes] | tuple[str, bytes, int]


@dataclass(slots=True)
class InboxItem:
    """A message or a command for the holder: ``kind`` is ``message``, ``messages`` or a command's name."""

    id: int
    kind: str
    payload: bytes = field(repr=False)


class BulkLoadChunk(NamedTuple):
    """Messages of a bulk load, packed (``celery_wheel.store.message_pack``)."""

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
    accepted: int = 0  #: messages that the shard has accepted since the store was made


@dataclass(slots=True)
class RangeSummary:
    """Counts of a range of positions, for settling rows that another holder dispatched."""

    count: int
    bytes: int
    tally: dict[TallyKey, int]


@dataclass(slots=True, eq=False)
class MessageBlock:
    """Messages that differ in these columns only; none of them watches a key or has a unique one."""

    like: Message  #: a message of the kind, for the values that all of them share
    envelope_ids: list[str]
    task_ids: list[str]
    eta_ms: list[int]
    created_ms: list[int]
    keys: list[str | None]
    groups: list[str | None]
    expires_ms: list[int | None]
    plain: list[bytes]  #: headers, properties and body, joined (``celery_wheel.store.model``)

    def __len__(self) -> int:
        return len(self.plain)

    @property
    def route(self) -> Route:
        return Route.of(self.like)

    @property
    def sizes(self) -> list[int]:
        """Bytes of each message's headers, properties and body: of ``plain`` without its two separators."""
        return [len(one) - 2 for one in self.plain]

    def messages(self) -> list[Message]:
        one, kind = self.like, self.route
        columns = zip(
            self.envelope_ids,
            self.task_ids,
            self.eta_ms,
            self.created_ms,
            self.keys,
            self.groups,
            self.expires_ms,
            map(split, self.plain),
            strict=True,
        )
        return [
            Message(  # by position, which takes a third of the time
                envelope_id,
                task_id,
                kind.task,
                eta_ms,
                created_ms,
                kind.exchange,
                kind.exchange_type,
                kind.routing_key,
                kind.queue,
                kind.priority,
                key,
                expires_ms,
                kind.queue_expires_ms,
                headers,
                properties,
                body,
                one.misfire_ms,
                group,
            )
            for envelope_id, task_id, eta_ms, created_ms, key, group, expires_ms, (headers, properties, body) in columns
        ]


Arrival = Message | Unreadable | MessageBlock


@dataclass(slots=True, eq=False)
class NewBlock:
    """A block accepted in a lane: its rows have successive ids, from ``first`` on, and each id is the row's seq."""

    first: int
    lane: int
    due_ms: list[int]
    accepted_ms: int
    block: MessageBlock

    @property
    def ids(self) -> range:
        return range(self.first, self.first + (len(self.block) << SHARD_BITS), 1 << SHARD_BITS)

    def rows(self) -> list[StoredMessage]:
        columns = zip(self.ids, self.due_ms, self.block.messages(), strict=True)
        return [
            StoredMessage(id_, self.lane, due_ms, id_, self.accepted_ms, message) for id_, due_ms, message in columns
        ]


def each(arrivals: Iterable[Arrival]) -> list[Message | Unreadable]:
    """Return the arrivals, those of blocks one by one."""
    apart = (one.messages() if isinstance(one, MessageBlock) else (one,) for one in arrivals)
    return list(chain.from_iterable(apart))
