"""What an engine asks of a broker. The engine itself imports no client library and no kombu.

A broker that keeps the offset beside the messages (Redis; ``keeps_offset``) makes ``publish`` a compare-and-set:
the messages of a chunk and the lane's new offset become visible together, or not at all.

::

    from ──chunk──► to        offset == from   push all, offset = to            PUBLISHED
                              offset >= to     it was done before             ALREADY
                              offset <  from   the broker lost writes         ROLLED_BACK
                              newer epoch    another holder adopted         FENCED
                              no offset        flushed, or never adopted      MISSING

One that keeps none (RabbitMQ, other kombu transports) confirms message by message. The engine then stores how far a
chunk goes before it leaves, so that after a crash it is known what is in doubt, and sends that again with a mark::

    store: offset ─────── in doubt ───────► watermark        publish(…, again=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from celery_wheel.store.model import Message, Position, Row, Unreadable


class Verdict(Enum):
    PUBLISHED = "published"
    ALREADY = "already"
    ROLLED_BACK = "rolled back"
    FENCED = "fenced"
    MISSING = "missing"


@dataclass(slots=True)
class Published:
    """``failed`` maps the id of a row that cannot get to a queue to the reason: it is rejected.

    It is complete for PUBLISHED, and for ALREADY when the broker's offset stands at ``to``.

    ``refused`` are rows that their queue would not take now, and may take later (full, no majority of its nodes):
    their destination waits, and they are tried again. A broker that keeps the offset refuses nothing.
    """

    verdict: Verdict
    failed: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


class Since(NamedTuple):
    """Which rows went to the broker after a position: what a broker's offset vouches for."""

    position: Position  #: the store's offset, as far as the publisher knew
    rows: int  #: how many
    ids: int  #: the sum of their ids; as many others have another


@dataclass(slots=True)
class BrokerOffset:
    """Where a lane stands in the broker, and what of its last chunk was refused (row id → reason)."""

    offset: Position
    failed: dict[int, str] = field(default_factory=dict)
    since: Since | None = None  #: as its last chunk came with it


@dataclass(slots=True)
class Peeked:
    """Messages at the head of the wheel queue, oldest first, still in it.

    ``token`` is the broker's own proof of what was peeked; ``trim`` takes it back.
    """

    arrivals: list[Message | Unreadable]
    token: object
    more: bool = False  #: there was more than the limits let through


class Broker(Protocol):
    """All calls raise BrokerError when the answer is lost; all may then be repeated.

    Calls that carry an epoch raise Fenced when a newer one has adopted the shard, and OffsetLost when the broker
    does not know this one (flushed, or writes were lost): the shard must then be adopted anew. ``publish`` says
    both by its verdict.
    """

    @property
    def keeps_offset(self) -> bool:
        """Whether ``publish`` is a compare-and-set on an offset in the broker. Where it is not, ``adopt`` answers with
        no offsets, ``set_offset`` does nothing, every ``publish`` that returns has PUBLISHED, and no call is fenced."""

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        """Make this epoch the only one that may publish, trim or move an offset; returns the offsets by lane.

        Empty when the broker has none (new, flushed, or another store's).
        """

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        """Set a lane's offset without publishing."""

    def publish(
        self,
        shard: int,
        epoch: int,
        lane: int,
        from_: Position,
        to: Position,
        rows: Sequence[Row],
        now_ms: int,
        since: Since | None = None,
        redelivered: bool = False,
    ) -> Published:
        """Put the rows, in order, into their queues and move the lane's offset from ``from_`` to ``to``.

        ``since`` is kept beside the offset: what the store does not know of yet, these rows included.
        ``again``: they may be in their queues already; a broker without an offset marks them (``wheel_redelivered``).

        Raises Interrupted, a BrokerError, when the broker confirmed only some of the rows.
        """

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        """The oldest messages of the shard's wheel queue; at least one, if there is one, whatever its size.

        After ``leave`` it raises BrokerError until the shard is adopted anew: nothing may be taken for nobody.
        """

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        """Remove exactly what was peeked. False, and nothing removed, if the queue's head is no longer that."""

    def leave(self, shard: int, epoch: int) -> None:
        """This term has ended: what was peeked and not trimmed goes back to the queue.

        Nothing is done when a later epoch has been adopted here since. May be called by any thread, twice, and at a
        broker that is away; it raises nothing.
        """

    def decode(self, raw: bytes) -> Message | Unreadable:
        """Read one message in the form in which producers put it into the wheel queue."""

    def now_ms(self) -> int | None:
        """The broker's own clock, as a second opinion; None where it has none.

        Asked about twice a second, also by those who stand by: a broker may keep its connections alive in it.
        """

    def close(self) -> None: ...
