"""Taking, keeping and losing a shard: rules 1 and 2 of the port.

The store lists the schedulers with a sign of life, and the holders of shards.
"""

import re
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from celery_wheel.errors import Fenced, StoreRolledBack
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN, Change, LaneState, Position, Settlement, TallyKey
from celery_wheel.store.ports import Renewal, Retention, Store
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import SqlBackend
from tests.kit.holder import EVERYTHING, LEASE, NO_LIMIT, NOW, Holder, acquire
from tests.kit.patience import patience, wait_until
from tests.kit.processes import python

AFTER_THE_LEASE = NOW + LEASE + 1


def assert_leased(store: Store, shard: int = 0, now_ms: int = NOW) -> None:
    """Assert that the lease is a new one by the store's own clock, or by the caller's ``now_ms``."""
    own_ms, until_ms = store.now_ms(), store.state(shard).lease_until_ms
    assert until_ms is not None
    assert 0 <= (now_ms if own_ms is None else own_ms) + LEASE - until_ms < LEASE


def test_a_new_store_holds_nothing(store: Store) -> None:
    state = store.state(0)
    assert (state.shard, state.epoch, state.holder, state.seq, state.snapshot) == (0, 0, None, 0, None)
    assert store.lanes(0) == [LaneState(0, ORIGIN, ORIGIN)]
    assert store.count(0, 0, *EVERYTHING) == 0


def test_acquiring_raises_the_epoch_and_names_the_holder(store: Store) -> None:
    epoch = store.acquire(0, "host-a", NOW, LEASE)
    state = store.state(0)
    assert epoch == state.epoch == 1
    assert state.holder == "host-a"
    assert_leased(store)
    assert store.acquire(0, "host-a", NOW, LEASE) == 2


def test_another_store_gets_another_shard_alone_while_the_holder_lives(make_store: Callable[[], Store]) -> None:
    holder, standby = Holder(make_store()), make_store()
    assert standby.acquire(0, "host-b", NOW, LEASE) is None
    assert standby.acquire(1, "host-b", NOW, LEASE) == 1
    assert standby.state(0).epoch == holder.epoch
    holder.accept(NOW)


def test_after_a_release_another_holder_takes_over_at_once(make_store: Callable[[], Store]) -> None:
    holder, standby = Holder(make_store()), make_store()
    holder.store.release(0, holder.epoch)
    assert standby.state(0).holder is None
    assert standby.acquire(0, "host-b", NOW, LEASE) == holder.epoch + 1
    holder.store.release(0, holder.epoch)
    assert standby.state(0).holder == "host-b", "a release is not repeated"
    with pytest.raises(Fenced):
        holder.accept(NOW)


def test_after_a_close_another_holder_takes_over(make_store: Callable[[], Store]) -> None:
    holder, standby = Holder(make_store()), make_store()
    holder.store.close()
    if standby.now_ms() is None:
        assert standby.acquire(0, "host-b", AFTER_THE_LEASE, LEASE) == holder.epoch + 1
    else:
        assert acquire(standby, name="host-b", waits=True) == holder.epoch + 1


def test_a_release_of_an_old_epoch_releases_nothing(make_store: Callable[[], Store]) -> None:
    holder, standby = Holder(make_store()), make_store()
    old = holder.epoch
    holder.acquire()
    holder.store.release(0, old)
    assert standby.acquire(0, "host-b", NOW, LEASE) is None
    assert standby.state(0).holder == "host-a"


def test_renewing_publishes_the_snapshot_and_the_lease(make_store: Callable[[], Store]) -> None:
    holder, reader = Holder(make_store()), make_store()
    snapshot = {"pending": 3, "levels": [{"tick_ms": 1}], "name": "Größe 漢字"}
    for shown in ({"pending": 4}, snapshot):
        holder.store.renew(0, holder.epoch, NOW + 700, LEASE, shown)
    state = reader.state(0)
    assert (state.snapshot, state.snapshot_at_ms) == (snapshot, NOW + 700)
    assert_leased(holder.store, 0, NOW + 700)
    assert state.epoch == holder.epoch


