"""What a FencingBroker keeps of one shard, in memory: the compare-and-set of a lane's offset, and the holder's epoch.

::

    owner    the store that the offsets are positions of
    epoch    the only one that may publish, trim or move an offset
    last     the number of its last chunk
    offsets  lane → offset, what of its last chunk failed, since
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from celery_wheel.engine.port import BrokerOffset, Chunk, Published, Verdict
from celery_wheel.errors import Fenced, OffsetLost, StoreConflict
from celery_wheel.store.model import Position


@dataclass(slots=True)
class Fence:
    owner: str | None = None
    epoch: int | None = None
    last: int = 0
    offsets: dict[int, BrokerOffset] = field(default_factory=dict)

    def copy(self) -> Fence:
        return replace(self, offsets=_copied(self.offsets))

    def adopt(self, epoch: int, owner: str) -> dict[int, BrokerOffset]:
        """As ``FencingBroker.adopt``; the first store that adopts owns the offsets."""
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

    def verify(self, epoch: int, confirmed: int) -> None:
        self.check(epoch)
        if self.last < confirmed:
            raise OffsetLost(f"the last chunk is {self.last}, and must be {confirmed} or a later one")

    def set_offset(self, epoch: int, lane: int, offset: Position) -> None:
        self.check(epoch)
        self.offsets[lane] = BrokerOffset(offset)

    def drop(self, epoch: int, lanes: Iterable[int]) -> None:
        self.check(epoch)
        for lane in lanes:
            self.offsets.pop(lane, None)

    def judge(self, chunk: Chunk) -> Published | None:
        """Return why a chunk must not be published; None where it must, and ``move`` is to follow."""
        if self.epoch is not None and self.epoch > chunk.epoch:
            return Published(Verdict.FENCED)
        found = self.offsets.get(chunk.lane)
        if found is None or self.epoch != chunk.epoch:
            return Published(Verdict.MISSING)
        if found.offset >= chunk.upto:
            return Published(Verdict.ALREADY, dict(found.failed) if found.offset == chunk.upto else {})
        return None if found.offset == chunk.after else Published(Verdict.ROLLED_BACK)

    def move(self, chunk: Chunk, failed: dict[int, str]) -> Published:
        self.last = max(self.last, chunk.number)
        self.offsets[chunk.lane] = BrokerOffset(chunk.upto, dict(failed), chunk.since)
        return Published(Verdict.PUBLISHED, failed)

    def _refuse_older(self, epoch: int) -> None:
        if self.epoch is not None and self.epoch > epoch:
            raise Fenced(f"epoch {self.epoch} was adopted after epoch {epoch}")


def _copied(offsets: dict[int, BrokerOffset]) -> dict[int, BrokerOffset]:
    return {lane: replace(offset, failed=dict(offset.failed)) for lane, offset in offsets.items()}
