"""The inbox: every process puts items, and the holder deletes them in the change that carries them out.

Commands, answers, tombstones, watches, gates and stopped rows, the same on every store.
"""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_wheel.errors import Fenced, RequestWithdrawn
from celery_wheel.store.model import MESSAGES, STOPPED, UNANNOUNCED, Answer, Change, Gate, PassedOn, Tombstone, Watch
from celery_wheel.store.ports import Store
from celery_wheel.store.sql import control as desk
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


def test_reading_is_bounded_in_bytes_but_never_to_nothing_and_deletes_nothing(store: Store) -> None:
    """Otherwise one large item would stay, with all later items."""
    store.put_inbox(0, [("message", bytes(size)) for size in (3_000, 1_000, 1_000, 1_000, 5_000)])

    def sizes(max_bytes: int, limit: int = 10) -> list[int]:
        return [len(item.payload) for item in store.read_inbox(0, limit, max_bytes)]

    assert sizes(1) == [3_000]
    assert sizes(4_900) == [3_000, 1_000]
    assert sizes(5_200) == [3_000, 1_000, 1_000]  # encrypted items are larger
    assert sizes(100_000) == [3_000, 1_000, 1_000, 1_000, 5_000]
    assert sizes(100_000, limit=2) == [3_000, 1_000]
    assert len(contents(store, limit=3)) == 3
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
    item = store.put_command(1, "cancel", b"{}")
    assert (store.has_arrivals(0), store.has_arrivals(1)) == (False, True)
    assert store.read_inbox(0, 10) == []
    assert [(one.id, one.kind, one.payload) for one in store.read_inbox(1, 10)] == [(item, "cancel", b"{}")]


def test_items_of_several_shards_are_put_in_together(store: Store) -> None:
    for nothing in ({}, {0: []}):
        store.put_inboxes(nothing)
    assert contents(store) == []
    store.put_inboxes({0: [("message", b"0")], 1: [("message", b"1"), ("cancel", b"2")]})
    assert contents(store, shard=0) == [("message", b"0")]
    assert contents(store, shard=1) == [("message", b"1"), ("cancel", b"2")]


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


def test_many_writers_lose_nothing_while_another_process_holds_the_shard(make_store: Callable[[], Store]) -> None:
    reader = Holder(make_store()).store
    stores = [make_store() for _ in range(3)]

    def put(number: int) -> None:
        for n in range(20):
            stores[number].put_inbox(0, [("message", bytes([number, n]))])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(put, range(3)))
    found = [payload for _, payload in contents(reader)]
    assert sorted(found) == [bytes([number, n]) for number in range(3) for n in range(20)]
    for number in range(3):
        assert [payload[1] for payload in found if payload[0] == number] == list(range(20))


MINUTE = 60_000

CANCEL = 0, "cancel", b"{}"


def command_id() -> str:
    return str(uuid.uuid4())


def test_an_answer_is_committed_with_the_deletion_of_its_command(holder: Holder) -> None:
    store, id_, answer = holder.store, command_id(), {"a": "done", "ü": "too_late", "key": {"done": 2, "too_late": 0}}
    item = store.put_command(0, "cancel", b"{}")
    assert store.answer(id_) is None
    holder.apply(inbox=[item], answers=[Answer(id_, answer, NOW)])
    assert store.answer(id_) == answer
    assert store.read_inbox(0, 10) == []


def test_the_first_answer_stays_where_two_commands_have_one_id(holder: Holder) -> None:
    """Two such commands come from no caller, but a row that is written by hand must not end the holder's state."""
    id_ = command_id()
    holder.apply(answers=[Answer(id_, {"a": "done"}, NOW)])
    holder.apply(answers=[Answer(id_, {"a": "unknown"}, NOW), Answer(command_id(), {"b": "done"}, NOW)])
    assert holder.store.answer(id_) == {"a": "done"}


def test_the_answers_to_many_commands_are_read_at_once(holder: Holder) -> None:
    answers = {command_id(): {str(n): "done"} for n in range(120)}
    holder.apply(answers=[Answer(id_, answer, NOW) for id_, answer in answers.items()])
    assert holder.store.answers([*answers, command_id(), next(iter(answers))]) == answers
    assert holder.store.answers([]) == {}


def test_withdraw_says_whether_it_came_in_time(holder: Holder) -> None:
    store = holder.store
    item = store.put_command(0, "cancel", b"{}")
    assert store.command_payload(item) == b"{}"
    assert store.withdraw(item, CANCEL)
    assert not store.withdraw(item, CANCEL)
    assert store.command_payload(item) is None
    assert store.read_inbox(0, 10) == []
    taken = store.put_command(0, "cancel", b"{}")
    assert taken != item
    holder.apply(inbox=[taken])
    assert not store.withdraw(taken, CANCEL)