def test_several_shards_are_renewed_together_but_for_those_of_former_epochs(holder: Holder) -> None:
    store, former = holder.store, holder.epoch
    other = Holder(store, shard=1)
    epoch = holder.acquire()
    before = store.state(0)
    renewed = store.renew_all([Renewal(0, former, {"n": 0}), Renewal(1, other.epoch, {"n": 1})], NOW + 700, LEASE)
    assert (renewed, store.state(0)) == ({1}, before)
    state = store.state(1)
    assert (state.snapshot, state.snapshot_at_ms) == ({"n": 1}, NOW + 700)
    assert_leased(store, 1, NOW + 700)
    both = [Renewal(0, epoch, {"n": 2}), Renewal(1, other.epoch, {"n": 3})]
    assert store.renew_all(both, NOW + 900, LEASE) == {0, 1}
    assert [store.state(shard).snapshot for shard in (0, 1)] == [{"n": 2}, {"n": 3}]
    assert store.renew_all([Renewal(0, epoch, None), Renewal(1, other.epoch, {"n": 5})], NOW + 1_100, LEASE) == {0, 1}
    assert_leased(store, 0, NOW + 1_100)
    states = [store.state(shard) for shard in (0, 1)]
    assert [one.snapshot for one in states] == [{"n": 2}, {"n": 5}], "None leaves the stored snapshot"
    assert [one.snapshot_at_ms for one in states] == [NOW + 900, NOW + 1_100]


def test_accepted_messages_are_counted_whatever_becomes_of_them(holder: Holder) -> None:
    rows = holder.accept(NOW, NOW + 1)
    holder.apply(rejects=[holder.reject()], rows=[holder.row(NOW)], moves=[holder.stop(rows[0])])
    holder.apply(outcomes=[holder.outcome(rows[0].id)], rows=[holder.row(NOW)])
    holder.apply(erased=[rows[1].id])
    assert (holder.store.state(0).accepted, holder.store.state(1).accepted) == (5, 0)
    holder.acquire()
    assert holder.store.state(0).accepted == 5


def test_a_store_that_has_accepted_fewer_messages_than_its_holder_knows_writes_nothing(holder: Holder) -> None:
    store = holder.store
    [row] = holder.accept(NOW)
    other = Holder(store, shard=1)
    for parts in ({"rows": [holder.row(NOW)]}, {"tombstones": []}, {"outcomes": [holder.outcome(row.id)]}):
        holder.apply(known=1, tally={}, **{**parts, "rows": []})
        before = store.state(0)
        with pytest.raises(StoreRolledBack):
            holder.apply(known=2, **parts)
        assert store.state(0) == before
    holder.store.renew(0, holder.epoch, NOW, LEASE, {"n": 1}, 1)
    with pytest.raises(StoreRolledBack):
        holder.store.renew(0, holder.epoch, NOW, LEASE, {"n": 2}, 2)
    renewals = [Renewal(0, holder.epoch, {"n": 3}, 2), Renewal(1, other.epoch, {"n": 3})]
    assert store.renew_all(renewals, NOW, LEASE) == {1}
    assert store.state(0).snapshot == {"n": 1}
    with pytest.raises(Fenced):
        store.renew(0, holder.epoch - 1, NOW, LEASE, {}, 2)


def full_change(holder: Holder) -> Change:
    row = holder.row(NOW)
    return Change(
        seq=holder.highest_seq + 1000,
        rows=[row],
        rejects=[holder.reject()],
        outcomes=[holder.outcome(row.id)],
        settlements=[Settlement(holder.seq(), 0, ORIGIN, Position(NOW, 1), 1, 1, NOW)],
        lanes=[LaneState(0, Position(NOW, 1), Position(NOW, 1)), LaneState(7, ORIGIN, ORIGIN)],
        tally={TallyKey(1, "q", "t"): 1},
    )


def test_a_former_epoch_can_write_nothing(holder: Holder) -> None:
    """A fenced change with every part leaves none of them in the store."""
    [row] = holder.accept(NOW + 50)
    holder.store.put_inbox(0, [("message", b"x")])
    [item] = holder.store.read_inbox(0, 10)
    old, before = holder.epoch, holder.highest_seq
    holder.acquire()
    change = full_change(holder)
    change.moves = [holder.move(row, NOW + 60)]
    change.inbox = [item.id]
    with pytest.raises(Fenced):
        holder.store.apply(0, old, change)
    assert holder.ids() == [row.id]
    assert holder.slice()[0].due_ms == NOW + 50
    assert holder.store.count(0, -1, *EVERYTHING) == 0
    assert holder.store.lanes(0) == [LaneState(0, ORIGIN, ORIGIN)]
    assert holder.store.settlement_start(0, 0, Position(NOW, 1), 0) is None
    assert holder.store.pending(0) == {}
    assert holder.store.read_inbox(0, 10) == [item]
    assert holder.store.state(0).seq == before


@pytest.mark.parametrize("wrong", [-1, 0, 1], ids=["older", "none", "newer"])
def test_only_the_very_epoch_may_write(holder: Holder, wrong: int) -> None:
    holder.acquire()
    epoch = holder.epoch + wrong if wrong else 0
    with pytest.raises(Fenced):
        holder.store.apply(0, epoch, Change())


