"""Delivery: publish a chunk to each kind of broker, and find after a crash which rows are in doubt.

::

                          FencedDelivery                            ConfirmedDelivery
    prepare a chunk       nothing: the broker compares              the store learns the end of the chunk and checks the
                                                                    epoch; the lease must not be over
    no answer             the same chunk is published again         the same chunk is published again, as redelivered
    settle it             by a job of its own                       in the commit that prepares the next chunk: of two
                                                                    commits under way the later would move the offset
                                                                    back
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any

from celery_wheel.engine import port
from celery_wheel.engine.state.lane import InFlight, Lane
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.errors import Fenced, LeaseExpired, OffsetLost, PublishInterrupted
from celery_wheel.store.model import LaneState, Position
from celery_wheel.timing import Clock

#: Longest time in which a broker that pushes delivers a message of the wheel queue to its consumer.
TRANSIT_MS = 300


#: Makes a call of the broker by its name, together with those of other shards; see ``Context.ask``.
Ask = Callable[..., Generator[str, None, Any]]


class Delivery(ABC):
    """The methods of a broker that keeps no offsets; ``FencedDelivery`` has more to do."""

    prepares: bool  #: the store learns the end of each chunk before the chunk is published
    transit_ms: int  #: for this long a message may be under way to this process while its queue looks empty
    broker: port.Broker

    @abstractmethod
    def adopt(self, shard: int, epoch: int) -> dict[int, port.BrokerOffset] | None:
        """Make this epoch the broker's; returns its offsets by lane, None where the broker keeps none."""

    @abstractmethod
    def lane(self, found: LaneState) -> Lane:
        """Return a stored lane as a new holder begins with it."""

    def open_lane(self, state: ShardState, lane: Lane) -> bool:
        """Make the lane known to the broker before its first chunk; returns whether that took a call."""
        return False

    def drop_lanes(self, state: ShardState, lanes: Sequence[int]) -> None:  # noqa: B027 - nothing to forget
        """Let the broker forget closed lanes."""

    def verify(self, state: ShardState) -> None:  # noqa: B027 - no offset by which a loss could be seen
        """Raise OffsetLost where the broker has lost a chunk that it had confirmed."""

    def verified(self, states: Sequence[ShardState]) -> set[int]:
        """Verify several shards of the broker in one call; returns those that need no ``verify`` of their own."""
        return {one.shard for one in states}

    def together(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Make calls of the broker for several shards; see ``FencingBroker.together``."""
        return port.ask_each(calls)

    @abstractmethod
    def publish(
        self, state: ShardState, lane: Lane, flight: InFlight, now_ms: int, ask: Ask
    ) -> Generator[str, None, port.Confirmed]:
        """Publish the rows of a chunk that are not confirmed yet.

        Raises BrokerError where the answer is lost, LeaseExpired before any message is sent, Fenced and OffsetLost.
        """

    def _chunk(self, state: ShardState, lane: Lane, flight: InFlight, now_ms: int, *, checksum: bool) -> port.Chunk:
        state.attempted += 1
        flight.first_number = flight.first_number or state.attempted
        flight.settled = lane.offset
        return port.Chunk(
            state.shard,
            state.epoch,
            lane.number,
            state.attempted,
            state.confirmed,
            flight.after,
            flight.upto,
            flight.unconfirmed(),
            now_ms,
            lane.checksum(flight) if checksum else None,
            flight.redelivered or lane.redelivered,
            state.groups.queues_with_depth(flight.rows),
        )


class FencedDelivery(Delivery):
    prepares = False
    transit_ms = 0
    broker: port.FencingBroker

    def __init__(self, broker: port.FencingBroker) -> None:
        self.broker = broker

    def adopt(self, shard: int, epoch: int) -> dict[int, port.BrokerOffset] | None:
        return self.broker.adopt(shard, epoch)

    def lane(self, found: LaneState) -> Lane:
        return _adopted(found, found.offset)

    def open_lane(self, state: ShardState, lane: Lane) -> bool:
        if lane.in_broker:
            return False
        self.broker.set_offset(state.shard, state.epoch, lane.number, lane.offset)
        lane.in_broker = True
        return True

    def drop_lanes(self, state: ShardState, lanes: Sequence[int]) -> None:
        self.broker.drop_lanes(state.shard, state.epoch, lanes)

    def verify(self, state: ShardState) -> None:
        self.broker.verify(state.shard, state.epoch, state.confirmed, state.alone)

    def verified(self, states: Sequence[ShardState]) -> set[int]:
        last = [port.ConfirmedChunk(one.shard, one.epoch, one.confirmed, one.alone) for one in states]
        return self.broker.verified(last)

    def together(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return self.broker.together(calls)

    def publish(
        self, state: ShardState, lane: Lane, flight: InFlight, now_ms: int, ask: Ask
    ) -> Generator[str, None, port.Confirmed]:
        with state.active():
            chunk = self._chunk(state, lane, flight, now_ms, checksum=True)
        published: port.Published = yield from ask("publish", chunk)
        if published.result is port.PublishResult.FENCED:
            raise Fenced(
                f"another holder adopted shard {state.shard} in the broker; this process publishes nothing more from it"
            )
        if published.result in (port.PublishResult.ROLLED_BACK, port.PublishResult.MISSING):
            raise OffsetLost(f"the broker's offset of lane {lane.number} is {published.result.value}")
        # A chunk that the broker has ALREADY came with an earlier try, at least with the first.
        certain = chunk.number if published.result is port.PublishResult.PUBLISHED else flight.first_number
        state.confirmed = max(state.confirmed, certain)
        return port.Confirmed(published.failed, ready=published.ready)


class ConfirmedDelivery(Delivery):
    prepares = True
    transit_ms = TRANSIT_MS
    broker: port.ConfirmingBroker

    def __init__(self, broker: port.ConfirmingBroker, clock: Clock) -> None:
        self.broker = broker
        self._clock = clock

    def adopt(self, shard: int, epoch: int) -> dict[int, port.BrokerOffset] | None:
        self.broker.adopt(shard, epoch)
        return None

    def lane(self, found: LaneState) -> Lane:
        lane = _adopted(found, found.watermark)
        lane.in_doubt_after, lane.in_doubt_upto = found.offset, found.watermark
        return lane

    def publish(
        self, state: ShardState, lane: Lane, flight: InFlight, now_ms: int, ask: Ask
    ) -> Generator[str, None, port.Confirmed]:
        yield from ()  # each message is confirmed: no call is shared
        may_send = self._may_send(state)
        if not may_send():
            # The process was suspended, or the store was silent for the time of a lease. This broker has no fence.
            raise LeaseExpired(f"the lease of shard {state.shard} is over or about to end; nothing is published now")
        with state.active():
            chunk = self._chunk(state, lane, flight, now_ms, checksum=False)
        try:
            return self.broker.publish(chunk, may_send)
        except PublishInterrupted as error:
            flight.done |= error.confirmed
            flight.redelivered = True
            raise

    def _may_send(self, state: ShardState) -> Callable[[], bool]:
        return lambda: state.is_held(self._clock.monotonic_ms())


def _adopted(found: LaneState, watermark: Position) -> Lane:
    place = None if found.target is None else (found.scope, found.target)
    return Lane(
        found.lane,
        found.offset,
        watermark,
        watermark,
        place=place,
        redelivered=found.redelivered,
        in_store=True,
        in_broker=True,
        checksum_after=found.offset,
    )


def delivery_to(broker: port.Broker, clock: Clock) -> Delivery:
    """Return the delivery for a broker's kind."""
    return FencedDelivery(broker) if broker.fences else ConfirmedDelivery(broker, clock)
