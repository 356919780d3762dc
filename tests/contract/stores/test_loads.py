"""Bulk loads: all of a load is accepted or nothing, whichever process fails, comes late or runs twice."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest
from sqlalchemy import func, select

from celery_wheel.errors import Fenced, LoadEnded, StoreError, StoreUnusable
from celery_wheel.store.model import ABORTED, COMMITTED, DONE, OPEN, Change
from celery_wheel.store.sql import loads
from celery_wheel.store.sql.loads import KEPT_MS, SqlLoads
from celery_wheel.store.sql.schema import load_chunk, load_part
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.store_model import BulkLoad, PartChunk, PartResult, WrittenSlice
from tests.contract.stores.conftest import MakeSqlStore
from tests.contract.stores.test_tables import rows_of
from tests.kit.holder import NOW, Holder

R = TypeVar("R")


def slice_of(number: int, *shards: int, digest: str = "d", rows: int = 3) -> list[PartChunk]:
    return [PartChunk(number, shard, rows, digest, b"%d/%d %s" % (number, shard, digest.encode())) for shard in shards]


def begun(store: SqlStore, name: str = "monday") -> BulkLoad:
    return store.loads.begin(name, NOW)


def written(store: SqlStore, load: BulkLoad, part: int, *chunks: PartChunk) -> PartResult:
    claim, _ = store.loads.claim(load.id, load.run, part)
    store.loads.put(claim, chunks)
    store.loads.finish(claim, max((one.number for one in chunks), default=-1) + 1)
    return PartResult(claim.attempt, sum(one.rows for one in chunks))


def commit(store: SqlStore, load: BulkLoad, parts: dict[int, PartResult]) -> BulkLoad:
    return store.loads.commit(load.id, load.run, parts, NOW + 1)


def state(store: SqlStore, name: str = "monday") -> str | None:
    found = store.loads.by_name(name)
    return None if found is None else found.state


def loaded(store: SqlStore, name: str = "monday", *chunks: PartChunk) -> BulkLoad:
    load = begun(store, name)
    return commit(store, load, {0: written(store, load, 0, *(chunks or slice_of(0, 0)))})


def left(store: SqlStore) -> list[tuple[int, int, int]]:
    return sorted((row["part"], row["number"], row["shard"]) for row in rows_of(store, load_chunk))


def payloads(store: SqlStore, shard: int = 0, max_rows: int = 1_000) -> list[bytes]:
    return [bytes(one.payload) for one in store.read_loads(shard, max_rows)]


def test_nothing_is_seen_before_all_of_it_is_committed(sql_store: SqlStore) -> None:
    load = begun(sql_store)
    parts = {n: written(sql_store, load, n, *slice_of(0, 0, 1), *slice_of(1, 0)) for n in range(2)}
    assert (payloads(sql_store), state(sql_store), len(left(sql_store))) == ([], OPEN, 6)
    done = commit(sql_store, load, parts)
    assert (done.state, done.rows, done.ended_ms) == (COMMITTED, 18, NOW + 1)
    assert sorted(payloads(sql_store)) == [b"0/0 d", b"0/0 d", b"1/0 d", b"1/0 d"]
    assert payloads(sql_store, shard=1) == [b"0/1 d", b"0/1 d"]
    assert commit(sql_store, load, parts) == done, "the call is repeated after a lost answer"


def test_a_load_that_is_committed_is_not_begun_again(sql_store: SqlStore) -> None:
    load = loaded(sql_store)
    again = begun(sql_store)
    assert again.is_loaded
    assert (again.id, again.run, again.rows) == (load.id, load.run, 3)
    with pytest.raises(LoadEnded, match="the load 'monday' is committed; nothing more of it was written"):
        sql_store.loads.claim(again.id, again.run, 0)
    assert not sql_store.loads.abort(load.id, NOW)
    assert payloads(sql_store) == [b"0/0 d"]


def test_a_holder_reads_chunks_in_order_and_deletes_accepted_ones(sql_holder: Holder, sql_store: SqlStore) -> None:
    for name in ("monday", "tuesday"):
        loaded(sql_store, name, *(chunk for n in range(4) for chunk in slice_of(n, 0, digest=name)))
    assert sql_store.has_arrivals(0)
    assert payloads(sql_store, max_rows=1) == [b"0/0 monday"], "at least one, or it would stay"
    assert payloads(sql_store, max_rows=7) == [b"0/0 monday", b"1/0 monday"]
    assert [one.rows for one in sql_store.read_loads(0, 13)] == [3, 3, 3, 3]
    assert payloads(sql_store, max_rows=15)[-1] == b"0/0 tuesday"
    chunks, old = sql_store.read_loads(0, 6), sql_holder.epoch
    sql_holder.acquire()
    with pytest.raises(Fenced):
        sql_store.apply(0, old, Change(rows=[sql_holder.row(NOW)], loaded=[one.id for one in chunks]))
    assert len(payloads(sql_store)) == 8
    row = sql_holder.row(NOW)
    sql_holder.apply(rows=[row], loaded=[one.id for one in chunks])
    assert (sql_holder.ids(), payloads(sql_store)[0]) == ([row.id], b"2/0 monday")


def test_a_wholly_accepted_load_is_done_and_its_name_kept_for_a_year(sql_holder: Holder, sql_store: SqlStore) -> None:
    load = begun(sql_store)
    there = written(sql_store, load, 0, *slice_of(0, 0, 1))
    assert not sql_store.has_arrivals(0), "the load is not committed"
    commit(sql_store, load, {0: there})

    def expire(now_ms: int) -> None:
        sql_store.expire(0, sql_holder.epoch, now_ms, now_ms)

    sql_holder.apply(loaded=[one.id for one in sql_store.read_loads(0, 100)])
    assert (sql_store.has_arrivals(0), sql_store.has_arrivals(1)) == (False, True)
    expire(NOW)
    assert state(sql_store) == COMMITTED, "the other shard's are there still"
    other = Holder(sql_store, 1)
    other.apply(loaded=[one.id for one in sql_store.read_loads(1, 100)])
    expire(NOW)
    assert (state(sql_store), begun(sql_store).is_loaded) == (DONE, True)
    expire(NOW + KEPT_MS)
    assert state(sql_store) == DONE
    expire(NOW + 2 + KEPT_MS)
    assert state(sql_store) is None


def test_an_aborted_load_leaves_no_chunks_and_refuses_new_ones(sql_store: SqlStore) -> None:
    load = begun(sql_store)
    written(sql_store, load, 0, *slice_of(0, 0, 1))
    claim, _ = sql_store.loads.claim(load.id, load.run, 1)
    sql_store.loads.put(claim, slice_of(0, 0))
    assert sql_store.loads.abort(load.id, NOW)
    assert (left(sql_store), state(sql_store)) == ([], ABORTED)
    for write in (
        lambda: sql_store.loads.put(claim, slice_of(1, 0)),
        lambda: sql_store.loads.finish(claim, 2),
        lambda: sql_store.loads.claim(load.id, load.run, 2),
        lambda: commit(sql_store, load, {}),
    ):
        with pytest.raises(LoadEnded, match="the load 'monday' is aborted; nothing more of it was written"):
            write()
    assert left(sql_store) == []


@pytest.mark.parametrize("beside", [4, 3])
def test_a_load_whose_abort_was_killed_leaves_no_chunks(
    sql_store: SqlStore, sql_holder: Holder, monkeypatch: pytest.MonkeyPatch, beside: int
) -> None:
    monkeypatch.setattr(loads, "CHUNKS_BESIDE", beside)
    load = begun(sql_store)
    written(sql_store, load, 0, *slice_of(0, 0, 1), *slice_of(1, 0, 1), *slice_of(2, 0, 1))
    monkeypatch.setattr(SqlLoads, "_clear", lambda *_: False)  # the process is killed
    assert sql_store.loads.abort(load.id, NOW)
    counts = [len(left(sql_store))]
    for now_ms in (NOW, NOW + 1 + KEPT_MS, NOW + 1 + KEPT_MS):
        sql_store.expire(0, sql_holder.epoch, now_ms, now_ms)
        counts.append(len(left(sql_store)))
    assert counts == [6, 6 - beside, 0, 0]
    assert state(sql_store) is None
    with sql_store.database.reading() as connection:
        assert connection.scalar(select(func.count()).select_from(load_part)) == 0


def test_abort_of_a_run_spares_a_later_run_and_an_aborted_load_is_begun_again(sql_store: SqlStore) -> None:
    first = begun(sql_store)
    second = begun(sql_store)
    assert (second.id, second.run) == (first.id, first.run + 1)
    assert not sql_store.loads.abort(first.id, NOW, run=first.run)
    assert state(sql_store) == OPEN
    assert sql_store.loads.abort(first.id, NOW)
    again = begun(sql_store)
    assert (again.id, again.run, again.state, again.created_ms) == (first.id, 3, OPEN, first.created_ms)
    commit(sql_store, again, {0: written(sql_store, again, 0, *slice_of(0, 0))})


def raced(*calls: Callable[[], R], between: Callable[[], None] = lambda: None) -> list[R | LoadEnded]:
    """Make the calls in threads that begin at once with ``between``; returns their results, a LoadEnded as well."""
    start = threading.Barrier(len(calls) + 1)

    def guarded(call: Callable[[], R]) -> R | LoadEnded:
        start.wait()
        try:
            return call()
        except LoadEnded as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        results = [pool.submit(guarded, call) for call in calls]
        start.wait()
        between()
        return [one.result() for one in results]


def write_for_ever(store: SqlStore, load: BulkLoad, part: int) -> None:
    claim, _ = store.loads.claim(load.id, load.run, part)
    for number in itertools.count():
        store.loads.put(claim, slice_of(number, 0, 1))


def was_aborted(store: SqlStore, load: BulkLoad) -> bool:
    """Whether an abort got its turn: SQLite does not queue writers, and two that never pause may keep a third out."""
    try:
        assert store.loads.abort(load.id, NOW)
    except StoreError as error:
        if "nothing was written" not in str(error):
            raise
        return False
    return True


def test_abort_against_parts_that_run(make_sql_store: MakeSqlStore) -> None:
    """The abort comes at a random moment: a writer without the fence left 1,500,000 rows behind."""
    stores = [make_sql_store() for _ in range(3)]
    for turn in range(8):
        load = begun(stores[0], f"turn {turn}")

        def abort(load: BulkLoad = load, turn: int = turn) -> None:
            for _ in range(turn):  # a little later each time
                stores[0].loads.by_name(load.name)
            while not was_aborted(stores[0], load):
                pass

        parts = [partial(write_for_ever, stores[part + 1], load, part) for part in range(2)]
        assert all(isinstance(one, LoadEnded) for one in raced(*parts, between=abort))
        assert left(stores[0]) == []


def test_a_second_attempt_replaces_the_chunks_of_the_first(sql_store: SqlStore) -> None:
    load = begun(sql_store)
    first, there = sql_store.loads.claim(load.id, load.run, 0)
    assert there == {}
    sql_store.loads.put(first, [*slice_of(0, 0, 1, digest="a"), *slice_of(1, 0, digest="a"), *slice_of(2, 0)])
    second, there = sql_store.loads.claim(load.id, load.run, 0)
    assert there == {0: WrittenSlice("a", 6), 1: WrittenSlice("a", 3), 2: WrittenSlice("d", 3)}
    with pytest.raises(LoadEnded, match="a later attempt took over part 0; this attempt writes nothing more"):
        sql_store.loads.put(first, slice_of(3, 0))
    with pytest.raises(LoadEnded, match="took over"):
        sql_store.loads.finish(first, 1)
    sql_store.loads.put(second, slice_of(1, 1, digest="b"))
    sql_store.loads.finish(second, 2)
    assert left(sql_store) == [(0, 0, 0), (0, 0, 1), (0, 1, 1)]
    with pytest.raises(LoadEnded, match="a later attempt than the one to commit took over part 0; nothing was loaded"):
        commit(sql_store, load, {0: PartResult(first.attempt, 9)})
    with pytest.raises(LoadEnded, match="part 0 does not have the 10 messages of its attempt; nothing was loaded"):
        commit(sql_store, load, {0: PartResult(second.attempt, 10)})
    assert payloads(sql_store) == []
    commit(sql_store, load, {0: PartResult(second.attempt, 9)})
    assert payloads(sql_store, shard=1) == [b"0/1 a", b"1/1 b"]


def write_all(store: SqlStore, load: BulkLoad, digest: str, count: int, won: list[tuple[str, int, str]]) -> None:
    claim, _ = store.loads.claim(load.id, load.run, 0)
    for number in range(count):
        store.loads.put(claim, slice_of(number, 0, digest=digest))
    store.loads.finish(claim, count)
    won.append((digest, count, claim.attempt))


@pytest.mark.slow
def test_two_attempts_of_one_part_at_once(make_sql_store: MakeSqlStore) -> None:
    first, second = make_sql_store(), make_sql_store()
    for turn in range(8):
        load, won = begun(first, f"turn {turn}"), list[tuple[str, int, str]]()
        raced(partial(write_all, first, load, "a", 10, won), partial(write_all, second, load, "b", 11, won))
        digest, count, attempt = won[-1]  # one of the two attempts was over before the other began
        before = payloads(first, max_rows=10**6)
        commit(first, load, {0: PartResult(attempt, 3 * count)})
        added = payloads(first, max_rows=10**6)[len(before) :]
        assert added == [b"%d/0 %s" % (n, digest.encode()) for n in range(count)]


def test_an_abandoned_load_is_resumed(sql_store: SqlStore) -> None:
    """A run with other parts removes the chunks of the former parts."""
    old = begun(sql_store)
    late, _ = sql_store.loads.claim(old.id, old.run, 0)
    sql_store.loads.put(late, slice_of(0, 0, digest="same"))
    written(sql_store, old, 7, *slice_of(0, 0, 1))
    new = begun(sql_store)
    with pytest.raises(LoadEnded, match=r"was begun again by another process \(run 2, this process has run 1\)"):
        sql_store.loads.put(late, slice_of(1, 0))
    claim, there = sql_store.loads.claim(new.id, new.run, 0)
    assert there == {0: WrittenSlice("same", 3)}
    sql_store.loads.finish(claim, 1)
    commit(sql_store, new, {0: PartResult(claim.attempt, 3)})
    assert left(sql_store) == [(0, 0, 0)]
    assert payloads(sql_store) == [b"0/0 same"]


@pytest.mark.slow
def test_commit_against_a_part_that_comes_late(make_sql_store: MakeSqlStore) -> None:
    """Either the part or the commit is refused, as a whole."""
    stores = [make_sql_store() for _ in range(2)]
    outcomes = set()
    for turn in range(8):
        load = begun(stores[0], f"turn {turn}")
        parts = {0: written(stores[0], load, 0, *slice_of(0, 0))}

        def come_late(load: BulkLoad = load) -> str:
            claim, _ = stores[1].loads.claim(load.id, load.run, 0)
            stores[1].loads.put(claim, slice_of(0, 0, 1, digest="late"))
            return "written"

        def commit_it(load: BulkLoad = load, parts: dict[int, PartResult] = parts, turn: int = turn) -> str:
            for _ in range(turn % 4):
                stores[0].loads.by_name(load.name)
            return commit(stores[0], load, parts).state

        outcomes.add(tuple("refused" if isinstance(one, LoadEnded) else one for one in raced(come_late, commit_it)))
        stores[0].loads.abort(load.id, NOW)
    assert outcomes <= {("refused", COMMITTED), ("written", "refused")}
    assert not [one for one in left(stores[0]) if one[2] == 1], "something of a late part is there"


def test_loads_are_listed_with_their_remaining_chunks(sql_store: SqlStore) -> None:
    load = begun(sql_store)
    written(sql_store, load, 0, *slice_of(0, 0, 1))
    begun(sql_store, "tuesday")
    latest = [(one.load.name, one.load.state, one.chunks, one.rows) for one in sql_store.loads.latest()]
    assert latest == [("tuesday", OPEN, 0, 0), ("monday", OPEN, 2, 6)]
    assert len(sql_store.loads.latest(limit=1)) == 1


@pytest.mark.parametrize("committed", [False, True])
def test_a_store_with_an_unfinished_load_is_not_resharded(sql_store: SqlStore, committed: bool) -> None:
    load = begun(sql_store)
    parts = {0: written(sql_store, load, 0, *slice_of(0, 0))}
    if committed:
        commit(sql_store, load, parts)
    with pytest.raises(StoreUnusable, match=r"the load 'monday' is (open|committed); nothing was changed; "):
        sql_store.maintenance.reshard(3, lambda *_: 0, NOW)


def test_the_processes_of_a_run_join_it_and_a_later_run_fences_them(sql_store: SqlStore) -> None:
    loads = sql_store.loads
    first = loads.join("orders/41", 1, NOW)
    assert (first.state, first.run) == (OPEN, 1)
    assert loads.join("orders/41", 1, NOW + 1) == first, "another process of the run"
    old = written(sql_store, first, 0, *slice_of(0, 0))
    written(sql_store, first, 1, *slice_of(0, 0))
    later = loads.join("orders/41", 2, NOW + 2)
    assert (later.id, later.run, later.created_ms) == (first.id, 2, NOW)
    with pytest.raises(LoadEnded, match=r"begun again by another process \(run 2, this process has run 1\)"):
        loads.join("orders/41", 1, NOW + 3)
    with pytest.raises(LoadEnded):
        commit(sql_store, first, {0: old})
    claim, kept = loads.claim(later.id, later.run, 0)
    assert kept == {0: WrittenSlice("d", 3)}
    loads.finish(claim, 1)
    done = commit(sql_store, later, {0: PartResult(claim.attempt, 3)})
    assert (done.rows, payloads(sql_store)) == (3, [b"0/0 d"]), "without the part that only the first run had"
    assert loads.join("orders/41", 7, NOW + 4) == done
    aborted = loads.join("orders/42", 1, NOW)
    loads.abort(aborted.id, NOW)
    with pytest.raises(LoadEnded, match="the load 'orders/42' is aborted"):
        loads.join("orders/42", 1, NOW)
    assert loads.join("orders/42", 2, NOW).state == OPEN


def test_loads_are_found_by_a_prefix_and_forgotten_once_done(sql_holder: Holder, sql_store: SqlStore) -> None:
    for name in ("a%/1", "a%/2", "a%/3", "A%/1", "ab/1", "a%"):
        loaded(sql_store, name)
    assert [one.name for one in sql_store.loads.by_prefix("a%/")] == ["a%/1", "a%/2", "a%/3"]
    accepted = sql_store.read_loads(0, 6)
    sql_holder.apply(loaded=[one.id for one in accepted])
    sql_store.expire(0, sql_holder.epoch, NOW, NOW)
    found = sql_store.loads.by_prefix("a%/")
    assert [one.state for one in found] == [DONE, DONE, COMMITTED]
    sql_store.loads.forget([one.id for one in found[1:]])
    assert [one.name for one in sql_store.loads.by_prefix("a%/")] == ["a%/1", "a%/3"], "only what is wholly accepted"
    sql_store.loads.forget([])