def test_a_former_epoch_can_neither_renew_nor_forget(holder: Holder) -> None:
    [row] = holder.accept(NOW)
    holder.settle(ORIGIN, Position(row.due_ms, row.seq), at_ms=NOW)
    old = holder.epoch
    holder.acquire()
    before = holder.store.state(0)
    with pytest.raises(Fenced):
        holder.store.renew(0, old, NOW + 9_000, LEASE, {"ghost": True})
    with pytest.raises(Fenced):
        holder.store.forget(0, old, Retention(NOW + 1, NO_LIMIT), 10)
    assert holder.store.state(0) == before
    assert holder.ids() == [row.id]


def test_the_error_has_state_consequence_and_remedy(sql_holder: Holder) -> None:
    old = sql_holder.epoch
    sql_holder.acquire()
    with pytest.raises(Fenced, match=f"shard 0 is at epoch {old + 1}, not {old}: .*; nothing was written, .*dropped"):
        sql_holder.store.apply(0, old, Change())


def test_all_stores_of_one_database_have_one_uuid(make_store: Callable[[], Store]) -> None:
    uuids = {make_store().uuid, make_store().uuid}
    assert len(uuids) == 1
    assert len(uuids.pop()) == 36


def test_a_derived_id_is_the_same_in_each_process_alone(make_sql_store: Callable[[], SqlStore], tmp_path: Path) -> None:
    first, again = make_sql_store(), make_sql_store()
    with closing(open_store(f"sqlite:///{tmp_path}/another.sqlite3")) as other:
        assert other.uuid != first.uuid
        found = [store.derived_id("occurrence 1 1 0 None") for store in (first, again, other)]
    assert found[0] == found[1] != found[2]
    assert first.derived_id("occurrence 1 1 1 None") != found[0]
    by_uuid = str(uuid.uuid5(uuid.UUID(first.uuid), "occurrence 1 1 0 None"))
    assert by_uuid not in found  # the broker shows the store's UUID


def test_a_shard_that_cannot_be_taken_yet_delays_no_other_shard(
    make_sql_store: Callable[[], SqlStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped holder may have its row locked; the other shards are taken over meanwhile."""
    store, waits, may_end = make_sql_store(), threading.Event(), threading.Event()
    hold = store.database.hold

    def slow(shard: int, holder: str) -> bool:
        if shard == 0:
            waits.set()
            may_end.wait(patience(20))
        return hold(shard, holder)

    monkeypatch.setattr(store.database, "hold", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(store.acquire, 0, "a", NOW, LEASE)
        assert waits.wait(patience(10))
        assert pool.submit(store.acquire, 1, "a", NOW, LEASE).result(patience(10)) == 1
        assert not first.done()
        may_end.set()
        assert first.result() == 1


FORKED = """
import os, sys
from celery_wheel.store import open_store
from celery_wheel.errors import StoreError

store = open_store(sys.argv[1], shards=2)
assert store.acquire(0, "parent", 0, 1_000) == 1
child = os.fork()
if child == 0:
    try:
        store.state(0)
    except StoreError as error:
        print(error, flush=True)
    sys.stdin.read()  # outlives its parent
    os._exit(0)
store.put_inbox(0, [("message", b"")])
os._exit(0)
"""


def test_a_forked_child_keeps_no_shard_and_no_store(
    sql_backend: SqlBackend, sql_store: SqlStore, tmp_path: Path
) -> None:
    parent = python(tmp_path / "forked.log", "-c", FORKED, sql_backend.url, stdin=True)
    wait_until(lambda: not parent.is_alive() and parent.lines(), "it has ended, and its child has not")
    assert len(sql_store.read_inbox(0, 10)) == 1
    assert acquire(sql_store, name="standby") == 2
    parent.close_stdin()
    assert re.search("was opened before this process was forked.* open it anew in each process", parent.said())


def test_schedulers_with_a_sign_of_life_are_listed_in_order(make_store: Callable[[], Store]) -> None:
    one, other = make_store(), make_store()
    assert one.register_scheduler("b", NOW, 1_500) == ["b"]
    assert other.register_scheduler("a", NOW + 100, 1_500) == ["a", "b"]
    assert other.register_scheduler("a", NOW + 1_500, 1_500) == ["a"]
    assert one.register_scheduler("b", NOW + 1_600, 1_500) == ["a", "b"]
    other.unregister_scheduler("a")
    other.unregister_scheduler("nobody")
    assert one.register_scheduler("b", NOW + 1_600, 1_500) == ["b"]


def test_every_shard_has_its_holder(store: Store) -> None:
    assert set(store.holders().values()) <= {None}
    store.acquire(0, "host-a", NOW, LEASE)
    assert store.holders()[0] == "host-a"
    store.release(0, 1)
    assert store.holders()[0] is None
