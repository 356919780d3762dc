"""Bulk loads are accepted in parts beside other messages, completely and once."""

from __future__ import annotations

import json
import uuid

import pytest

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.intake.stored_form import unpack_messages
from celery_wheel.engine.round import Limits, run_round
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.errors import StoreError
from celery_wheel.store.block import MessageBlock
from celery_wheel.store.message_pack import BODY, CREATED_MS, ENVELOPE, ETA_MS, ID, KEY, WHOLE, PackTemplate, pack
from celery_wheel.store.model import COMMITTED, DONE, MESSAGES, STOPPED, Message, Unreadable
from tests.unit.engine.conftest import START_MS, Rig

LIMITS = Limits(bulk_count=2)


def message_of(task_id: str, delay_ms: int = 1_000) -> Message:
    envelope_id = str(uuid.uuid5(uuid.NAMESPACE_OID, task_id))
    at_ms = START_MS + delay_ms
    return Message(
        envelope_id, task_id, "t", at_ms, START_MS, "", "direct", "q", "q", None, None, None, None, b"{}", b"{}", b"x"
    )


def load(rig: Rig, *task_ids: str, name: str = "monday") -> None:
    """Commit a load with one message in each chunk; the model's broker decodes a task id to its message."""
    loads, broker = rig.disk.loads, rig.broker
    broker.decode = lambda raw: message_of(raw.decode())  # type: ignore[method-assign]
    run = loads.begin(name)
    assert run is not None
    attempt = loads.claim(name, run, 0)
    for number, task_id in enumerate(task_ids):
        loads.put(name, run, 0, attempt, number, {0: pack([(WHOLE, [task_id])])})
    loads.commit(name, run, {0: attempt})


def accepted(rig: Rig) -> list[str]:
    return [rig.task_id(row_id) for row_id, one in sorted(rig.disk.shard(0).rows.items()) if one.row.lane != STOPPED]


def states(rig: Rig) -> list[str]:
    return [one.state for one in rig.disk.loads.loads.values()]


def test_a_load_is_accepted_in_parts_and_then_done() -> None:
    rig = Rig(limits=LIMITS)
    load(rig, "a", "b", "c")
    rig.run("tend", "ingest")
    assert accepted(rig) == ["a", "b"]
    rig.run("ingest", "keep_house")
    assert (accepted(rig), states(rig)) == (["a", "b", "c"], [DONE])
    rig.pass_time(1_000)
    rig.run()
    assert rig.pushed == ["a", "b", "c"]


def test_an_open_load_is_not_accepted() -> None:
    rig = Rig()
    loads = rig.disk.loads
    run = loads.begin("monday")
    assert run is not None
    loads.put("monday", run, 0, loads.claim("monday", run, 0), 0, {0: b"whatever"})
    rig.run("tend", "ingest")
    assert accepted(rig) == []


def test_messages_of_a_load_that_were_accepted_before_are_known() -> None:
    """Another load of the same key had them, or this load where an answer was lost."""
    rig = Rig()
    load(rig, "a", "b")
    rig.run("tend", "ingest")
    load(rig, "b", "c", "c", name="tuesday")
    rig.run("ingest")
    assert (accepted(rig), rig.engine.stats.known) == (["a", "b", "c"], 2)
    assert rig.store.read_loads(0, 100) == []


@pytest.mark.parametrize("point", ["before commit", "after commit"])
def test_rows_and_the_end_of_their_chunks_are_one_commit(point: str) -> None:
    rig = Rig()
    load(rig, "a", "b")
    rig.run("tend")
    rounds = rig.engine.ingest()
    for step in rounds:
        if step == "reserved":
            break

    def fault(at: str) -> None:
        if at == point:
            raise StoreError("simulated")

    rig.store.fault = fault
    run_round(rounds)
    there = len(rig.store.read_loads(0, 100))
    assert (there, len(accepted(rig))) == ((2, 0) if point == "before commit" else (0, 2))
    rig.store.fault = lambda at: None
    rig.run("tend", "ingest")
    assert accepted(rig) == ["a", "b"]


def test_a_chunk_that_cannot_be_read_is_rejected_and_stops_nothing() -> None:
    rig = Rig()
    load(rig, "a")
    part = rig.disk.loads.loads["monday"].parts[0]
    part[0, 0] = part[0, 0]._replace(payload=b"not packed")
    load(rig, "b", name="tuesday")
    rig.run("tend", "ingest")
    [rejected] = [one.message for one in rig.disk.shard(0).rows.values() if isinstance(one.message, Unreadable)]
    assert rejected.raw == b"not packed"
    assert "1 messages of a bulk load (chunk 1) cannot be read: ValueError('packed messages" in rejected.reason
    assert accepted(rig) == ["b"]
    assert states(rig) == [COMMITTED, COMMITTED]


