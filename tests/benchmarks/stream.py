"""A steady stream of messages in and out, and the lateness of each when it arrives.

::

    rate/100 messages ── every 10 ms ──► wheel queue ─► scheduler ─► the workers' queues ─► taken out as they come
                                         or a native worker's queue ─► its timer ─► its pool

A message is due 1 to 3 seconds after it was sent, at random. All messages are made beforehand and held in memory; a
thread sends them at their instants, and another one takes out what has arrived and notes the time. Only messages
count that are due from 3 seconds after the start until 1 second after the end of the sending: as many go in as out.
A rate is held when all messages arrive, and 99 of 100 within ``HELD_MS`` of their due time.
"""

import gc
import json
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import redis

from tests.benchmarks.child import Child
from tests.benchmarks.letters import QUEUES, WHEEL_QUEUE, Letters, task_id_of
from tests.benchmarks.native import QUEUE, Native
from tests.benchmarks.parts import make_app
from tests.kit.servers.redis import RedisServer

#: Messages are taken out that much apart, so that taking them costs little; they seem later by as much at most.
TAKE_S = 0.0005
AHEAD_MS = (1_000, 3_000)
#: The longest wait for messages that are late.
LONGEST_S = 15.0
HELD_MS = 1_000
AT_ONCE = 1_000
PROBES, PROBE_EVERY_S, PROBE_DUE_S = "bench.probe", 0.05, 0.2

#: Due time and lateness of each message that arrived.
Pairs = list[tuple[float, float]]


class InBackground:
    """Work in threads from the start of a block to its end; an error of a thread is raised at the end.

    Meanwhile this process collects no garbage: that stops all of its threads for 100 ms, by which messages seemed late.
    """

    _under_way = 0

    def __init__(self, *work: Callable[[], None]) -> None:
        self.over = threading.Event()
        self._work, self._pool = work, ThreadPoolExecutor(len(work))

    def __enter__(self) -> Self:
        gc.disable()
        InBackground._under_way += 1
        self.running = [self._pool.submit(one) for one in self._work]
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self._pool.shutdown()
        InBackground._under_way -= 1
        if not InBackground._under_way:
            gc.enable()
        for one in self.running:
            one.result()


class Arrivals(InBackground):
    def __init__(self, client: redis.Redis, queues: Sequence[str], etas_ms: dict[bytes, int]) -> None:
        super().__init__(self._take)
        self.pairs: Pairs = []
        self._etas_ms, self._client, self._queues = etas_ms, client, list(queues)

    def wait(self, count: int, at_most_s: float) -> None:
        until_s = time.monotonic() + at_most_s
        while len(self.pairs) < count and time.monotonic() < until_s and not self.running[0].done():
            time.sleep(0.05)

    def _take(self) -> None:
        rest = self._client.pipeline(transaction=False)
        while not self.over.is_set():
            first: Any = self._client.blpop(self._queues, timeout=0.2)
            if not first:
                continue
            self._note([first[1]])
            time.sleep(TAKE_S)
            for queue in self._queues:
                rest.lpop(queue, AT_ONCE)
            self._note([raw for found in rest.execute() for raw in found or ()])

    def _note(self, found: list[bytes]) -> None:
        now_ms = time.time() * 1_000
        etas_ms = map(self._etas_ms.get, map(task_id_of, found))  # None of a message of the stream before
        self.pairs += [(eta_ms, now_ms - eta_ms) for eta_ms in etas_ms if eta_ms is not None]


class Probes(InBackground):
    """Tasks through the wheel queue, due 200 ms later: how late each arrives in its queue."""

    def __init__(self, server: RedisServer, store: str) -> None:
        super().__init__(self._send, self._receive)
        self.late_ms: Pairs = []
        self._app, self._client = make_app(server.url, store), server.client()
        self._sent, self._until_s = 0, math.inf

    def _send(self) -> None:
        while not self.over.wait(PROBE_EVERY_S):
            due_ms = (time.time() + PROBE_DUE_S) * 1_000
            self._app.send_task("bench.probe", queue=PROBES, countdown=PROBE_DUE_S, headers={"due_ms": due_ms})
            self._sent += 1

    def _receive(self) -> None:
        while not self.over.is_set() or (len(self.late_ms) < self._sent and time.monotonic() < self._until_s):
            found: Any = self._client.blpop([PROBES], timeout=1)
            if found:
                due_ms = json.loads(found[1])["headers"]["due_ms"]
                self.late_ms.append((due_ms, time.time() * 1_000 - due_ms))

    def between(self, after_s: float = 0, upto_s: float = math.inf) -> list[float]:
        return sorted(late for due_ms, late in self.late_ms if after_s * 1_000 <= due_ms < upto_s * 1_000)

    def __exit__(self, *error: object) -> None:
        self._until_s = time.monotonic() + 10
        super().__exit__(*error)
        self._app.close()


