"""The model that the simulation takes for Redis, and Redis: the same calls, the same answers, the same queues.

The simulation's proofs about the engine hold for this edge only as far as the two agree.
"""

from collections.abc import Callable
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_wheel.broker.redis import RedisBroker
from celery_wheel.errors import WheelError
from celery_wheel.store.model import Unreadable
from tests.kit.chunks import NOW_MS, SHARD, at, make_chunk, make_row, number_in
from tests.kit.servers.redis import RedisServer
from tests.simulation.model_redis import Keys, ModelRedis
from tests.simulation.model_redis import RedisServer as ModelServer

BAD = "bad"
QUEUES = ["mail", "news", BAD]

epochs = st.integers(1, 3)
lanes = st.integers(0, 1)
numbers = st.integers(0, 12)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("adopt"), epochs),
        st.tuples(st.just("set_offset"), epochs, lanes, numbers),
        st.tuples(st.just("drop_lanes"), epochs, st.lists(lanes)),
        st.tuples(st.just("verify"), epochs, st.integers(0, 3)),
        st.tuples(st.just("publish"), epochs, lanes, numbers, st.integers(1, 4)),
        st.tuples(st.just("continue"), epochs, lanes, st.integers(1, 4)),
        st.tuples(st.just("produce"), st.integers(1, 3)),
        st.tuples(st.just("peek"), st.integers(1, 4)),
        st.tuples(st.just("trim"), epochs),
        st.tuples(st.just("flush")),
    ),
    max_size=40,
)


class Both:
    def __init__(self, client: redis.Redis, broker: RedisBroker) -> None:
        client.flushall()
        client.set(BAD, "no list")
        self.client = client
        self.server = ModelServer()
        self.server.wrong_types.add(BAD)
        self.pair = ModelRedis(self.server, lambda: NOW_MS), broker
        self.tokens: tuple[object, object] | None = None
        self.produced = 0
        self.chunks = 0

    def adopt(self, epoch: int) -> None:
        self._same(lambda broker: [(n, h.offset, set(h.failed)) for n, h in sorted(broker.adopt(SHARD, epoch).items())])

    def set_offset(self, epoch: int, lane: int, number: int) -> None:
        self._same(lambda broker: broker.set_offset(SHARD, epoch, lane, at(number)))

    def drop_lanes(self, epoch: int, dropped: list[int]) -> None:
        self._same(lambda broker: broker.drop_lanes(SHARD, epoch, dropped))

    def verify(self, epoch: int, confirmed: int) -> None:
        self._same(lambda broker: broker.verify(SHARD, epoch, confirmed))

    def publish(self, epoch: int, lane: int, number: int, count: int) -> None:
        rows = [make_row(n, routing_key=QUEUES[n % 3], queue=QUEUES[n % 3]) for n in range(number, number + count)]
        after, upto = max(0, number - 1), max(1, number + count - 1)
        self.chunks += 1
        chunk = make_chunk(after, upto, rows, epoch=epoch, lane=lane, number=self.chunks)

        def call(broker: Any) -> object:
            published = broker.publish(chunk)
            return published.result, set(published.failed)

        self._same(call)

    def go_on(self, epoch: int, lane: int, count: int) -> None:
        """Publish from the lane's offset, so that most sequences publish something."""
        found = self.server.keys.fence.offsets.get(lane)
        self.publish(epoch, lane, found.offset.seq + 1 if found else 1, count)

    def produce(self, count: int) -> None:
        for _ in range(count):
            self.produced += 1
            raw = str(self.produced).encode()
            self.server.keys.wheel.append(Unreadable("", "", raw))
            self.client.lpush(f"wheel.{SHARD}", raw)

    def peek(self, count: int) -> None:
        if self.server.keys.fence.epoch is None:
            return
        model, edge = (broker.peek(SHARD, count, 10_000) for broker in self.pair)
        assert [arrival.raw for arrival in model.arrivals] == [arrival.raw for arrival in edge.arrivals]
        self.tokens = model.token, edge.token

    def trim(self, epoch: int) -> None:
        # A peek at an empty queue has nothing to prove; the edge does not even call Redis.
        if self.tokens is not None and self.tokens[0]:
            token = dict(zip(map(id, self.pair), self.tokens, strict=True))
            self._same(lambda broker: broker.trim(SHARD, epoch, token[id(broker)]))

    def flush(self) -> None:
        self.server.keys = Keys()
        self.client.flushall()
        self.client.set(BAD, "no list")

    def _same(self, call: Callable[[Any], object]) -> None:
        answers = []
        for broker in self.pair:
            try:
                answers.append(call(broker))
            except WheelError as error:
                answers.append(type(error))
        assert answers[0] == answers[1]

    def compare_queues(self) -> None:
        for queue in QUEUES[:2]:
            pushed = [number_in(raw) for raw in reversed(self.client.lrange(queue, 0, -1))]
            assert pushed == self.server.keys.queues.get(queue, [])
        waiting = [arrival.raw for arrival in self.server.keys.wheel if isinstance(arrival, Unreadable)]
        assert waiting == self.client.lrange(f"wheel.{SHARD}", 0, -1)[::-1]


@settings(
    max_examples=150,
    deadline=None,
    # The server is emptied at the start of each example, not of each test.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=steps)
def test_the_model_and_redis_answer_alike(
    server: RedisServer, client: redis.Redis, broker: RedisBroker, calls: list[tuple[Any, ...]]
) -> None:
    both = Both(client, broker)
    for name, *arguments in calls:
        getattr(both, "go_on" if name == "continue" else name)(*arguments)
    both.compare_queues()
