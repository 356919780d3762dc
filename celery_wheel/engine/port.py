"""The broker protocols of the engine: two, because brokers differ in what they can promise.

::

                    FencingBroker (Redis)                       ConfirmingBroker (RabbitMQ, other kombu transports)
    publish         compare-and-set on the lane's offset        message by message, each confirmed
    after a crash   the broker's offset says which rows were    the store's (offset, watermark] is in doubt: it is
                    published                                   published again, marked as redelivered
    former holder   refused by its older epoch                  stops by itself: asks ``may_send`` before each message
    a full queue    does not exist                              refuses messages: they wait in a lane of their own

The messages of a chunk and the new offset become visible in a FencingBroker together, or not at all::

    after ──chunk──► upto     offset == after    push all, offset = upto        PUBLISHED
                              offset == upto     the chunk is there already     ALREADY
                              offset >  upto     the chunk and later ones are   ALREADY
                              offset <  after    the broker lost writes         ROLLED_BACK
                              newer epoch        another holder adopted         FENCED
                              no offset          flushed, or never adopted      MISSING
                              last < confirmed   a chunk of any lane was lost   MISSING
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

from celery_wheel.errors import WheelError
from celery_wheel.store.model import Message, Position, Row, Unreadable


class RangeChecksum(NamedTuple):
    """Identifies the published rows in (after, broker's offset]: adoption compares them with the store's rows."""

    after: Position  #: the store's offset, as far as the publisher knew
    rows: int  #: the number of rows
    ids: int  #: the sum of their ids, which differs from that of as many other rows


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows to publish, in order: the live rows in (after, upto] of a lane, less those confirmed in an earlier try."""

    shard: int
    epoch: int
    lane: int
    number: int  #: grows with each call of ``publish`` in an epoch, also for a chunk that is published again
    confirmed: int  #: number of the last chunk of the shard that the broker has confirmed; 0: no chunk
    after: Position
    upto: Position
    rows: Sequence[Row]
    now_ms: int  #: for the ``expiration`` of messages
    #: A checksum of the rows that are not settled yet, this chunk included; the broker keeps it with the offset.
    checksum: RangeChecksum | None = None
    redelivered: bool = False  #: the rows may be in their queues already: a ConfirmingBroker marks them
    queues: Sequence[str] = ()  #: whose ready messages a FencingBroker counts behind the rows


class ConfirmedChunk(NamedTuple):
    """The last chunk of an epoch that the broker has confirmed."""

    shard: int
    epoch: int
    number: int  #: 0: no chunk
    accepted: int = 0  #: messages that the shard had accepted by then


class PublishResult(Enum):
    """The result of a compare-and-set on a lane's offset; the table above has the cases."""

    PUBLISHED = "published"
    ALREADY = "already"
    ROLLED_BACK = "rolled back"
    FENCED = "fenced"
    MISSING = "missing"


@dataclass(slots=True)
class Published:
    """A FencingBroker's answer. ``failed`` maps the ids of rows that cannot reach a queue to the reason.

    The engine rejects failed rows. ``failed`` is complete for PUBLISHED, and for ALREADY when the offset is at
    ``upto``.
    """

    result: PublishResult
    failed: dict[int, str] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)  #: messages in the chunk's ``queues``; empty unless PUBLISHED


@dataclass(slots=True)
class Confirmed:
    """A ConfirmingBroker's answer: every row that is in neither dict is in its queue.

    ``failed`` rows cannot reach a queue and are rejected. ``refused`` rows may be accepted later (the queue is full,
    too few nodes are up): they wait in a lane of their destination and are tried again.
    """

    failed: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)  #: as in ``Published``


@dataclass(slots=True)
class BrokerOffset:
    """A lane's offset in the broker, with the failed rows of its last chunk (row id → reason)."""

    offset: Position
    failed: dict[int, str] = field(default_factory=dict)
    checksum: RangeChecksum | None = None  #: as the last chunk had it


@dataclass(slots=True)
class Peeked:
    """Messages at the head of the wheel queue, oldest first, still in it.

    ``token`` is the broker's own proof of the peeked messages, for ``trim``.
    """

    arrivals: list[Message | Unreadable]
    token: object
    more: bool = False  #: the queue has more messages than the limits allowed


