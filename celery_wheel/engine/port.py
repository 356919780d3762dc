"""What an engine asks of a broker. The engine itself imports no client library and no kombu.

A broker that keeps the hand beside the messages (Redis) makes ``publish`` a compare-and-set:
the messages of a chunk and the lane's new hand become visible together, or not at all.

::

    from ──chunk──► to        hand == from   push all, hand = to            PUBLISHED
                              hand >= to     it was done before             ALREADY
                              hand <  from   the broker lost writes         ROLLED_BACK
                              newer epoch    another holder adopted         FENCED
                              no hand        flushed, or never adopted      MISSING
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
    """``failed`` maps the id of a row that its queue would not take to the reason.

    It is complete for PUBLISHED, and for ALREADY when the broker's hand stands at ``to``.
    """

    verdict: Verdict
    failed: dict[int, str] = field(default_factory=dict)


class Since(NamedTuple):
    """Which rows went to the broker after a position: what a broker's hand vouches for."""

    position: Position  #: the store's hand, as far as the publisher knew
    rows: int  #: how many
    ids: int  #: the sum of their ids; as many others have another


@dataclass(slots=True)
class BrokerHand:
    """Where a lane stands in the broker, and what of its last chunk was refused (row id → reason)."""

    hand: Position
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

    Calls that carry an epoch raise Fenced when a newer one has adopted the shard, and HandLost when the broker
    does not know this one (flushed, or writes were lost): the shard must then be adopted anew. ``publish`` says
    both by its verdict.
    """

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerHand]:
        """Make this epoch the only one that may publish, trim or move a hand; returns the hands by lane.

        Empty when the broker has none (new, flushed, or another store's).
        """

    def set_hand(self, shard: int, epoch: int, lane: int, hand: Position) -> None:
        """Set a lane's hand without publishing."""

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
    ) -> Published:
        """Put the rows, in order, into their queues and move the lane's hand from ``from_`` to ``to``.

        ``since`` is kept beside the hand: what the store does not know of yet, these rows included.
        """

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        """The oldest messages of the shard's wheel queue; at least one, if there is one, whatever its size."""

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        """Remove exactly what was peeked. False, and nothing removed, if the queue's head is no longer that."""

    def decode(self, raw: bytes) -> Message | Unreadable:
        """Read one message in the form in which producers put it into the wheel queue."""

    def now_ms(self) -> int | None:
        """The broker's own clock, as a second opinion; None where it has none."""

    def close(self) -> None: ...
