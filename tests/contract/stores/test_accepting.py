"""Accepted messages are in the store, whole, once, and known."""

import uuid
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select

from celery_wheel.errors import StoreError
from celery_wheel.store.model import (
    HOUR_MS,
    ORIGIN,
    STOPPED,
    Change,
    LaneState,
    MessageBlock,
    NewBlock,
    TallyKey,
    join,
    split,
)
from celery_wheel.store.ports import Store
from celery_wheel.store.sql.schema import timer
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import EVERYTHING, NOW, Holder, hour_of, ids, message, place
from tests.kit.rows import values_of

UNICODE = "Größe-漢字-🎡-\u200f-'\"%s;--"
LONG = "x" * 600


def test_a_stored_row_has_every_field_of_its_message(holder: Holder) -> None:
    new = holder.row(
        NOW + 5,
        lane=3,
        eta_ms=NOW + 4,
        task="app.mail",
        exchange="news",
        exchange_type="topic",
        routing_key="a.b",
        queue="mail",
        priority=9,
        key="order:42",
        group="order:42",
        expires_ms=NOW + 99,
        queue_expires_ms=60_000,
        misfire_ms=5_000,
        headers=b'{"h": 1}',
        properties=b'{"p": 2}',
        body=b"\x00\xffbody",
        signed=True,
    )
    holder.apply(rows=[new])
    [row] = holder.slice(lane=3)
    sent = new.message
    for name, value in values_of(row).items():
        expected = getattr(new, name) if name in ("id", "lane", "due_ms", "seq") else getattr(sent, name)
        assert value == expected, name
        assert type(value) is type(expected), name
    assert row.size == sent.size == 8 + 8 + 6


@pytest.mark.parametrize("own_ids", [False, True], ids=["ids of the envelopes", "ids of tasks"])
def test_a_block_is_stored_as_its_messages_one_by_one_are(sql_store: SqlStore, *, own_ids: bool) -> None:
    like = message(task="app.mail", queue="mail", priority=3, misfire_ms=5_000, queue_expires_ms=60_000)
    plain = [join(b"{}", b'{"n": 1}', b""), join(b"", b"", b""), join(b'{"h": 2}', b"{}", b"\x1e\xff" * 900)]
    envelopes = [message().envelope_id for _ in plain]
    tasks = ["a" * 36, "é", envelopes[2]] if own_ids else envelopes
    keys, groups, expires = ["a", None, "ü"], ["a", None, "ü"], [None, NOW + 9, 0]
    block = MessageBlock(like, envelopes, tasks, [NOW, NOW - 9, NOW], [NOW - 1, 0, 5], keys, groups, expires, plain)
    holders = Holder(sql_store, 0), Holder(sql_store, 1)
    first_ids = [min([one.seq() for _ in plain]) for one in holders]
    news = [NewBlock(first, 2, [NOW + 7, NOW + 3, NOW + 7], NOW, block) for first in first_ids]
    holders[0].apply(blocks=news[:1], rows=[holders[0].row()], rejects=[holders[0].reject()])
    holders[1].apply(rows=news[1].rows())
    # Encrypted, the same bytes are never the same; their parts are compared below.
    others = ("shard", "id", "seq", *(("message",) if sql_store.catalogue.seal.keys else ()))
    names = [column.name for column in timer.c if column.name not in others]
    with sql_store.database.reading() as connection:
        found = [
            connection.execute(select(timer).where(timer.c.shard == shard).order_by(timer.c.id)) for shard in (0, 1)
        ]
        mixed, one_by_one = [[row._asdict() for row in rows] for rows in found]
    assert [row["id"] for row in mixed[:3]] == [row["seq"] for row in mixed[:3]] == list(news[0].ids)
    assert [[row[name] for name in names] for row in mixed[:3]] == [[row[name] for name in names] for row in one_by_one]
    assert sql_store.known(0, envelopes).keys() == set(envelopes)
    assert [row.parts() for row in sorted(holders[0].slice(lane=2), key=lambda row: row.id)] == list(map(split, plain))


@pytest.mark.parametrize("count", [1, 50], ids=["one insert", "many rows at once"])
def test_the_group_of_each_row_is_kept(sql_holder: Holder, sql_store: SqlStore, count: int) -> None:
    groups = ["tenant:ü" if n % 2 else None for n in range(count)]
    rows = [sql_holder.row(NOW + n, key=group, group=group) for n, group in enumerate(groups)]
    sql_holder.apply(rows=rows)
    assert [row.group for row in sql_holder.slice()] == groups
    assert [one.group for one in sql_store.browse.tasks([row.id for row in rows])] == groups
    assert [one.message.group for one in sql_store.handover.pending(0)] == groups


