"""The broker edge of Redis as a model: the same compare-and-set, in memory, with faults.

``RedisServer`` is the server: all that a crash of schedulers leaves alone, and that a crash of Redis may
set back (``lose``). ``ModelRedis`` is one scheduler's connection to it; ``fault`` is called before and after
every call and may raise: before it nothing was done, after it the answer is lost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from celery_wheel.engine.port import BrokerOffset, Peeked, Published, Since, Verdict
from celery_wheel.errors import Fenced, OffsetLost
from celery_wheel.store.model import Message, Position, Row, Unreadable


@dataclass
class Keys:
    """What is in Redis. Messages are shared between copies, lists and dicts are not."""

    wheel: list[Message | Unreadable] = field(default_factory=list)  #: oldest first
    queues: dict[str, list[int]] = field(default_factory=dict)  #: queue → row ids, oldest first
    epoch: int | None = None
    offsets: dict[int, BrokerOffset] = field(default_factory=dict)

    def copy(self) -> Keys:
        return Keys(
            self.wheel[:],
            {name: ids[:] for name, ids in self.queues.items()},
            self.epoch,
            {lane: copy.copy(offset) for lane, offset in self.offsets.items()},
        )


class RedisServer:
    def __init__(self, *, keeps_past: int = 0) -> None:
        self.keys = Keys()
        self.wrong_types: set[str] = set()  #: queues whose key is no list
        self._keeps_past = keeps_past
        self._past: list[Keys] = []

    def wrote(self) -> None:
        """Remember how it was before the write that is about to happen."""
        if self._keeps_past:
            self._past.append(self.keys.copy())
            del self._past[: -self._keeps_past]

    def lose(self, writes: int) -> tuple[Keys, Keys]:
        """Forget the last writes; returns what was there and what is there now."""
        before = self.keys
        # Losing the very first offset as well is a flush, not a rollback; that promise is not made.
        past = [keys for keys in self._past[-writes:] if keys.offsets]
        if past:
            self.keys = past[0]
            del self._past[-len(past) :]
        return before, self.keys


def no_fault(_point: str) -> None:
    return


class ModelRedis:
    keeps_offset = True
    check_epoch = True
    trim_by_content = True

    def __init__(
        self,
        server: RedisServer,
        now_ms: Callable[[], int],
        *,
        fault: Callable[[str], None] = no_fault,
        pushed: Callable[[Row, int], None] = lambda row, now_ms: None,
        refused: Callable[[int], None] = lambda row_id: None,
        trimmed: Callable[[Sequence[Message | Unreadable]], None] = lambda arrivals: None,
    ) -> None:
        self.server = server
        self._now_ms = now_ms
        self.fault = fault
        self._pushed = pushed
        self._refused = refused
        self._trimmed = trimmed

    def _fenced(self, epoch: int) -> bool:
        known = self.server.keys.epoch
        return self.check_epoch and known is not None and known > epoch

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        self.fault("before")
        if self._fenced(epoch):
            raise Fenced(f"epoch {self.server.keys.epoch} adopted after {epoch}")
        self.server.wrote()
        self.server.keys.epoch = epoch
        offsets = {
            lane: BrokerOffset(offset.offset, dict(offset.failed), offset.since)
            for lane, offset in self.server.keys.offsets.items()
        }
        self.fault("after")
        return offsets

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        self.fault("before")
        self._must_hold(epoch)
        self.server.wrote()
        self.server.keys.offsets[lane] = BrokerOffset(offset)
        self.fault("after")

    def _must_hold(self, epoch: int) -> None:
        if self._fenced(epoch):
            raise Fenced(f"epoch {self.server.keys.epoch} adopted after {epoch}")
        if self.check_epoch and self.server.keys.epoch != epoch:
            raise OffsetLost(f"epoch {epoch} is not known")

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
        self.fault("before")
        result = self._publish(epoch, BrokerOffset(to, since=since), lane, from_, rows, now_ms)
        self.fault("after")
        return result

    def _publish(
        self, epoch: int, new: BrokerOffset, lane: int, from_: Position, rows: Sequence[Row], now_ms: int
    ) -> Published:
        to = new.offset
        keys = self.server.keys
        if self._fenced(epoch):
            return Published(Verdict.FENCED)
        found = keys.offsets.get(lane)
        if found is None or (self.check_epoch and keys.epoch != epoch):
            return Published(Verdict.MISSING)
        if found.offset >= to:
            return Published(Verdict.ALREADY, dict(found.failed) if found.offset == to else {})
        if found.offset != from_:
            return Published(Verdict.ROLLED_BACK)
        self.server.wrote()
        failed: dict[int, str] = {}
        for row in rows:
            name = row.queue or row.routing_key
            if name in self.server.wrong_types:
                failed[row.id] = "WRONGTYPE"
                self._refused(row.id)
                continue
            keys.queues.setdefault(name, []).append(row.id)
            self._pushed(row, now_ms)
        keys.offsets[lane] = BrokerOffset(to, failed, new.since)
        return Published(Verdict.PUBLISHED, dict(failed))

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        self.fault("before")
        arrivals = self.server.keys.wheel[:max_count]
        return Peeked(arrivals, arrivals, len(self.server.keys.wheel) > max_count)

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        self.fault("before")
        self._must_hold(epoch)
        assert isinstance(token, list)
        wheel = self.server.keys.wheel
        head = wheel[: len(token)]
        same = len(head) == len(token) and all(a is b for a, b in zip(head, token, strict=True))
        if self.trim_by_content and not same:
            return False
        self.server.wrote()
        del self.server.keys.wheel[: len(token)]
        self._trimmed(head)
        self.fault("after")
        return True

    def leave(self, shard: int, epoch: int) -> None:
        return

    def decode(self, raw: bytes) -> Message | Unreadable:
        raise AssertionError("the simulation puts no raw messages into the inbox")

    def now_ms(self) -> int | None:
        self.fault("before")
        return self._now_ms()

    def close(self) -> None:
        return
