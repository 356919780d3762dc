"""Several threads and several schedulers on one store: a read sees all of a change, or nothing of it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from celery_wheel.store.model import Change, LaneState, Position, Settlement, StoredMessage, TallyKey
from celery_wheel.store.ports import Retention, Store
from tests.kit.holder import EVERYTHING, LEASE, NOW, Holder

GROUP = 20
GROUPS = 60
KEY = TallyKey(1, "q", "t")


def run_all(*targets: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(targets)) as pool:
        for one in [pool.submit(target) for target in targets]:
            one.result()


def test_readers_see_whole_changes_only(make_store: Callable[[], Store]) -> None:
    holder, other = Holder(make_store()), make_store()
    done = threading.Event()

    def write() -> None:
        try:
            for _ in range(GROUPS):
                holder.apply(rows=[holder.row(NOW) for _ in range(GROUP)], tally={KEY: GROUP})
        finally:
            done.set()

    def read(store: Store) -> None:
        seen = 0
        while not done.is_set():
            assert store.count(0, 0, *EVERYTHING) % GROUP == 0
            rows = store.slice(0, 0, *EVERYTHING)
            assert len(rows) % GROUP == 0
            assert len(rows) >= seen
            seen = len(rows)
            assert store.pending(0).get(KEY, 0) >= seen

    run_all(write, lambda: read(holder.store), lambda: read(other))
    assert holder.store.pending(0) == {KEY: GROUP * GROUPS}


def test_a_read_sees_every_change_that_returned_before_it(make_store: Callable[[], Store]) -> None:
    holder, other = Holder(make_store()), make_store()
    for n in range(1, 30):
        [row] = holder.accept(NOW)
        assert other.count(0, 0, *EVERYTHING) == holder.store.count(0, 0, *EVERYTHING) == n
        assert other.known(0, [row.message.envelope_id])


def test_an_engines_threads_write_side_by_side(holder: Holder) -> None:
    """Accepting, settling, renewing and forgetting at once: no row is lost, and no thread blocks for ever."""
    store, epoch = holder.store, holder.epoch
    groups: list[list[StoredMessage]] = [[holder.row(NOW + n) for _ in range(GROUP)] for n in range(GROUPS)]
    settlements = [Settlement(holder.seq(), 1, Position(n, 0), Position(n + 1, 0), 1, 10, NOW) for n in range(GROUPS)]

    def ingest() -> None:
        for rows in groups:
            store.apply(0, epoch, Change(seq=rows[-1].seq, rows=rows, tally={KEY: len(rows)}))

    def settle() -> None:
        for settlement in settlements:
            store.apply(0, epoch, Change(settlements=[settlement], lanes=[LaneState(1, settlement.to, settlement.to)]))

    def tend() -> None:
        for n in range(GROUPS):
            store.renew(0, epoch, NOW + n, LEASE, {"n": n})
            store.forget(0, epoch, Retention(0, 2**60), 100)

    run_all(ingest, settle, tend)
    assert store.count(0, 0, *EVERYTHING) == GROUP * GROUPS
    assert store.lanes(0)[1].offset == settlements[-1].to
    assert store.state(0).snapshot == {"n": GROUPS - 1}
    assert store.state(0).seq == groups[-1][-1].seq
    assert store.pending(0) == {KEY: GROUP * GROUPS}


def test_during_a_takeover_each_change_is_committed_whole_or_not_at_all(store: Store) -> None:
    """One thread writes under an epoch while another raises it again and again."""
    holder = Holder(store)
    accepted: list[int] = []
    done = threading.Event()

    def write() -> None:
        try:
            for _ in range(GROUPS):
                rows = [holder.row(NOW) for _ in range(GROUP)]
                epoch = store.state(0).epoch
                try:
                    store.apply(0, epoch, Change(rows=rows))
                except PermissionError:
                    continue
                accepted.extend(row.id for row in rows)
        finally:
            done.set()

    def take() -> None:
        while not done.is_set():
            assert store.acquire(0, "host-a", NOW, LEASE)

    run_all(write, take)
    assert [row.id for row in store.slice(0, 0, *EVERYTHING)] == accepted
