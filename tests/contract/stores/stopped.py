"""A scheduler in a process of its own that is killed or stopped.

::

    python -m … killed <url> <durability> <where>      test_losses kills it
    python -m … held <url> <where>                     test_takeover kills or stops it in the middle of a change
"""

import signal
import sys
import threading
from typing import Any

import psycopg

from celery_wheel.store import open_store
from celery_wheel.store.model import TallyKey
from celery_wheel.store.sql import changes
from tests.kit.holder import NOW, Holder

GROUP = 50
KEY = TallyKey(1, "q", "t")
LEASE = 2_000
ROWS = 5_000


def say(what: object) -> None:
    print(what, flush=True)


def stop_before_the_commit() -> None:
    """Make ``apply`` stop after every write and before the commit."""
    write = changes.write

    def write_and_stop(*args: Any) -> Any:
        fenced = write(*args)
        say("it stopped")
        signal.pause()
        return fenced

    changes.write = write_and_stop  # type: ignore[assignment]


def stop_while_copying() -> None:
    """Stop while the server waits for the next row of a COPY: it calls such a session active."""
    write_row, seen = psycopg.Copy.write_row, 0

    def write_and_stop(self: psycopg.Copy, row: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == ROWS // 2:
            say("it stopped")
            signal.pause()
        write_row(self, row)

    psycopg.Copy.write_row = write_and_stop  # type: ignore[method-assign]


def renew_in_the_background(holder: Holder) -> None:
    def renew() -> None:
        while True:
            holder.store.renew(0, holder.epoch, NOW, LEASE, {})
            threading.Event().wait(LEASE / 4_000)

    threading.Thread(target=renew, daemon=True).start()


def killed(url: str, durability: str, where: str) -> None:
    holder = Holder(open_store(url, shards=2, durability=durability))
    say("holding")
    total = 0
    while True:
        if where == "before the commit" and total == 2 * GROUP:
            stop_before_the_commit()
        holder.apply(rows=[holder.row(NOW) for _ in range(GROUP)], tally={KEY: GROUP})
        total += GROUP
        say(total)


def held(url: str, where: str) -> None:
    holder = Holder(open_store(url, shards=2, lease_ms=LEASE))
    holder.store.renew(0, holder.epoch, NOW, LEASE, {})
    renew_in_the_background(holder)
    if where == "writing":
        stop_before_the_commit()  # PostgreSQL calls such a session idle in a transaction
    elif where == "copying":
        stop_while_copying()
    holder.accept(NOW)
    holder.apply(rows=[holder.row(NOW) for _ in range(ROWS)])
    say("it stopped")  # between two transactions
    signal.pause()


if __name__ == "__main__":
    {"killed": killed, "held": held}[sys.argv[1]](*sys.argv[2:])
