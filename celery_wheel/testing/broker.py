"""The engine's broker edge for tests: the wheel queue is a list, and what leaves goes out by the app's own connection.

``Outgoing`` is that of any kombu transport, so a task without a route is rejected here as it is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from kombu.utils import json

from celery_wheel.broker.envelope import decode
from celery_wheel.broker.virtual.outgoing import Outgoing
from celery_wheel.conf import Conf
from celery_wheel.engine.port import BrokerOffset, Peeked, Published, Since
from celery_wheel.store.model import Message, Position, Row, Unreadable

_dumps: Any = json.dumps
_loads: Any = json.loads


class MemoryBroker:
    """Implements ``engine.port.Broker`` for one shard and one holder, who is never fenced.

    Args:
        rejected: is told of each message that cannot be taken in or sent: its headers, and why.
    """

    keeps_offset = True

    def __init__(self, app: Any, rejected: Callable[[dict[str, Any], str], None]) -> None:
        self._conf = Conf(app)
        self._outgoing = Outgoing(app)
        self._rejected = rejected
        self._hands: dict[int, BrokerOffset] = {}
        self.arrivals: deque[Message | Unreadable] = deque()
        self.sent: list[Row] = []  #: what was published, until somebody clears it

    def arrive(self, raw: dict[str, Any]) -> None:
        """A message that a producer put into the wheel queue."""
        arrival = self.decode(_dumps(raw).encode())
        if isinstance(arrival, Unreadable):
            self._rejected(raw["headers"], arrival.reason)
        else:
            self.arrivals.append(arrival)

    # -- the shard ---------------------------------------------------------------------------------

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        return dict(self._hands)

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        self._hands[lane] = BrokerOffset(offset)

    def leave(self, shard: int, epoch: int) -> None:
        """Nothing to give back: what was peeked is still there."""

    def now_ms(self) -> int | None:
        return None

    def close(self) -> None:
        self._outgoing.close()

    # -- messages ----------------------------------------------------------------------------------

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        found = list(self.arrivals)[:max_count]
        return Peeked(found, len(found), len(found) < len(self.arrivals))

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        for _ in range(cast(int, token)):
            self.arrivals.popleft()
        return True

    def decode(self, raw: bytes) -> Message | Unreadable:
        return decode(raw, self._conf.max_message_bytes, self._conf.keep_eta)

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
        published = self._outgoing.publish(rows, now_ms, redelivered)
        self.sent += rows
        self._hands[lane] = BrokerOffset(to, dict(published.failed), since)
        for row in rows:
            if row.id in published.failed:
                self._rejected(_loads(row.headers), published.failed[row.id])
        return published
