"""The engine's broker edge for tests: the wheel queue is a list; the app's own connection publishes messages.

``KombuPublisher`` serves all kombu transports, so a task without a route is rejected in tests as in production.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from kombu.utils import json

from celery_wheel.broker.errors import not_adopted
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.virtual import KombuPublisher
from celery_wheel.conf import Conf
from celery_wheel.engine.port import BrokerOffset, Chunk, ConfirmedChunk, Peeked, Published
from celery_wheel.store.model import Message, Position, Row, Unreadable
from celery_wheel.testing.fence import Fence
from celery_wheel.testing.memory_queue import is_head, peek_arrivals

_dumps: Any = json.dumps
_loads: Any = json.loads

#: The only store that ever adopts.
OWNER = "the test's store"


class MemoryBroker:
    """Implements ``FencingBroker`` for one shard.

    Args:
        rejected: called for each message that cannot be accepted or dispatched, with its headers and the reason.
    """

    def __init__(self, app: Any, rejected: Callable[[dict[str, Any], str], None]) -> None:
        conf = Conf(app)
        self._reader = QueuedMessageReader(conf.namespace, conf.max_message_bytes, conf.keep_eta)
        self._outgoing = KombuPublisher(app)
        self._rejected = rejected
        self._fence = Fence()
        self._epoch: int | None = None  #: None after ``leave``
        self.arrivals: deque[Message | Unreadable] = deque()
        self.sent: list[Row] = []  #: rows published since the list was last cleared

    @property
    def fences(self) -> Literal[True]:
        return True

    def arrive(self, raw: dict[str, Any]) -> None:
        """Put a message into the wheel queue, as a producer does."""
        arrival = self.decode(_dumps(raw).encode())
        if isinstance(arrival, Unreadable):
            self._rejected(raw["headers"], arrival.reason)
        else:
            self.arrivals.append(arrival)

    # -- the offsets -------------------------------------------------------------------------------

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        found = self._fence.adopt(epoch, OWNER)
        self._epoch = epoch
        return found

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        self._fence.set_offset(epoch, lane, offset)

    def drop_lanes(self, shard: int, epoch: int, lanes: Sequence[int]) -> None:
        self._fence.drop(epoch, lanes)

    def verify(self, shard: int, epoch: int, confirmed: int) -> None:
        self._fence.verify(epoch, confirmed)

    def verified(self, chunks: Sequence[ConfirmedChunk]) -> set[int]:
        """Leave the shard to ``verify``: there is no other to share a call with."""
        return set()

    def publish(self, chunk: Chunk) -> Published:
        refused = self._fence.check_chunk(chunk)
        if refused is not None:
            return refused
        answer = self._outgoing.publish(chunk.rows, chunk.now_ms, chunk.redelivered, lambda: True)
        failed = {**answer.failed, **answer.refused}  # a FencingBroker refuses nothing
        self.sent += chunk.rows
        for row in chunk.rows:
            if row.id in failed:
                self._rejected(_loads(row.parts().headers), failed[row.id])
        return self._fence.move(chunk, failed)

    # -- the wheel queue ---------------------------------------------------------------------------

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        if self._epoch is None:
            raise not_adopted(shard)
        return peek_arrivals(self.arrivals, max_count, max_bytes)

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        self._fence.check(epoch)
        arrivals = cast(Sequence[Message | Unreadable], token)
        if self._epoch is None or not is_head(arrivals, self.arrivals):
            return False
        for _ in arrivals:
            self.arrivals.popleft()
        return True

    def leave(self, shard: int, epoch: int) -> None:
        if self._epoch is not None and epoch >= self._epoch:
            self._epoch = None

    @property
    def can_wait(self) -> bool:
        """Return False: a call that waited would wait for the thread of the test, which makes it."""
        return False

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        return False

    def depth(self, shard: int) -> int:
        return len(self.arrivals)

    def oldest(self, shard: int) -> Message | Unreadable | None:
        return self.arrivals[0] if self.arrivals else None

    def decode(self, raw: bytes) -> Message | Unreadable:
        return self._reader.decode(raw)

    # -- the server --------------------------------------------------------------------------------

    def now_ms(self) -> int | None:
        return None

    def close(self) -> None:
        self._outgoing.close()
