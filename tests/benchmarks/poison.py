"""Good tasks behind messages that are far too large: how long they wait, and the memory of the scheduler.

::

    wheel queue     20 messages of 100 MB │ 20 of 8 MB of small values in headers │ none; then 1,000 tasks, due at once
    from            the adoption of the shard by a real ``celery beat``
    until           each of the 1,000 is in its queue

RabbitMQ takes no headers above a frame, 128 KiB, and such a message is accepted. The store keeps the beginning of a
message of 100 MB, and the whole of one of 8 MB. The memory is that of the process, as the kernel counts it.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from celery_wheel.broker.transport import broker_for
from celery_wheel.conf import Conf
from celery_wheel.store import open_store
from tests.benchmarks.figure import Figure
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

GOOD, POISONED = 1_000, 20
MESSAGE_BYTES = 100_000_000

#: Seconds between two counts of the queue.
LOOK_S = 0.005


def run(folder: Path, rows: int) -> Iterator[Figure]:
    with RedisServer(folder / "redis", proto_max_bulk_len="1gb", client_query_buffer_limit="1gb") as redis:
        client = redis.client()
        for name, poison in poisons(body_bytes=MESSAGE_BYTES * 3 // 4, values=600_000).items():
            client.flushall()
            yield from _figures(f"Redis, {name}", Stack(folder / f"redis {name}", redis), poison)
    with RabbitServer(folder / "rabbit", max_message_size=2 * MESSAGE_BYTES) as rabbit:
        for name, poison in poisons(body_bytes=MESSAGE_BYTES, values=4_000).items():
            yield from _figures(f"RabbitMQ, {name}", Stack(folder / f"rabbit {name}", rabbit.fresh()), poison)


def poisons(body_bytes: int, values: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the options of calls; the text of a body is a third larger as base64, which kombu writes to Redis."""
    return {
        "no poison": dict,
        "large bodies": lambda: {"args": ("x" * body_bytes,)},
        "nested headers": lambda: {"headers": {"x": [{"a": [{}]}] * values}},
    }


def _figures(name: str, stack: Stack, poison: Callable[[], dict[str, Any]]) -> Iterator[Figure]:
    with stack:
        if options := poison():
            stack.app.conf.wheel_max_message_bytes = 10 * MESSAGE_BYTES  # a producer with other settings
            for _ in range(POISONED):
                stack.app.send_task("note", countdown=3_600, **options)
            del options
        with stack.app.connection_for_write() as connection:
            stack.app.amqp.queues["celery"](connection.default_channel).declare()
        for number in range(GOOD):
            stack.app.send_task("note", (number,), countdown=1)
        time.sleep(1)
        beat = stack.beat(wheel_max_message_bytes=8 * 2**20)
        beat.wait_for("at epoch")
        waits = list(_arrivals(stack, time.monotonic()))
        yield Figure("poison", f"{name}: wait of a good task, p50", statistics.median(waits), "s", less_is_better=True)
        yield Figure("poison", "… longest", max(waits), "s", less_is_better=True)
        peak, now = beat.memory()
        yield Figure("poison", "… memory of the scheduler, peak", peak / 1e6, "MB", less_is_better=True)
        yield Figure("poison", "… memory afterwards", now / 1e6, "MB", less_is_better=True)
        yield Figure("poison", "… bytes kept of a rejected message", max(map(len, kept(stack)), default=0), "bytes")


def _arrivals(stack: Stack, began: float) -> Iterator[float]:
    """Yield the seconds after which each task is in its queue."""
    found = 0
    with closing(broker_for(stack.app, Conf(stack.app), None)) as broker:
        while found < GOOD:
            time.sleep(LOOK_S)
            count = broker.ready(["celery"])["celery"]
            yield from [time.monotonic() - began] * (count - found)
            found = count


def kept(stack: Stack) -> list[bytes]:
    """Return the bytes that the store has of rejected messages."""
    with closing(open_store(stack.store, create=False)) as store:
        return [one.message.body for one in store.handover.stopped(0, ["rejected"])]