def test_old_answers_and_tombstones_are_removed(holder: Holder) -> None:
    store, old, young = holder.store, command_id(), command_id()
    holder.apply(
        answers=[Answer(old, {"a": "done"}, NOW), Answer(young, {"b": "done"}, NOW + MINUTE)],
        tombstones=[Tombstone("a", NOW + MINUTE, "paid", "anna"), Tombstone("b", NOW + 2 * MINUTE, "", "")],
    )
    store.expire(0, holder.epoch, NOW + MINUTE + 1, NOW + MINUTE)
    assert (store.answer(old), store.answer(young)) == (None, {"b": "done"})
    assert [*store.tombstone_ids(0)] == ["b"]


def test_a_fenced_holder_expires_nothing(holder: Holder) -> None:
    epoch = holder.epoch
    holder.apply(tombstones=[Tombstone("a", NOW, "", "")])
    holder.acquire()
    with pytest.raises(Fenced):
        holder.store.expire(0, epoch, NOW + 1, NOW)
    assert [*holder.store.tombstone_ids(0)] == ["a"]


def test_tombstones_are_found_by_their_task_ids_and_a_later_one_replaces_the_earlier(holder: Holder) -> None:
    holder.apply(tombstones=[Tombstone("task-7", NOW, "first", "ben")])
    wanted = {f"task-{n}": Tombstone(f"task-{n}", NOW + n, "paid", "anna") for n in range(120)}
    holder.apply(tombstones=list(wanted.values()))
    store = holder.store
    assert store.tombstones(0, []) == store.tombstones(1, ["task-7"]) == {}
    assert store.tombstones(0, ["task-7", "unknown", "task-7"]) == {"task-7": wanted["task-7"]}
    assert store.tombstones(0, list(wanted)) == wanted


def test_the_ids_of_all_tombstones_are_read_in_pages(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "IDS_AT_ONCE", 7)
    holder.apply(tombstones=[Tombstone(f"Task-{number}", NOW, "", "") for number in range(21)])
    assert sorted(holder.store.tombstone_ids(0)) == sorted(f"Task-{number}" for number in range(21))
    assert list(holder.store.tombstone_ids(1)) == []


def test_watchers_are_found_by_key_in_order_of_position(holder: Holder) -> None:
    rows = holder.accept(NOW + 2, NOW + 1, NOW)
    holder.apply(watches=[Watch("watch", "order:42", row.id) for row in rows[:2]])
    bounded = Watch("unique", "order:42", rows[2].id, latest_ms=NOW + 5, window_ms=7)
    holder.apply(watches=[Watch("watch", "order:43", rows[2].id), bounded])
    found = holder.store.watchers(0, "watch", ["order:42"])
    assert [claim for claim, _ in found] == [Watch("watch", "order:42", row.id) for row in (rows[1], rows[0])]
    assert [row.id for _, row in found] == [rows[1].id, rows[0].id]
    assert [claim for claim, _ in holder.store.watchers(0, "unique", ["order:42"])] == [bounded]
    assert found[0][1].task_id == rows[1].message.task_id
    assert found[0][1].parts().body == rows[1].message.body
    many = [f"order:{n}" for n in range(200)]
    assert [row.id for _, row in holder.store.watchers(0, "watch", many)] == [rows[n].id for n in (2, 1, 0)]
    assert holder.store.watchers(1, "watch", many) == []
    assert holder.store.watchers(0, "watch", []) == []


def test_a_stopped_row_watches_nothing(holder: Holder) -> None:
    rows = holder.accept(NOW, NOW + 1)
    holder.apply(watches=[Watch("watch", "k", row.id) for row in rows])
    holder.apply(moves=[holder.stop(rows[0])])
    assert [row.id for _, row in holder.store.watchers(0, "watch", ["k"])] == [rows[1].id]
    holder.apply(unwatched=[rows[1].id])
    assert holder.store.watchers(0, "watch", ["k"]) == []


def test_a_completed_row_keeps_its_unique_key(holder: Holder) -> None:
    rows = holder.accept(NOW, NOW + 1)
    holder.apply(watches=[Watch(kind, "k", row.id) for row in rows for kind in ("watch", "unique")])
    holder.apply(completed=[rows[0].id])
    assert [row.id for _, row in holder.store.watchers(0, "watch", ["k"])] == [rows[1].id]
    assert [row.id for _, row in holder.store.watchers(0, "unique", ["k"])] == [row.id for row in rows]
    holder.apply(unwatched=[rows[0].id])
    assert [row.id for _, row in holder.store.watchers(0, "unique", ["k"])] == [rows[1].id]