class WheelQueue(Protocol):
    """A shard's wheel queue and its server: the part that both kinds of brokers share.

    All calls but ``leave`` and ``close`` raise BrokerError when the answer is lost; all may then be repeated.
    """

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        """Return the oldest messages of the wheel queue; at least one if the queue has any, whatever its size.

        After ``leave`` it raises BrokerError until the shard is adopted anew: without a holder, no message is taken.
        """

    def trim(self, shard: int, epoch: int, token: object, accepted: int = 0) -> bool:
        """Remove exactly the peeked messages. False, and none is removed, if the queue no longer begins with them.

        A FencingBroker keeps ``accepted``, as ``verify`` does. It raises Fenced where a newer epoch has adopted the
        shard, and OffsetLost where the broker does not know this epoch.
        """

    def leave(self, shard: int, epoch: int) -> None:
        """End this epoch: messages that were peeked and not trimmed go back to the queue.

        The call does nothing where a later epoch was adopted since. Any thread may call it, twice, and while the broker
        is down; it raises nothing.
        """

    @property
    def can_wait(self) -> bool:
        """Whether the broker tells of messages; the wheel queue of any other broker is polled.

        Some servers show only by their answer to the first ``await_message`` after an adoption that they cannot.
        """

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        """Wait until the wheel queue has a message, at most ``timeout_ms``; returns whether it has one.

        The message stays where it is, and no other call waits for this one. The result is False, at once, where the
        broker cannot wait and where the shard is not adopted.
        """

    def depth(self, shard: int) -> int:
        """Return how many messages wait in the wheel queue; needs no epoch and takes no message."""

    def ready(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages are ready for workers in tasks' queues; 0 for a queue that does not exist."""

    def oldest(self, shard: int) -> Message | Unreadable | None:
        """Return the oldest message of the wheel queue, still in it; None where it is empty or cannot be read."""

    def decode(self, raw: bytes) -> Message | Unreadable:
        """Read one message in the form in which producers put it into the wheel queue."""

    def now_ms(self) -> int | None:
        """Return the broker's own clock, as a second opinion; None where it has none."""

    def keep_alive(self) -> None:
        """Keep idle connections alive; raises nothing. The engine calls it twice a second, also as a standby."""

    def close(self) -> None: ...


class FencingBroker(WheelQueue, Protocol):
    """A broker that keeps each lane's offset beside the messages, and refuses older epochs.

    Calls raise Fenced when a newer epoch has adopted the shard, and OffsetLost when the broker does not know this epoch
    (flushed, or writes were lost): the shard must then be adopted anew. ``publish`` returns both as its result.
    """

    @property
    def fences(self) -> Literal[True]: ...

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        """Make this epoch the only one that may publish, trim or move an offset; returns the offsets by lane.

        The result is empty when the broker has no offsets (new or emptied). Raises StoreConflict where the offsets
        belong to another store.
        """

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        """Set a lane's offset without publishing."""

    def drop_lanes(self, shard: int, epoch: int, lanes: Sequence[int]) -> None:
        """Forget the offsets of closed lanes."""

    def verify(self, shard: int, epoch: int, confirmed: int, accepted: int = 0) -> None:
        """Raise OffsetLost unless the broker has this epoch's chunk number ``confirmed`` or a later chunk; 0: no chunk.

        The call also tells the broker that the holder lives, and how many messages the shard's store has accepted: the
        broker keeps the highest number.
        """

    def accepted(self, shard: int) -> int:
        """Return that number: a store with a lower one was rolled back. 0: the broker has none."""

    def set_accepted(self, shard: int, epoch: int, accepted: int) -> None:
        """Set that number, also to a lower one."""

    def verified(self, chunks: Sequence[ConfirmedChunk]) -> set[int]:
        """Verify the chunks of several shards in one call; returns the shards for which ``verify`` raises nothing.

        The other shards are those that ``verify`` has to decide on: the call may leave out any.
        """

    def together(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Make calls for several shards at once: each is an edge of this server, ``publish``, ``peek`` or ``trim``, and
        its arguments. Returns an answer or an error for each."""

    def publish(self, chunk: Chunk) -> Published:
        """Put the rows, in order, into their queues and move the lane's offset from ``after`` to ``upto``."""


class ConfirmingBroker(WheelQueue, Protocol):
    """A broker that confirms message by message and knows neither offsets nor epochs."""

    @property
    def fences(self) -> Literal[False]: ...

    def adopt(self, shard: int, epoch: int) -> None:
        """Begin to read the shard's wheel queue for this epoch."""

    def publish(self, chunk: Chunk, may_send: Callable[[], bool]) -> Confirmed:
        """Put the rows, in order, into their queues; every row that is not in the result is confirmed.

        ``may_send`` is called before each message: where it returns False (the lease is over, the shard was given up)
        no further message is sent, and PublishInterrupted is raised. PublishInterrupted, a BrokerError, is also raised
        when the broker goes away within a chunk; it carries the ids of the rows that were confirmed by then.
        """


Broker = FencingBroker | ConfirmingBroker


def ask(edge: Any, name: str, *arguments: Any) -> Any:
    """Make a call of ``FencingBroker.together`` by itself."""
    return getattr(edge, name)(*arguments)


def ask_each(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Make such calls one after the other."""
    found = list[Any]()
    for call in calls:
        try:
            found.append(ask(*call))
        except WheelError as error:
            found.append(error)
    return found
