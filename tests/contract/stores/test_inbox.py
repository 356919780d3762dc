"""The inbox: every process puts items, and the holder deletes them in the change that carries them out."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from celery_wheel.errors import Fenced
from celery_wheel.store.model import MESSAGES, Change
from celery_wheel.store.ports import Store
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW, Holder


def contents(store: Store, limit: int = 1000, shard: int = 0) -> list[tuple[str, bytes]]:
    return [(item.kind, item.payload) for item in store.read_inbox(shard, limit)]


def test_items_come_oldest_first_with_their_bytes(store: Store) -> None:
    store.put_inbox(0, [("message", b"\x00\xff"), ("cancel", "Größe".encode())])
    store.put_inbox(0, iter([("message", b"")]))
    assert contents(store) == [("message", b"\x00\xff"), ("cancel", "Größe".encode()), ("message", b"")]
    ids = [item.id for item in store.read_inbox(0, 10)]
    assert ids == sorted(set(ids))


def test_reading_is_bounded_and_deletes_nothing(store: Store) -> None:
    store.put_inbox(0, [("message", bytes([n])) for n in range(10)])
    assert contents(store, limit=3) == contents(store, limit=3) == [("message", bytes([n])) for n in range(3)]


def test_reading_is_bounded_in_bytes_but_never_to_nothing(store: Store) -> None:
    """Otherwise one large item would stay, with all later items."""
    store.put_inbox(0, [("message", bytes(size)) for size in (30, 10, 10, 10, 50)])

    def sizes(max_bytes: int, limit: int = 10) -> list[int]:
        return [len(item.payload) for item in store.read_inbox(0, limit, max_bytes)]

    assert sizes(1) == [30]
    assert sizes(49) == [30, 10]
    assert sizes(50) == [30, 10, 10]
    assert sizes(1_000) == [30, 10, 10, 10, 50]
    assert sizes(1_000, limit=2) == [30, 10]
    assert store.read_inbox(1, 10, 100) == []


def test_reading_is_bounded_in_packed_messages(sql_store: SqlStore) -> None:
    sql_store.put_inboxes({0: [("cancel", b""), (MESSAGES, b"500", 500), (MESSAGES, b"20", 20), ("message", b"")]})

    def payloads(max_rows: int) -> list[bytes]:
        return [item.payload for item in sql_store.read_inbox(0, 10, 1_000, max_rows)]

    assert payloads(500) == [b""]
    assert payloads(520) == [b"", b"500"]
    assert payloads(521) == [b"", b"500", b"20"]
    assert payloads(522) == [b"", b"500", b"20", b""]
    assert sql_store.handover.count_inbox() == 522


def test_a_holder_learns_of_items_of_other_processes(make_store: Callable[[], Store]) -> None:
    store, other = make_store(), make_store()
    for _ in range(2):
        assert not store.has_arrivals(0)
        other.put_inbox(0, [("message", b"")])
        assert store.has_arrivals(0)
        assert store.has_arrivals(0), "until the item is deleted"
        assert not store.has_arrivals(1)
        assert other.withdraw(store.read_inbox(0, 1)[0].id, (0, "message", b""))
    store.put_command(1, "cancel", b"{}")
    assert (store.has_arrivals(0), store.has_arrivals(1)) == (False, True)


def test_items_of_several_shards_are_put_in_together(store: Store) -> None:
    store.put_inboxes({0: [("message", b"0")], 1: [("message", b"1"), ("cancel", b"2")]})
    assert contents(store, shard=0) == [("message", b"0")]
    assert contents(store, shard=1) == [("message", b"1"), ("cancel", b"2")]


def test_putting_no_items_is_allowed(store: Store) -> None:
    store.put_inbox(0, [])
    store.put_inboxes({})
    store.put_inboxes({0: []})
    assert contents(store) == []


def test_every_process_can_put_items_while_another_holds_the_shard(make_store: Callable[[], Store]) -> None:
    holder, producer = Holder(make_store()), make_store()
    producer.put_inbox(0, [("message", b"x")])
    assert contents(holder.store) == [("message", b"x")]


def test_each_shard_has_its_own(store: Store) -> None:
    store.put_inbox(0, [("message", b"0")])
    store.put_inbox(1, [("message", b"1")])
    assert contents(store, shard=0) == [("message", b"0")]
    assert contents(store, shard=1) == [("message", b"1")]


def test_a_change_deletes_exactly_its_items(holder: Holder) -> None:
    """There is no cursor: an older item may appear after a younger one was deleted."""
    store = holder.store
    store.put_inbox(0, [("message", bytes([n])) for n in range(5)])
    items = store.read_inbox(0, 10)
    holder.apply(inbox=[items[3].id, items[1].id])
    assert contents(store) == [("message", b"\0"), ("message", b"\2"), ("message", b"\4")]
    holder.apply(inbox=[items[4].id, items[0].id])
    assert contents(store) == [("message", b"\2")]


def test_accepting_and_deleting_are_one_commit(holder: Holder) -> None:
    holder.store.put_inbox(0, [("message", b"x")])
    [item] = holder.store.read_inbox(0, 1)
    old = holder.epoch
    holder.acquire()
    row = holder.row(NOW)
    with pytest.raises(Fenced):
        holder.store.apply(0, old, Change(rows=[row], inbox=[item.id]))
    assert (contents(holder.store), holder.ids()) == ([("message", b"x")], [])
    holder.apply(rows=[row], inbox=[item.id])
    assert (contents(holder.store), holder.ids()) == ([], [row.id])


def test_an_id_is_never_used_twice(holder: Holder) -> None:
    """A deleted command cannot be taken for a newer one."""
    seen = []
    for _ in range(3):
        holder.store.put_inbox(0, [("cancel", b"x")])
        [item] = holder.store.read_inbox(0, 1)
        seen.append(item.id)
        holder.apply(inbox=[item.id])
    assert len(set(seen)) == 3


def test_many_writers_lose_nothing(make_store: Callable[[], Store]) -> None:
    reader = make_store()
    stores = [make_store() for _ in range(3)]

    def put(number: int) -> None:
        for n in range(20):
            stores[number].put_inbox(0, [("message", bytes([number, n]))])

    threads = [threading.Thread(target=put, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [payload for _, payload in contents(reader)]
    assert sorted(found) == [bytes([number, n]) for number in range(3) for n in range(20)]
    for number in range(3):
        assert [payload[1] for payload in found if payload[0] == number] == list(range(20))