def test_a_gate_is_set_replaced_and_opened(holder: Holder) -> None:
    second, everything = Holder(holder.store, 1), Gate("all", "", "paused", 0, "", "", 1)
    slow = Gate("queue", "mail", "slow", 5 * MINUTE, "backlog", "anna", NOW)
    holder.apply(gates=[Gate("queue", "mail", "paused", 0, "outage", "anna", NOW), everything])
    second.apply(gates=[slow])
    holder.apply(gates=[slow], opened=[("all", "")])
    assert holder.store.gates(0) == [slow]
    assert second.store.gates(1) == [slow]
    holder.apply(opened=[("queue", "mail"), ("task", "never")])
    assert holder.store.gates(0) == []
    assert second.store.gates(1) == [slow]


def test_stopped_rows_are_found_by_task_id_with_their_last_outcome(holder: Holder) -> None:
    first, second, third = holder.accept(NOW, NOW + 1, NOW + 2)
    for row, kind in ((second, "parked"), (first, "rejected")):
        holder.apply(moves=[holder.stop(row)], outcomes=[holder.outcome(row.id, kind)])
    holder.apply(outcomes=[holder.outcome(second.id, "rejected", NOW + 1)])
    names = [one.message.task_id for one in (first, second, third)]
    found = holder.store.stopped_rows(0, [*names, "nobody"])
    expected = [(names[1], "rejected", second.id), (names[0], "rejected", first.id)]
    assert [(row.task_id, kind, row.id) for kind, row in found] == expected
    assert found[0][1].parts().body == second.message.body
    assert holder.store.stopped_rows(1, names) == []


def test_rows_are_found_by_number_wherever_they_are(holder: Holder) -> None:
    first, second = holder.accept(NOW, NOW + 1)
    holder.apply(moves=[holder.stop(first)])
    found = {row.id: row.lane for row in holder.store.rows(0, [second.id, first.id, 7 << 30])}
    assert found == {first.id: STOPPED, second.id: 0}
    assert holder.store.rows(1, [first.id]) == []
    assert holder.store.rows(0, []) == []


def test_a_cancelled_row_is_found_until_it_was_announced(holder: Holder) -> None:
    rows = holder.accept(NOW + 2, NOW + 1, NOW)
    for row in rows:
        holder.apply(moves=[holder.stop(row)], watches=[Watch(UNANNOUNCED, "", row.id)])
    store = holder.store
    assert [one.id for one in store.unannounced(0, -1, 2)] == [rows[0].id, rows[1].id]
    [last] = store.unannounced(0, rows[1].id, 2)
    assert (last.task_id, last.parts().body) == (rows[2].message.task_id, rows[2].message.body)
    holder.apply(unwatched=[rows[1].id])
    assert [one.id for one in store.unannounced(0, -1, 9)] == [rows[0].id, rows[2].id]
    assert store.unannounced(1, -1, 9) == []


def test_either_the_withdrawal_or_the_command_counts(holder: Holder) -> None:
    """The sender of a withdrawn command was promised that it has no effect."""
    store, id_ = holder.store, command_id()
    kept, gone, other = (store.put_command(0, "cancel", b"{}") for _ in range(3))
    assert store.withdraw(gone, CANCEL)
    with pytest.raises(RequestWithdrawn):
        holder.apply(inbox=[gone], answers=[Answer(id_, {"a": "done"}, NOW)], tombstones=[Tombstone("a", NOW, "", "")])
    with pytest.raises(RequestWithdrawn):
        holder.apply(inbox=[kept, gone, other])
    assert store.answer(id_) is None
    assert [*store.tombstone_ids(0)] == []
    assert [item.id for item in store.read_inbox(0, 10)] == [kept, other]
    holder.apply(inbox=[kept, other])
    assert store.read_inbox(0, 10) == []


def test_an_item_that_is_passed_on_keeps_its_id(holder: Holder) -> None:
    """Its sender can still withdraw it, unless its payload has changed: then a part of it was carried out."""
    store, payload = holder.store, CANCEL[2]
    whole, part, gone = (store.put_command(*CANCEL) for _ in range(3))
    assert store.withdraw(gone, CANCEL)
    with pytest.raises(RequestWithdrawn):
        holder.apply(inbox=[whole], passed_on=[PassedOn(gone, 1, payload)])
    holder.apply(passed_on=[PassedOn(whole, 1, payload), PassedOn(part, 1, b"{} ")])
    assert store.read_inbox(0, 9) == []
    assert [(item.id, item.payload) for item in store.read_inbox(1, 9)] == [(whole, payload), (part, b"{} ")]
    assert store.command_payload(part) == b"{} "
    assert store.withdraw(whole, CANCEL)
    assert [item.id for item in store.read_inbox(1, 9)] == [part]


def test_an_item_with_another_payload_is_not_withdrawn(sql_holder: Holder) -> None:
    store, item = sql_holder.store, sql_holder.store.put_command(*CANCEL)
    sql_holder.apply(passed_on=[PassedOn(item, 1, b"{} ")])
    assert not store.withdraw(item, CANCEL)
    assert [item.id for item in store.read_inbox(1, 9)] == [item]
