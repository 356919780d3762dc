"""Many chunks while the server dies, hangs or is shared: each message is in its queue once, and in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import redis

from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import PublishResult
from celery_wheel.errors import BrokerError
from celery_wheel.store.model import ORIGIN
from tests.integration.redis_edge.rows import EPOCH, SHARD, adopted, at, make_row, number_of, publish_rows
from tests.kit.patience import patience
from tests.kit.servers.redis import RedisServer

CHUNKS = 200
SIZE = 20


def publish_all(
    broker: RedisBroker,
    lane: int,
    queue: str,
    done: Callable[[int], None] = lambda chunk: None,
    doubted: Callable[[], None] = lambda: None,
) -> int:
    """Publish CHUNKS chunks of SIZE rows, each until it is confirmed; returns how often a chunk was in doubt."""
    doubts = 0
    for chunk in range(CHUNKS):
        first = chunk * SIZE + 1
        rows = [make_row(n, routing_key=queue, queue=queue) for n in range(first, first + SIZE)]
        from_ = at(first - 1) if chunk else ORIGIN
        while True:
            try:
                verdict = publish_rows(broker, from_, at(first + SIZE - 1), rows, lane=lane).result
            except BrokerError:
                doubts += 1
                doubted()
                continue
            assert verdict in (PublishResult.PUBLISHED, PublishResult.ALREADY)
            break
        done(chunk)
    return doubts


def pushed(client: redis.Redis, queue: str) -> list[int]:
    return [number_of(raw) for raw in reversed(client.lrange(queue, 0, -1))]


def test_each_message_is_published_once_while_the_server_is_killed_again_and_again(
    binary: Path, tmp_path: Path, connect: Callable[..., RedisBroker]
) -> None:
    with RedisServer(tmp_path, binary, appendonly="yes", appendfsync="always") as server:
        broker = adopted(connect(server, transport_options={"socket_timeout": patience(1)}))
        reached, killed = ([threading.Event() for _ in range(5)] for _ in range(2))
        doubted = threading.Event()

        def killer() -> None:
            for at, gone in zip(reached, killed, strict=True):
                assert at.wait(patience())
                doubted.clear()
                server.kill()
                gone.set()
                assert doubted.wait(patience()), "a chunk met the server that is gone"
                server.start()

        def done(chunk: int) -> None:
            """Let the killer strike while the next chunks are published, and before they are all published."""
            kill, after = divmod(chunk - 29, 30)
            if kill in range(5) and not after:
                reached[kill].set()
            elif kill in range(5) and after == 20:
                assert killed[kill].wait(patience())

        with ThreadPoolExecutor() as pool:
            killing = pool.submit(killer)
            doubts = publish_all(broker, 0, "mail", done, doubted.set)
            killing.result(patience())
        assert doubts >= 5
        assert pushed(server.client(), "mail") == list(range(1, CHUNKS * SIZE + 1))


def test_each_message_is_published_once_while_several_threads_use_one_broker(
    broker: RedisBroker, client: redis.Redis
) -> None:
    arrived = [str(n).encode() for n in range(500)]
    client.lpush(f"wheel.{SHARD}", *arrived)
    adopted(broker, 0, 1, 2)

    def accept_all() -> int:
        taken = 0
        while (peeked := broker.peek(SHARD, 7, 1_000)).arrivals:
            assert broker.trim(SHARD, EPOCH, peeked.token)
            taken += len(peeked.arrivals)
        return taken

    with ThreadPoolExecutor() as pool:
        publishing = [pool.submit(publish_all, broker, lane, f"q{lane}") for lane in range(3)]
        assert pool.submit(accept_all).result(patience()) == len(arrived)
        assert [future.result(patience()) for future in publishing] == [0, 0, 0]
    for lane in range(3):
        assert pushed(client, f"q{lane}") == list(range(1, CHUNKS * SIZE + 1))