@pytest.mark.parametrize(("text", "number"), [(None, None), ("", 0)], ids=["missing", "nothing and zero"])
def test_nothing_and_zero_are_not_none(holder: Holder, text: str | None, number: int | None) -> None:
    sent = {"queue": text, "priority": number, "expires_ms": number, "queue_expires_ms": number}
    holder.accept(NOW, **sent, headers=b"", properties=b"", body=b"")
    [row] = holder.slice()
    found = values_of(row)
    assert {name: found[name] for name in sent} == sent
    assert row.parts() == (b"", b"", b"")


@pytest.mark.parametrize("text", [UNICODE, LONG], ids=["any script", "long"])
def test_names_in_any_script_and_long_ones_are_kept(holder: Holder, text: str) -> None:
    names = ("task_id", "task", "exchange", "exchange_type", "routing_key", "queue", "key")
    [new] = holder.accept(NOW, **dict.fromkeys(names, text), body=text.encode())
    [row] = holder.store.find(0, [text])
    assert (row.id, row.parts().body) == (new.id, text.encode())
    assert {getattr(row.route, name) for name in names[1:-1]} == {text}


def test_a_body_of_ten_megabytes_is_kept(holder: Holder) -> None:
    body = bytes(range(256)) * (10 * 2**20 // 256)
    holder.accept(NOW, body=body)
    assert holder.slice()[0].parts().body == body
    assert holder.store.summary(0, 0, *EVERYTHING).bytes == len(body) + 4


def test_numbers_up_to_63_bits_are_kept(holder: Holder) -> None:
    new = holder.row(2**62, eta_ms=2**63 - 1, expires_ms=2**63 - 1)
    new.id = new.seq = 2**61
    holder.store.apply(0, holder.epoch, Change(seq=2**61, rows=[new]))
    [row] = holder.store.slice(0, 0, ORIGIN, row_end := type(ORIGIN)(2**63 - 1, 2**63 - 1))
    assert (row.id, row.due_ms, row.eta_ms) == (2**61, 2**62, 2**63 - 1)
    assert holder.store.count(0, 0, ORIGIN, row_end) == 1


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1700])
def test_known_takes_any_number_of_ids_and_knows_the_accepted_ones(holder: Holder, count: int) -> None:
    envelopes = [row.message.envelope_id for row in holder.accept(NOW + 1, *[NOW] * count)][1:]
    mixed = [id_ for one in envelopes for id_ in (one, str(uuid.uuid4()))]
    assert holder.store.known(0, [*mixed, *envelopes[:1]]).keys() == set(envelopes)


def test_rejected_dispatched_and_stopped_ids_are_known(holder: Holder) -> None:
    reject, (gone, cancelled) = holder.reject(), holder.accept(NOW, NOW + 1)
    holder.settle(ORIGIN, place(gone))
    holder.apply(rejects=[reject], moves=[holder.stop(cancelled)])
    envelopes = {gone.message.envelope_id, cancelled.message.envelope_id, reject.unreadable.envelope_id}
    assert holder.store.known(0, list(envelopes)).keys() == envelopes


def test_another_shard_knows_nothing_of_it(store: Store) -> None:
    [row] = Holder(store).accept(NOW)
    other = Holder(store, shard=1)
    assert store.known(1, [row.message.envelope_id]).keys() == set()
    other.apply(rows=[other.row(NOW, envelope_id=row.message.envelope_id)])
    assert store.known(1, [row.message.envelope_id]).keys() == {row.message.envelope_id}
    assert store.count(0, 0, *EVERYTHING) == store.count(1, 0, *EVERYTHING) == 1


def test_a_rejected_message_is_stopped_with_its_bytes(holder: Holder) -> None:
    reject = holder.reject(b"\x80garbage", at_ms=NOW + 7)
    holder.apply(rejects=[reject])
    assert holder.ids() == []
    [row] = holder.slice(lane=STOPPED)
    assert (row.id, row.lane, row.due_ms, row.seq) == (reject.id, STOPPED, NOW + 7, reject.id)
    if isinstance(holder.store, SqlStore):  # the model keeps the bytes elsewhere
        assert row.parts().body == b"\x80garbage"


