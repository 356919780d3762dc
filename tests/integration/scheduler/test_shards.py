"""Several shards, several schedulers: even shares, and dispatch that goes on while they come and go."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from zlib import crc32

import pytest

from tests.kit.patience import patience, wait_until
from tests.kit.stack import Stack

SHARDS = 4

#: The promised time on a quiet machine.
TAKEOVER_S = 3


@pytest.fixture
def sharded(stack: Stack) -> Stack:
    stack.change(wheel_shards=SHARDS)
    return stack


def counts(stack: Stack) -> list[int]:
    return sorted(Counter(stack.holders().values()).values())


class Traffic:
    """Sends a task a few times a second to each shard, due 0.3 s later, until the context ends."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: dict[str, tuple[int, float]] = {}  #: task id → shard, when it is due (monotonic)
        self.arrived: dict[str, float] = {}

    def _run(self) -> None:
        n = 0
        while not self._stop.wait(0.05):
            n += 1
            task_id = f"task-{n}"
            due_s = time.monotonic() + 0.3
            self._stack.app.send_task("note", (n,), countdown=0.3, task_id=task_id)
            self.sent[task_id] = crc32(task_id.encode()) % SHARDS, due_s
            now_s = time.monotonic()
            for arrived in self._stack.dispatched():
                self.arrived.setdefault(arrived, now_s)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def late_s(self, shards: set[int]) -> float:
        """Return the greatest lateness of the arrived tasks of these shards."""
        return max(
            self.arrived[task_id] - due_s
            for task_id, (shard, due_s) in self.sent.items()
            if shard in shards and task_id in self.arrived
        )


@pytest.fixture
def traffic(sharded: Stack) -> Iterator[Traffic]:
    with Traffic(sharded) as found:
        yield found


def test_shares_are_even_and_shards_that_stay_see_no_gap(sharded: Stack, traffic: Traffic) -> None:
    first = sharded.beat()
    wait_until(lambda: counts(sharded) == [4], "one scheduler holds all")
    wait_until(lambda: len(traffic.arrived) > 40, "tasks of all shards are dispatched")
    traffic.arrived.clear()
    traffic.sent.clear()

    second = sharded.beat()
    wait_until(lambda: counts(sharded) == [2, 2], "the newcomer has half of them")
    stayed = {shard for shard, pid in sharded.holders().items() if pid == first.pid}
    assert second.terminate() == 0
    wait_until(lambda: counts(sharded) == [4], "the first has all again")
    sent = set(traffic.sent)
    wait_until(lambda: sent <= traffic.arrived.keys(), "all tasks are dispatched")
    assert sharded.holders().keys() >= stayed
    assert traffic.late_s(stayed) < patience(1), "a shard that was not moved made a pause"


def test_the_shards_of_a_scheduler_that_is_killed_go_to_the_other(sharded: Stack, traffic: Traffic) -> None:
    sharded.beat()
    victim = sharded.beat()
    wait_until(lambda: counts(sharded) == [2, 2], "two schedulers have half each")
    victim.kill()
    wait_until(lambda: counts(sharded) == [4], "the other has all", TAKEOVER_S)
    sent = set(traffic.sent)
    wait_until(lambda: sent <= traffic.arrived.keys(), "all tasks are dispatched")
    left = sharded.dispatched()  # read once, since more tasks are dispatched meanwhile
    assert len(left) == len(set(left)), "a task left twice"