def ask(rig: Rig, kind: str, *task_ids: str) -> str:
    number = str(uuid.uuid4())
    payload = json.dumps({"task_ids": task_ids, "id": number, "actor": "", "reason": ""})
    rig.store.put_inbox(0, [(kind, payload.encode())])
    return number


def test_commands_do_not_queue_behind_a_load() -> None:
    rig = Rig(limits=LIMITS)
    load(rig, *"abcdefghij")
    rig.run("tend", "ingest")
    known, coming, never = ask(rig, "move", "a"), ask(rig, "cancel", "h"), ask(rig, "move", "nobody")
    rig.run("ingest")
    assert rig.store.answer(known) == {"a": "done"}
    assert rig.store.answer(coming) == {"h": "unknown"}
    assert rig.store.answer(never) is None, "it might be in the load"
    rig.run("ingest", rounds=5)
    assert rig.store.answer(never) == {"nobody": "unknown"}
    assert "h" not in accepted(rig), "its tombstone met it"
    assert len(accepted(rig)) == 9


def put_messages(rig: Rig, *task_ids: str) -> None:
    rig.broker.decode = lambda raw: message_of(raw.decode())  # type: ignore[method-assign]
    payload = pack([(WHOLE, [task_id]) for task_id in task_ids])
    rig.store.put_inboxes({0: [(MESSAGES, payload, len(task_ids))]})


def test_packed_messages_of_the_inbox_are_accepted_in_one_commit_with_the_end_of_their_item() -> None:
    rig = Rig()
    put_messages(rig, "a", "b", "c")
    rig.run("tend", "ingest")
    assert (accepted(rig), rig.disk.shard(0).inbox) == (["a", "b", "c"], {})


def test_a_cancel_reaches_the_packed_messages_before_it_and_none_behind_it() -> None:
    rig = Rig()
    put_messages(rig, "a", "b")
    number = ask(rig, "cancel", "a")
    put_messages(rig, "c", "d")
    put_messages(rig, "e", "a2")
    rig.run("tend", "ingest")
    assert rig.store.answer(number) == {"a": "done"}
    assert accepted(rig) == ["b", "c", "d", "e", "a2"]


def test_packed_messages_of_which_an_earlier_command_names_one_wait_behind_it() -> None:
    rig = Rig()
    rig.run("tend")
    number = ask(rig, "cancel", "a")
    put_messages(rig, "a", "b")
    later = ask(rig, "cancel", "b")
    rig.run("ingest")
    assert (rig.store.answer(number), rig.store.answer(later), accepted(rig)) == ({"a": "unknown"}, None, [])


def test_packed_messages_of_the_inbox_that_cannot_be_read_are_rejected() -> None:
    rig = Rig()
    rig.store.put_inboxes({0: [(MESSAGES, b"not packed", 2)]})
    put_messages(rig, "b")
    rig.run("tend", "ingest")
    [rejected] = [one.message for one in rig.disk.shard(0).rows.values() if isinstance(one.message, Unreadable)]
    assert (rejected.raw, accepted(rig)) == (b"not packed", ["b"])


def test_the_wheel_queue_does_not_wait_for_a_load() -> None:
    rig = Rig(limits=LIMITS)
    load(rig, "a", "b", "c")
    rig.run("tend")
    rig.send("sent", 10)
    rig.run("ingest")
    assert accepted(rig) == ["sent", "a", "b"]


TEMPLATE = PackTemplate(
    '{"body": %s, "headers": {"task": "t", "id": %s, "wheel": {"v": 1, "task": "t", "id": %s, "task_id": %s, '
    '"eta_ms": %s, "created_ms": %s, "key": %s, "exchange": "", "exchange_type": "direct", "routing_key": "q", '
    '"queue": "q"}}, "properties": {"body_encoding": "utf-8"}}',
    (0, 1, 2, 1, 3, 4, 5),
    (BODY, ID, ENVELOPE, ETA_MS, CREATED_MS, KEY),
)


def block_payload(prefix: str, *delays_ms: int) -> bytes:
    """Return a pack that is read as a block; its tasks are named by the prefix and their number."""
    tasks = {f"{prefix}{number}": START_MS + delay for number, delay in enumerate(delays_ms)}
    rows = [
        ('"[]"', json.dumps(one), json.dumps(str(uuid.uuid5(uuid.NAMESPACE_OID, one))), str(eta_ms), "1", "null")
        for one, eta_ms in tasks.items()
    ]
    return pack([(TEMPLATE, row) for row in rows])