def test_a_change_that_fails_leaves_nothing(sql_holder: Holder) -> None:
    [old] = sql_holder.accept(NOW)
    before = sql_holder.highest_seq
    again = sql_holder.row(NOW, envelope_id=old.message.envelope_id)
    parts: dict[str, Any] = {
        "rows": [sql_holder.row(NOW), again],
        "rejects": [sql_holder.reject()],
        "moves": [sql_holder.move(old, NOW + 9)],
        "lanes": [LaneState(4, ORIGIN, ORIGIN)],
        "tally": {TallyKey(1, "q", "t"): 5},
    }
    with pytest.raises(StoreError, match="has one of these messages or ids already"):
        sql_holder.apply(**parts)
    assert [(row.id, row.due_ms) for row in sql_holder.slice()] == [(old.id, NOW)]
    assert sql_holder.ids(STOPPED) == []
    assert [lane.lane for lane in sql_holder.store.lanes(0)] == [0]
    assert sql_holder.store.pending(0) == {}
    assert sql_holder.store.state(0).seq == before
    sql_holder.accept(NOW)


@pytest.mark.parametrize(
    "parts", [{"priority": 2**70}, {"task": "\ud800"}, {}], ids=["a number", "no text", "a later part"]
)
def test_a_value_that_no_database_can_store_is_a_store_error(sql_holder: Holder, parts: dict[str, Any]) -> None:
    settlements = [] if parts else [sql_holder.settlement(ORIGIN, ORIGIN, weight=2**70)]
    with pytest.raises(StoreError, match=r"does not fit into the store|cannot keep a value"):
        sql_holder.apply(rows=[sql_holder.row(NOW), sql_holder.row(NOW, **parts)], settlements=settlements)
    assert sql_holder.ids() == []
    sql_holder.accept(NOW)


def test_one_envelope_is_accepted_once(holder: Holder) -> None:
    [row] = holder.accept(NOW)
    with pytest.raises((StoreError, AssertionError)):
        holder.accept(NOW, envelope_id=row.message.envelope_id)
    assert holder.ids() == [row.id]


def test_the_highest_seq_is_kept_and_never_goes_back(holder: Holder) -> None:
    """Two threads may commit in another order than that of their seqs."""
    for seq, expected in ((512, 512), (0, 512), (256, 512), (1024, 1024)):
        holder.store.apply(0, holder.epoch, Change(seq=seq))
        assert holder.store.state(0).seq == expected


def test_pending_counts_of_a_shard_are_added_up_and_those_of_zero_left_out(store: Store) -> None:
    first, second = Holder(store), Holder(store, shard=1)
    key, other = TallyKey(500_000, UNICODE, UNICODE), TallyKey(500_000, "mail", "app.remind")
    first.apply(tally={key: 3, other: 1})
    first.apply(tally={key: 2})
    second.apply(tally={key: 5})
    first.apply(tally={key: -4, other: 0})
    assert (store.pending(0), store.pending(1)) == ({key: 1, other: 1}, {key: 5})
    first.apply(tally={key: -1, other: -1})
    assert store.pending(0) == {}
    first.apply(tally={key: 7})
    assert store.pending(0) == {key: 7}


def test_a_task_is_found_by_its_id_in_every_lane(holder: Holder) -> None:
    late, early = holder.row(NOW + 9, task_id="t-1"), holder.row(NOW + 3, task_id="t-1", lane=5)
    stopped = holder.row(NOW, task_id="t-1")
    holder.apply(rows=[late, early, stopped, holder.row(NOW, task_id="t-2")])
    holder.apply(moves=[holder.stop(stopped)])
    holder.apply(lanes=[LaneState(0, place(late), place(late))])
    [first, dispatched] = holder.store.find(0, ["t-1"])
    assert (first.id, dispatched.id, dispatched.parts().body) == (early.id, late.id, late.message.body)
    assert holder.store.find(0, ["t-3"]) == holder.store.find(1, ["t-1"]) == []


def test_thousands_of_rows_and_of_their_counts_go_in_at_once(holder: Holder) -> None:
    rows = [holder.row(NOW + n * 7_919 % 1_000 * HOUR_MS, queue=f"q{n % 3}") for n in range(5_000)]
    counts = Counter(map(hour_of, rows))
    holder.apply(rows=rows, tally=counts)
    assert holder.ids() == ids(sorted(rows, key=place))
    assert set(counts.values()) == {1, 2}
    assert holder.store.pending(0) == counts
    holder.apply(tally=dict.fromkeys(counts, -1))
    assert holder.store.pending(0) == {one: 1 for one, n in counts.items() if n == 2}


def test_an_envelope_id_is_the_same_in_capitals(sql_holder: Holder) -> None:
    envelope_id = message().envelope_id[:-4] + "ABCD"
    sql_holder.accept(NOW, envelope_id=envelope_id)
    assert sql_holder.store.known(0, [envelope_id, envelope_id.lower()]).keys() == {envelope_id, envelope_id.lower()}
