"""How many second copies one cut costs on RabbitMQ, by the size of a chunk: the most, and the mean.

::

    python -m tests.faults.copies [--chunk 1000 --chunk 100] [--cuts 10] [--rows 60000] [--rate 300]

    scheduler ──► proxy ──► RabbitMQ ──► consumer, on a connection of its own
       └ killed      └ killed: all connections of the scheduler are cut at once

Either all rows are due at once, so that each chunk is full, or ``--rate`` of them are due each second. A copy counts
for the last cut before it. The rate of dispatch without cuts shows the price of small chunks.
"""

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.kit.patience import wait_until
from tests.kit.servers.proxy import Proxy
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.stack import Stack
from tests.soak.consumer import Consumer, now_ms
from tests.soak.ledger import Ledger, task_id

#: Rows come to the store that long before they are due, in milliseconds.
AHEAD_MS = 5_000

CUTS = ("connections cut", "scheduler killed")


class Copies(NamedTuple):
    """The copies of each cut, those of them without a mark, and the rate of dispatch where nothing is cut."""

    of_cuts: list[int]
    unmarked: int
    per_s: float

    def __str__(self) -> str:
        count = len(self.of_cuts)
        return (
            f"{count} times, at most {max(self.of_cuts, default=0)}, mean {sum(self.of_cuts) / max(1, count):.0f}, "
            f"without a mark {self.unmarked}; {self.per_s:,.0f} /s; {self.of_cuts}"
        )


class Cut:
    """A scheduler of one shard behind a proxy, and a consumer."""

    def __init__(self, folder: Path, url: str, port: int, proxy: Proxy, chunk: int) -> None:
        self.proxy = proxy
        self.stack = Stack(folder, url, wheel_chunk=chunk)
        self.way = url.replace(f":{port}/", f":{proxy.port}/")
        self.ledger = Ledger(folder / "ledger.sqlite3")
        self._stop = threading.Event()
        self._consumer = Consumer(url, self.ledger, self._stop)
        self._thread = threading.Thread(target=self._consumer.run)
        self._places: list[int] = []

    def run(self, kind: str, cuts: int, rows: int, rate: int, rng: random.Random) -> Copies:
        self._beat()
        self.stack.wait_for_holder(self.stack["beat"])
        self._thread.start()
        first_ms = now_ms() + AHEAD_MS
        due = [first_ms + (one * 1_000 // rate if rate else 0) for one in range(rows)]
        self.stack.app.wheel.schedule_many(
            ("note", (one,), {}, due_ms, "celery", None, None, None, task_id(one)) for one, due_ms in enumerate(due)
        )
        cut: Callable[[], None] = self.proxy.restart if kind == CUTS[0] else self._kill_scheduler
        while len(self._places) < cuts:
            at = self._received() + rng.randrange(rows // (4 * cuts), rows // (2 * cuts))
            if at > rows:  # more has passed during the cuts than between them
                break
            self._wait_for(at)
            self._places.append(self._last_place())
            cut()
        if not cuts:
            self._wait_for(1)
        began, before = time.monotonic(), self._received()
        self._wait_for(rows)
        per_s = (rows - before) / (time.monotonic() - began)
        copies = self.ledger.read(
            "SELECT place, marked FROM arrivals a WHERE EXISTS (SELECT 1 FROM arrivals b "
            "WHERE b.number = a.number AND b.place < a.place AND b.publication <> a.publication)"
        )
        of_cuts = [
            sum(after < place <= upto for place, _ in copies)
            for after, upto in pairwise([*self._places, self._last_place()])
        ]
        return Copies(of_cuts, sum(not marked for _, marked in copies), per_s)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.stack.close()
        self.ledger.close()

    def _beat(self) -> None:
        self.stack.beat("beat", broker_url=self.way)

    def _kill_scheduler(self) -> None:
        self.stack["beat"].kill()
        self._beat()
        self.stack.wait_for_holder(self.stack["beat"])  # by then all that it had sent has arrived

    def _received(self) -> int:
        return int(self.ledger.one("SELECT count(DISTINCT number) FROM arrivals"))

    def _last_place(self) -> int:
        return int(self.ledger.one("SELECT coalesce(max(place), 0) FROM arrivals"))

    def _wait_for(self, count: int) -> None:
        wait_until(lambda: self._received() >= count, f"{count:,} tasks have arrived", 300, every_s=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.copies", description=__doc__)
    parser.add_argument("--chunk", type=int, action="append", help="a setting of wheel_chunk; by default 1000 and 100")
    parser.add_argument("--cuts", type=int, default=10, help="0: only the rate of dispatch")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--rate", type=int, default=0, help="rows that are due in a second; 0: all at once")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with (
        tempfile.TemporaryDirectory(prefix="copies-") as name,
        RabbitServer(Path(name) / "rabbitmq") as server,
        Proxy(Path(name), server.port) as proxy,
    ):
        for chunk in options.chunk or (1_000, 100):
            for kind in CUTS[: 2 if options.cuts else 1]:
                one = Cut(Path(name) / f"{chunk} {kind}", server.fresh(), server.port, proxy, chunk)
                try:
                    found = one.run(kind, options.cuts, options.rows, options.rate, rng)
                finally:
                    one.close()
                print(f"wheel_chunk {chunk}, {kind}: {found}", flush=True)


if __name__ == "__main__":
    main()