def put_block(rig: Rig, prefix: str, *delays_ms: int) -> None:
    rig.broker.decode = QueuedMessageReader().decode  # type: ignore[method-assign]
    rig.store.put_inboxes({0: [(MESSAGES, block_payload(prefix, *delays_ms), len(delays_ms))]})


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the sizes of the blocks of each change."""
    found: list[int] = []
    reserve = UnitOfWork.reserve

    def noted(work: UnitOfWork) -> None:
        found.extend(len(one.block) for one in work.change.blocks)
        reserve(work)

    monkeypatch.setattr(UnitOfWork, "reserve", noted)
    return found


def test_a_block_is_accepted_as_a_whole_and_published_in_the_order_of_its_due_times(kept: list[int]) -> None:
    rig = Rig(limits=Limits(window_ms=1_000))
    rig.run("tend")
    put_block(rig, "a", 900_000, 500_000, 500_000, 700_000)
    rig.run("ingest")
    assert (kept, rig.engine.stats.accepted) == ([4], 4)
    assert sum(rig.disk.shard(0).tally.values()) == 4
    assert rig.engine.state is not None
    assert rig.engine.state.window.rows == {}
    rig.pass_time(901_000)
    rig.run(rounds=3)
    assert rig.pushed == ["a1", "a2", "a3", "a0"]
    assert not any(rig.disk.shard(0).tally.values())


def test_a_block_of_which_some_are_due_soon_goes_into_the_window(kept: list[int]) -> None:
    rig = Rig()
    rig.run("tend", "prefetch")
    put_block(rig, "a", 40, -5, 10, 900_000)
    rig.run("ingest")
    rig.pass_time(50)
    rig.run("dispatch")
    assert (kept, rig.pushed) == ([4], ["a1", "a2", "a0"])


def test_a_block_with_a_known_message_is_taken_apart(kept: list[int]) -> None:
    rig = Rig()
    rig.run("tend")
    put_block(rig, "a", *[1_000] * 4)
    rig.run("ingest")
    put_block(rig, "a", *[1_000] * 5)
    put_block(rig, "b", *[1_000] * 4)
    put_block(rig, "b", *[1_000] * 4)
    rig.run("ingest")
    assert (kept, rig.engine.stats.known) == ([4], 8)
    assert accepted(rig) == [*(f"a{n}" for n in range(5)), *(f"b{n}" for n in range(4))]


def test_a_tombstone_or_a_revoked_stamp_reaches_the_messages_of_a_block(kept: list[int]) -> None:
    rig = Rig()
    rig.run("tend")
    ask(rig, "cancel", "a2")
    rig.run("ingest")
    put_block(rig, "a", *[1_000] * 4)
    rig.run("ingest")
    assert (kept, accepted(rig)) == ([], ["a0", "a1", "a3"])
    assert rig.engine.state is not None
    rig.engine.state.stamps.add({"tenant": "7"})
    put_block(rig, "b", *[1_000] * 4)
    rig.run("ingest")
    assert (kept, len(accepted(rig))) == ([], 7)


def test_a_command_on_a_task_of_a_block_waits_until_the_block_is_accepted() -> None:
    rig = Rig()
    rig.run("tend")
    number = ask(rig, "cancel", "a1")
    put_block(rig, "a", *[1_000] * 4)
    later = ask(rig, "cancel", "a3")
    rig.run("ingest")
    assert (rig.store.answer(number), rig.store.answer(later)) == ({"a1": "unknown"}, None)
    rig.run("ingest", rounds=2)
    assert (rig.store.answer(later), accepted(rig)) == ({"a3": "done"}, ["a0", "a1", "a2"])


def test_a_block_is_in_another_lane_while_due_time_is_behind_the_watermark(kept: list[int]) -> None:
    rig = Rig()
    rig.send("first", 1_000)
    rig.run("tend", "ingest", "prefetch")
    rig.pass_time(1_000)
    rig.run("dispatch", "settle")
    state = rig.engine.state
    assert state is not None
    assert state.lanes[0].watermark.due_ms == START_MS + 1_000
    with state.active():
        work = UnitOfWork(state, START_MS)
        [block] = unpack_messages(block_payload("a", 500, 600, 700, 1_500), QueuedMessageReader().decode)
        assert isinstance(block, MessageBlock)
        work.accept_block(block)
    assert work.change.blocks == []
    assert [row.lane == 0 for row in work.change.rows] == [False, False, False, True]
