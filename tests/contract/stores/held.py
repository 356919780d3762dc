"""A scheduler that stops in the middle of a change: test_takeover runs it with the store's URL and where to stop."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from celery_wheel.store import open_store
from celery_wheel.store.postgresql.statements import CopyInsert
from tests.contract.stores.killed import say, stop_before_the_commit
from tests.kit.holder import NOW, Holder

LEASE = 2_000
ROWS = 5_000


def renew_in_the_background(holder: Holder) -> None:
    """Renew the lease, as an engine's own thread does."""

    def renew() -> None:
        while True:
            holder.store.renew(0, holder.epoch, NOW, LEASE, {})
            threading.Event().wait(LEASE / 4_000)

    threading.Thread(target=renew, daemon=True).start()


def stop_while_copying() -> None:
    """Stop while the server waits for the next row of a COPY: it calls such a session active."""
    with_uuids = CopyInsert._with_uuids
    seen = 0

    def with_uuids_and_stop(self: CopyInsert, row: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == ROWS // 2:
            say("stopped")
            signal.pause()
        return with_uuids(self, row)

    CopyInsert._with_uuids = with_uuids_and_stop  # type: ignore[method-assign]


def main(url: str, where: str) -> None:
    store = open_store(url, shards=2, lease_ms=LEASE)
    holder = Holder(store)
    store.renew(0, holder.epoch, NOW, LEASE, {})
    renew_in_the_background(holder)
    if where == "writing":
        stop_before_the_commit()  # PostgreSQL calls such a session idle in a transaction
    elif where == "copying":
        stop_while_copying()
    holder.accept(NOW)
    holder.apply(rows=[holder.row(NOW) for _ in range(ROWS)])
    say("stopped")  # between two transactions
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
