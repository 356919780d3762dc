"""The broker edge of Redis as a model: the same compare-and-set, in memory, with faults.

``RedisServer`` is the server: it survives a crash of schedulers, and a crash of Redis may set it back (``lose``).
``ModelRedis`` is one scheduler's connection to it. The model calls ``fault`` before and after every call, and ``fault``
may raise: before the call, it has no effect; after it, the answer is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from celery_wheel.engine.port import BrokerOffset, Chunk, ConfirmedChunk, Peeked, Published, ask_each
from celery_wheel.errors import BrokerError, Fenced, OffsetLost
from celery_wheel.store.model import Message, Position, Row, Unreadable
from celery_wheel.testing.fence import Fence, is_head, peek_arrivals
from tests.simulation.model_store import no_fault, unseen


@dataclass
class Keys:
    """The contents of Redis. Messages are shared between copies, lists and dicts are not."""

    wheel: list[Message | Unreadable] = field(default_factory=list)  #: oldest first
    queues: dict[str, list[int]] = field(default_factory=dict)  #: queue → row ids, oldest first
    fence: Fence = field(default_factory=Fence)

    def copy(self) -> Keys:
        return Keys(self.wheel[:], {name: ids[:] for name, ids in self.queues.items()}, self.fence.copy())


class RedisServer:
    def __init__(self, *, keeps_past: int = 0) -> None:
        self.keys = Keys()
        self.wrong_types: set[str] = set()  #: queues whose key is not a list
        self.seen: Callable[..., None] = unseen  #: called with each call that has an effect, or an answer
        self._keeps_past = keeps_past
        self._past: list[Keys] = []

    def wrote(self) -> None:
        """Keep a copy of the contents before a write, so that ``lose`` can go back to it."""
        if self._keeps_past:
            self._past.append(self.keys.copy())
            del self._past[: -self._keeps_past]

    def lose(self, writes: int) -> tuple[Keys, Keys]:
        before = self.keys
        past = self._past[-writes:]
        if past:
            self.keys = past[0]
            del self._past[-len(past) :]
        return before, self.keys

    def flush(self) -> tuple[Keys, Keys]:
        before, self.keys = self.keys, Keys()
        self._past.clear()
        return before, self.keys


class ModelBroker:
    """The models of both edges share their oracles, and the view of the wheel queue."""

    can_wait = True

    def __init__(
        self,
        now_ms: Callable[[], int],
        fault: Callable[[str], None],
        refused: Callable[[int], None],
        trimmed: Callable[[Sequence[Message | Unreadable]], None],
    ) -> None:
        self.fault = fault
        self._now_ms, self._refused, self._trimmed = now_ms, refused, trimmed
        self._epoch: int | None = None  #: the epoch adopted through this connection, until ``leave``

    def wheel(self) -> list[Message | Unreadable]:
        raise NotImplementedError

    def close(self) -> None:
        self._epoch = None

    def keep_alive(self) -> None: ...

    def leave(self, shard: int, epoch: int) -> None:
        if self._epoch is not None and epoch >= self._epoch:
            self.close()

    def depth(self, shard: int) -> int:
        return len(self.wheel())

    def queues(self) -> dict[str, list[int]]:
        raise NotImplementedError

    def ready(self, queues: Sequence[str]) -> dict[str, int]:
        self.fault("before")
        return self._ready(queues)

    def _ready(self, queues: Sequence[str]) -> dict[str, int]:
        return {queue: len(self.queues().get(queue, [])) for queue in queues}

    def oldest(self, shard: int) -> Message | Unreadable | None:
        return next(iter(self.wheel()), None)

    def decode(self, raw: bytes) -> Message | Unreadable:
        raise AssertionError("the simulation puts no raw messages into the inbox")


class ModelRedis(ModelBroker):
    check_epoch = True
    trim_by_content = True
    fences: Literal[True] = True

    def __init__(
        self,
        server: RedisServer,
        now_ms: Callable[[], int],
        *,
        store: str = "the store",
        fault: Callable[[str], None] = no_fault,
        pushed: Callable[[Row, int], None] = lambda row, now_ms: None,
        refused: Callable[[int], None] = lambda row_id: None,
        trimmed: Callable[[Sequence[Message | Unreadable]], None] = lambda arrivals: None,
    ) -> None:
        super().__init__(now_ms, fault, refused, trimmed)
        self.server = server
        self._store, self._pushed = store, pushed

    def queues(self) -> dict[str, list[int]]:
        return self.server.keys.queues

    def wheel(self) -> list[Message | Unreadable]:
        return self.server.keys.wheel

    @contextmanager
    def _call(self) -> Iterator[Fence]:
        self.fault("before")
        yield self.server.keys.fence
        self.fault("after")

    def _shown(self, epoch: int) -> int:
        """Return the epoch that the server sees; a server that checks none sees its own in each call."""
        return epoch if self.check_epoch else self.server.keys.fence.epoch or epoch

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        with self._call() as fence:
            shown = max(epoch, self._shown(epoch))
            fence.copy().adopt(shown, self._store)  # the check raises before anything is written
            self.server.wrote()
            offsets = fence.adopt(shown, self._store)
            self.server.seen("adopted", epoch)
        self._epoch = epoch
        return offsets

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        with self._call() as fence:
            fence.check(self._shown(epoch))
            self.server.wrote()
            fence.set_offset(self._shown(epoch), lane, offset)
            self.server.seen("offset set", epoch, lane, offset)

    def drop_lanes(self, shard: int, epoch: int, lanes: Sequence[int]) -> None:
        with self._call() as fence:
            fence.check(self._shown(epoch))
            self.server.wrote()
            fence.drop(self._shown(epoch), lanes)
            self.server.seen("dropped", epoch, lanes)

    def verify(self, shard: int, epoch: int, confirmed: int, accepted: int = 0) -> None:
        with self._call() as fence:
            fence.verify(self._shown(epoch), confirmed, accepted)

    def accepted(self, shard: int) -> int:
        return self.server.keys.fence.accepted

    def set_accepted(self, shard: int, epoch: int, accepted: int) -> None:
        self.server.keys.fence.set_accepted(self._shown(epoch), accepted)

    def verified(self, chunks: Sequence[ConfirmedChunk]) -> set[int]:
        found = set()
        for shard, epoch, confirmed, accepted in chunks:
            with suppress(Fenced, OffsetLost):
                self.verify(shard, epoch, confirmed, accepted)
                found.add(shard)
        return found

    together = staticmethod(ask_each)

    def publish(self, chunk: Chunk) -> Published:
        with self._call() as fence:
            return self._publish(fence, chunk)

    def _publish(self, fence: Fence, chunk: Chunk) -> Published:
        refused = fence.check_chunk(chunk)
        if refused is not None:
            self.server.seen("published", chunk, refused)
            return refused
        self.server.wrote()
        failed: dict[int, str] = {}
        for row in chunk.rows:
            name = row.route.queue or row.route.routing_key
            if name in self.server.wrong_types:
                failed[row.id] = "WRONGTYPE"
                self._refused(row.id)
                continue
            self.server.keys.queues.setdefault(name, []).append(row.id)
            self._pushed(row, chunk.now_ms)
        published = fence.move(chunk, failed, self._ready(chunk.queues))
        self.server.seen("published", chunk, published)
        return published

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        self.fault("before")
        if self._epoch is None:
            raise BrokerError("simulated, peek after leave")
        return peek_arrivals(self.server.keys.wheel, max_count, max_bytes)

    def trim(self, shard: int, epoch: int, token: object, accepted: int = 0) -> bool:
        if self._epoch is None:
            return False
        with self._call() as fence:
            fence.check(self._shown(epoch))
            assert isinstance(token, list)
            wheel = self.server.keys.wheel
            if self.trim_by_content and not is_head(token, wheel):
                return False
            self.server.wrote()
            fence.note(accepted)
            head = wheel[: len(token)]
            del self.server.keys.wheel[: len(token)]
            self._trimmed(head)
            return True

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        """Return at once: no time passes within a step of the simulation."""
        self.fault("listening")
        return self._epoch is not None and bool(self.server.keys.wheel)

    def now_ms(self) -> int | None:
        self.fault("before")
        return self._now_ms()