class Drain(InBackground):
    def __init__(self, server: RedisServer, queues: Sequence[str]) -> None:
        super().__init__(self._run)
        self._client, self._queues, self.removed = server.client(), queues, 0

    def __enter__(self) -> Self:
        self._empty()
        self.removed = 0
        return super().__enter__()

    def __exit__(self, kind: object, *rest: object) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            self._empty()

    def _run(self) -> None:
        while not self.over.wait(0.25):
            self._empty()

    def _empty(self) -> None:
        """Remove a queue by UNLINK: Redis frees the memory in a thread of its own."""
        pipeline = self._client.pipeline()
        for queue in self._queues:
            pipeline.llen(queue)
            pipeline.unlink(queue)
        self.removed += sum(pipeline.execute()[::2])


def part(late_ms: list[float], percent: int) -> float:
    return late_ms[min(len(late_ms) - 1, len(late_ms) * percent // 100)]


class Stream:
    """The messages of a stream, with their instants; once it has ended, how they arrived."""

    def __init__(self, letters: Letters, rate: int, seconds: float) -> None:
        self.offered_per_s, rng = rate, random.Random(17)
        self.count = int(rate * (seconds + (AHEAD_MS[1] - AHEAD_MS[0]) / 1_000))
        # The stream begins when its messages are made, which takes up to 60 µs each.
        self._start_ms = int(time.time() * 1_000 + 500 + self.count * 0.1)
        etas_ms = [self._start_ms + n * 1_000 // rate + rng.randrange(*AHEAD_MS) for n in range(self.count)]
        self._messages = list(letters.write(etas_ms, self._start_ms))
        self.etas_ms = dict(zip(map(task_id_of, self._messages), etas_ms, strict=True))

    def send(self, client: redis.Redis, *queues: str) -> None:
        """Send all messages at their instants, to the queues by turns."""
        sent = 0
        while sent < self.count:
            now_ms = time.time() * 1_000
            due = min(self.count, max(0, int((now_ms - self._start_ms) * self.offered_per_s / 1_000)))
            if due > sent:
                pipeline = client.pipeline(transaction=False)
                for n, queue in enumerate(queues):
                    if own := self._messages[sent:due][n :: len(queues)]:
                        pipeline.lpush(queue, *own)
                pipeline.execute()
                sent = due
            time.sleep(0.01)
        self._messages.clear()

    def ended(self, pairs: Pairs, cpu_s: float) -> Self:
        from_ms = self._start_ms + AHEAD_MS[1]
        to_ms = self._start_ms + self.count * 1_000 // self.offered_per_s + AHEAD_MS[0]
        counted = [pair for pair in pairs if from_ms <= pair[0] < to_ms]
        end_ms = max((sum(pair) for pair in counted), default=math.inf)
        self.cpu_us = cpu_s / max(1, len(pairs)) * 1e6  #: of the scheduler or the worker, a message
        self.per_s = len(counted) / (max(end_ms, to_ms) - from_ms) * 1_000
        self._late_ms = sorted(late for _, late in counted) or [math.inf]
        self.held = len(pairs) == self.count and self.late_ms(99) < HELD_MS
        return self

    def late_ms(self, percent: int) -> float:
        return part(self._late_ms, percent)


def through_wheel(child: Child, letters: Letters, client: redis.Redis, rate: int, seconds: float) -> Stream:
    stream, before_s = Stream(letters, rate, seconds), child.status().cpu_s
    with Arrivals(client, QUEUES, stream.etas_ms) as arrivals:
        stream.send(client, WHEEL_QUEUE)
        arrivals.wait(stream.count, LONGEST_S)
    return stream.ended(arrivals.pairs, child.status().cpu_s - before_s)


def through_native(worker: Native, rate: int, seconds: float) -> Stream:
    stream, before_s = Stream(worker.letters, rate, seconds), worker.arrived().cpu_s
    stream.send(worker.client, QUEUE)
    found = worker.wait(stream.count, LONGEST_S)
    return stream.ended(found.late_ms, found.cpu_s - before_s)


def rates(through: Callable[[int], Stream], rate: int) -> list[Stream]:
    """Return the streams of this rate, of twice the rate and so on: all that are held, and the first that is not."""
    found = [through(rate)]
    while found[-1].held:
        rate *= 2
        found.append(through(rate))
    return found
