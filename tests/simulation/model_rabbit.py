"""The broker edge of RabbitMQ as a model: a queue with acknowledgements, and confirms message by message.

``RabbitServer`` survives a crash of schedulers. ``ModelRabbit`` is one scheduler's connections: deliveries that it has
not acknowledged go back to the head of the queue when it leaves, dies, or misses its heartbeats (``cut_off``).

The model calls ``dies`` before each message of a chunk; the connection ends there if it returns True. Messages written
before that are in their queues, and ``confirmed`` chooses the messages whose confirm the client has received. It calls
``lags`` for the next message of the wheel queue: if True, that message is still under way to the consumer, for at most
MAX_LAG_MS after it was sent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from celery_wheel.engine.delivery import TRANSIT_MS
from celery_wheel.engine.port import Chunk, Confirmed, Peeked
from celery_wheel.errors import BrokerError, PublishInterrupted
from celery_wheel.store.model import Message, Row, Unreadable
from celery_wheel.testing.fence import is_head, peek_arrivals
from tests.simulation.model_redis import ModelBroker
from tests.simulation.model_store import no_fault, unseen

#: Below ``delivery.TRANSIT_MS``, which the engine allows for.
MAX_LAG_MS = TRANSIT_MS - 50


@dataclass
class RabbitServer:
    wheel: list[Message | Unreadable] = field(default_factory=list)  #: oldest first
    unacked: dict[int, list[Message | Unreadable]] = field(default_factory=dict)  #: by channel
    queues: dict[str, list[int]] = field(default_factory=dict)  #: queue → row ids, oldest first
    full: set[str] = field(default_factory=set)  #: queues that refuse
    missing: set[str] = field(default_factory=set)  #: missing queues
    channels: int = 0
    seen: Callable[..., None] = unseen  #: called with each row that is sent or refused

    def open(self) -> int:
        self.channels += 1
        self.unacked[self.channels] = []
        return self.channels

    def close(self, channel: int | None) -> None:
        """Requeue the deliveries that the channel has not acknowledged, at the head."""
        self.wheel[:0] = self.unacked.pop(channel, []) if channel is not None else []


class ModelRabbit(ModelBroker):
    prefetch = 8
    fences: Literal[False] = False

    def __init__(
        self,
        server: RabbitServer,
        now_ms: Callable[[], int],
        *,
        fault: Callable[[str], None] = no_fault,
        dies: Callable[[], bool] = lambda: False,
        lags: Callable[[], bool] = lambda: False,
        confirmed: Callable[[list[int]], set[int]] = set,
        pushed: Callable[[Row, int, bool], None] = lambda row, now_ms, redelivered: None,
        refused: Callable[[int], None] = lambda row_id: None,
        trimmed: Callable[[Sequence[Message | Unreadable]], None] = lambda arrivals: None,
    ) -> None:
        super().__init__(now_ms, fault, refused, trimmed)
        self.server = server
        self._dies, self._lags, self._confirmed, self._pushed = dies, lags, confirmed, pushed
        self._channel: int | None = None

    def wheel(self) -> list[Message | Unreadable]:
        return self.server.wheel

    def queues(self) -> dict[str, list[int]]:
        return self.server.queues

    def adopt(self, shard: int, epoch: int) -> None:
        self.close()
        self.fault("before")
        self._channel = self.server.open()
        self._epoch = epoch

    def close(self) -> None:
        self.server.close(self._channel)
        self._channel = self._epoch = None

    def cut_off(self) -> None:
        """Close the connection at the server, which has received no heartbeat."""
        self.server.close(self._channel)

    def publish(self, chunk: Chunk, may_send: Callable[[], bool]) -> Confirmed:
        self.fault("before")
        answer = Confirmed()
        written: list[int] = []
        for row in chunk.rows:
            if not may_send():
                raise PublishInterrupted("simulated, the shard was given up", self._confirmed(written))
            if self._dies():
                if not written:
                    raise BrokerError("simulated, before the first message")
                raise PublishInterrupted("simulated, in a chunk", self._confirmed(written))
            name = row.route.target
            if name in self.server.missing:
                answer.failed[row.id] = "NO_ROUTE"
                self.server.seen("refused", row)
                self._refused(row.id)
            elif name in self.server.full:
                answer.refused[row.id] = "rejected by its queue"
                self.server.seen("refused", row)
            else:
                self.server.queues.setdefault(name, []).append(row.id)
                written.append(row.id)
                self.server.seen("sent", chunk, row)
                self._pushed(row, chunk.now_ms, chunk.redelivered)
        return answer

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        self.fault("before")
        if self._epoch is None:
            raise BrokerError("simulated, peek after leave")
        held = self._deliver()
        found = peek_arrivals(held, max_count, max_bytes)
        found.more |= len(held) == self.prefetch
        found.token = self._channel, found.token
        return found

    def _deliver(self) -> list[Message | Unreadable]:
        """Return the deliveries of this connection, a new one if there is none, with those that have arrived now."""
        unacked = self.server.unacked
        if self._channel not in unacked:
            self._channel = self.server.open()
        held, room = unacked[self._channel], self.prefetch - len(unacked[self._channel])
        while room > 0 and self.server.wheel and not self._is_under_way(self.server.wheel[0]):
            held.append(self.server.wheel.pop(0))
            room -= 1
        return held

    def _is_under_way(self, message: Message | Unreadable) -> bool:
        recent = isinstance(message, Message) and self._now_ms() - message.created_ms < MAX_LAG_MS
        return recent and self._lags()

    def trim(self, shard: int, epoch: int, token: object, accepted: int = 0) -> bool:
        self.fault("before")
        channel, arrivals = token  # type: ignore[misc]
        held = self.server.unacked.get(channel, [])
        if channel != self._channel or not is_head(arrivals, held):
            return False
        del held[: len(arrivals)]
        self._trimmed(arrivals)
        self.fault("after")
        return True

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        """Return at once: no time passes within a step of the simulation."""
        self.fault("listening")
        return self._epoch is not None and bool(self._deliver())

    def now_ms(self) -> int | None:
        """RabbitMQ has no clock; the store's stands in for it, as on PostgreSQL."""
        self.fault("before")
        return None
