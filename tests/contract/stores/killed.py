"""A scheduler that is killed: test_kill runs it with the store's URL, its durability and where to stop."""

from __future__ import annotations

import signal
import sys
from typing import Any

from celery_wheel.store import open_store
from celery_wheel.store.model import TallyKey
from celery_wheel.store.sql import changes
from tests.kit.holder import NOW, Holder

GROUP = 50
KEY = TallyKey(1, "q", "t")


def say(what: object) -> None:
    print(what, flush=True)


def stop_before_the_commit() -> None:
    """Make ``apply`` stop after every write and before the commit."""
    write = changes.write

    def write_and_stop(*args: Any) -> None:
        write(*args)
        say("stopped")
        signal.pause()

    changes.write = write_and_stop  # type: ignore[assignment]


def main(url: str, durability: str, where: str) -> None:
    holder = Holder(open_store(url, shards=2, durability=durability))
    say("holding")
    total = 0
    while True:
        if where == "before the commit" and total == 2 * GROUP:
            stop_before_the_commit()
        holder.apply(rows=[holder.row(NOW) for _ in range(GROUP)], tally={KEY: GROUP})
        total += GROUP
        say(total)


if __name__ == "__main__":
    main(*sys.argv[1:])
