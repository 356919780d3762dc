"""A FencingBroker's memory for one shard: the compare-and-set of offsets, the holder's epoch, and the wheel queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice

from celery_wheel.engine.port import BrokerOffset, Chunk, Peeked, Published, PublishResult
from celery_wheel.errors import Fenced, OffsetLost, StoreConflict
from celery_wheel.store.model import Message, Position, Unreadable


@dataclass(slots=True)
class Fence:
    """The offsets of one shard; refuses older epochs and other stores."""

    owner: str | None = None
    epoch: int | None = None
    last: int = 0
    accepted: int = 0
    offsets: dict[int, BrokerOffset] = field(default_factory=dict)

    def copy(self) -> Fence:
        return replace(self, offsets=_copied(self.offsets))

    def adopt(self, epoch: int, owner: str) -> dict[int, BrokerOffset]:
        """Adopt the shard as ``FencingBroker.adopt`` does; the first store that adopts owns the offsets."""
        if self.owner not in (None, owner):
            raise StoreConflict(f"the offsets are those of store {self.owner}, not of {owner}")
        self._refuse_older(epoch)
        if epoch != self.epoch:
            self.last = 0
        self.owner, self.epoch = owner, epoch
        return _copied(self.offsets)

    def check(self, epoch: int) -> None:
        """Raise Fenced or OffsetLost unless this epoch is the adopted one."""
        self._refuse_older(epoch)
        if epoch != self.epoch:
            raise OffsetLost(f"epoch {epoch} is not known, epoch {self.epoch} is")

    def verify(self, epoch: int, confirmed: int, accepted: int = 0) -> None:
        self.check(epoch)
        if self.last < confirmed:
            raise OffsetLost(f"the last chunk is {self.last}, and must be {confirmed} or a later one")
        self.note(accepted)

    def note(self, accepted: int) -> None:
        self.accepted = max(self.accepted, accepted)

    def set_accepted(self, epoch: int, accepted: int) -> None:
        self.check(epoch)
        self.accepted = accepted

    def set_offset(self, epoch: int, lane: int, offset: Position) -> None:
        self.check(epoch)
        self.offsets[lane] = BrokerOffset(offset)

    def drop(self, epoch: int, lanes: Iterable[int]) -> None:
        self.check(epoch)
        for lane in lanes:
            self.offsets.pop(lane, None)

    def check_chunk(self, chunk: Chunk) -> Published | None:
        """Return the answer to a chunk that must not be published; None for one that must, before ``move``."""
        if self.epoch is not None and self.epoch > chunk.epoch:
            return Published(PublishResult.FENCED)
        found = self.offsets.get(chunk.lane)
        if found is None or self.epoch != chunk.epoch or self.last < chunk.confirmed:
            return Published(PublishResult.MISSING)
        if found.offset >= chunk.upto:
            return Published(PublishResult.ALREADY, dict(found.failed) if found.offset == chunk.upto else {})
        return None if found.offset == chunk.after else Published(PublishResult.ROLLED_BACK)

    def move(self, chunk: Chunk, failed: dict[int, str], ready: dict[str, int]) -> Published:
        self.last = max(self.last, chunk.number)
        self.offsets[chunk.lane] = BrokerOffset(chunk.upto, dict(failed), chunk.checksum)
        return Published(PublishResult.PUBLISHED, failed, ready)

    def _refuse_older(self, epoch: int) -> None:
        if self.epoch is not None and self.epoch > epoch:
            raise Fenced(f"epoch {self.epoch} was adopted after epoch {epoch}")


def _copied(offsets: dict[int, BrokerOffset]) -> dict[int, BrokerOffset]:
    return {lane: replace(offset, failed=dict(offset.failed)) for lane, offset in offsets.items()}


Arrivals = Sequence[Message | Unreadable]


def peek_arrivals(arrivals: Arrivals, max_count: int, max_bytes: int) -> Peeked:
    """Return copies of the first messages within the bounds, at least one; the token is the messages themselves."""
    found: list[Message | Unreadable] = []
    weight = 0
    for arrival in arrivals:
        weight += len(arrival.body if isinstance(arrival, Message) else arrival.raw)
        if found and (len(found) >= max_count or weight > max_bytes):
            break
        found.append(arrival)
    return Peeked([copy(one) for one in found], found, len(found) < len(arrivals))


def is_head(token: Arrivals, arrivals: Arrivals) -> bool:
    """Whether the queue still begins with exactly these messages."""
    head = list(islice(arrivals, len(token)))
    return len(head) == len(token) and all(a is b for a, b in zip(head, token, strict=True))
