"""CPU of decoding a message of the wheel queue, by msgspec and by Python's own JSON alone.

Real messages of ``letters``, one by one, without a store. Python's JSON reads the messages that msgspec does not read
as Python does; it is the yardstick, and kombu's way.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from celery_wheel.broker import reader
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.operations.bench import pace
from celery_wheel.operations.figure import Figure
from celery_wheel.store.model import Message
from tests.benchmarks.letters import Letters
from tests.benchmarks.parts import make_app
from tests.kit.servers.redis import RedisServer

TURNS, MESSAGES = 40, 1_000


def run(folder: Path, _rows: int) -> Iterator[Figure]:
    with RedisServer(folder / "redis") as server:
        letters = Letters(make_app(server.url, f"sqlite:///{folder / 'wheel.sqlite3'}"), server.client())
    raws = list(letters.write([2_000_000_000_000] * MESSAGES, 1_900_000_000_000))
    both, plain = [], []
    for _ in range(TURNS):
        both.append(_decode(raws))
        with mock.patch.multiple(reader, _decode_queued=_refuse, _dumps=reader._dumps_all):
            plain.append(_decode(raws))
    size = sum(map(len, raws)) / MESSAGES
    ours, theirs = statistics.median(both), statistics.median(plain)
    yield Figure("decoding", f"a message of {size:,.0f} B", ours, "µs", "Python's json", theirs, less_is_better=True)


def _decode(raws: list[bytes]) -> float:
    decode = QueuedMessageReader().decode
    assert isinstance(decode(raws[0]), Message)

    def work() -> None:
        for raw in raws:
            decode(raw)

    return pace(work, len(raws)).cpu_us


def _refuse(_raw: bytes) -> None:
    raise ValueError
