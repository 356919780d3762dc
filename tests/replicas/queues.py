"""A RabbitMQ whose queues lose or refuse messages, or that ends a consumer which acknowledges too late.

::

    consumer_timeout    the store is locked for longer than RabbitMQ waits for an acknowledgement of the wheel queue
    reject-publish      a full queue of tasks refuses a message: the wheel keeps it, and tries again
    drop-head           a full queue of tasks confirms a message and drops its oldest: the wheel cannot know that
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import kombu

from tests.kit.patience import patience, wait_until
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.stack import Stack
from tests.replicas.stand import Account, Stand

#: Seconds: RabbitMQ's time-out of a consumer, and how long the store is locked.
TIMEOUT_S, LOCKED_S = 2, 8

#: Messages that a queue of limited length holds, and tasks that are sent to it.
LENGTH, TASKS = 10, 40

#: A line of RabbitMQ's log for each channel that it ends.
REFUSED = "delivery acknowledgement on channel"


def consumer_timeout(folder: Path, seed: int, rounds: int) -> Account:
    """Lock the store for longer than the time-out, a number of times under load, and account for each task."""
    store = folder / "wheel.sqlite3"
    with RabbitServer(folder / "rabbitmq") as server:
        for name, value in (("consumer_timeout", TIMEOUT_S * 1_000), ("channel_tick_interval", 500)):
            server.ctl("eval", f"application:set_env(rabbit, {name}, {value}).")
        with Stand(folder / "stand", server.url, f"sqlite:///{store}", seed, lambda: server.url) as stand:
            for _ in range(rounds):
                stand.await_load(40)
                with locked(store):
                    until_s = time.monotonic() + LOCKED_S
                    while time.monotonic() < until_s:
                        time.sleep(0.1)
                stand.await_recovery()
            account = stand.settle("consumer time-out of RabbitMQ")
        logs = (folder / "rabbitmq").glob("log/*.log")
        ended = sum(path.read_text(errors="replace").count(REFUSED) for path in logs)
    account.counts |= {"locks of the store": rounds, "channels that RabbitMQ ended": ended}
    if not ended:
        account.broken["the time-out"] = "RabbitMQ ended no channel"
    return account


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Keep every other writer out of a SQLite store."""
    with closing(sqlite3.connect(store, timeout=patience(), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def overflow(stack: Stack, policy: str) -> tuple[int, int]:
    """Send TASKS to a queue of LENGTH that no worker empties; then take all messages until no more come.

    Returns how many tasks wait in the store while the queue is full, and how many messages arrive in the end.
    """
    arguments = {"x-max-length": LENGTH, "x-overflow": policy}
    with closing(stack.app.connection_for_write()) as connection:
        queue: Any = kombu.Queue("small", kombu.Exchange("small"), "small", queue_arguments=arguments)
        bound = queue(connection.default_channel)
        bound.declare()
        beat = stack.beat()
        stack.wait_for_holder(beat)
        for n in range(TASKS):
            stack.app.send_task("note", (n,), countdown=1.0, queue=queue)
        left, wheel = LENGTH if policy == "reject-publish" else TASKS, stack.app.wheel
        wait_until(lambda: len(wheel.history(limit=TASKS).items) == left, "so many have left the store")
        wait_until(lambda: ready(bound) == LENGTH, "the queue is full")
        [waiting], taken = stack.pending(), list[Any]()

        def take() -> bool:
            one = bound.get(no_ack=True)
            taken.extend([] if one is None else [one])
            return one is None and stack.pending() == [0]

        wait_until(take, "nothing is left in the queue and in the store")
        return waiting, len(taken)


def ready(bound: Any) -> int:
    return int(bound.queue_declare(passive=True).message_count)
