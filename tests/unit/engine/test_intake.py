"""One pending task of a unique key, messages that the store has or with the id of another task, and bulk loads, which
are accepted in parts beside other messages, completely and once.
"""

import json
import logging
import uuid

import pytest

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.intake.stored_form import unpack_messages
from celery_wheel.engine.round import Limits, Round, run_round
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.store.message_pack import BODY, CREATED_MS, ENVELOPE, ETA_MS, ID, KEY, WHOLE, PackTemplate, pack
from celery_wheel.store.model import (
    COMMITTED,
    DONE,
    MESSAGES,
    STOPPED,
    UNANNOUNCED,
    Message,
    MessageBlock,
    Unreadable,
    Watch,
)
from celery_wheel.values.ids import id_beside
from tests.unit.engine.conftest import START_MS, Rig


def states_by_task(rig: Rig) -> dict[str, str]:
    """Return the state of each task: pending, published, or the kind of its outcome."""
    data = rig.data
    kinds = {one.timer_id: one.kind for one in data.outcomes}
    found = {}
    for stored in data.rows.values():
        assert isinstance(stored.message, Message)
        row = stored.row
        left = "left" if row.lane != STOPPED and row.position <= data.lanes[row.lane].offset else "waits"
        found[stored.message.task_id] = kinds.get(row.id, left)
    return found


def claims(rig: Rig) -> list[Watch]:
    return [one for one in rig.data.watches if one.kind != UNANNOUNCED]


def reasons(rig: Rig) -> list[str]:
    return [one.reason for one in rig.data.outcomes]


@pytest.mark.parametrize("rounds", [0, 2], ids=["at once", "one after the other"])
@pytest.mark.parametrize(
    ("on_conflict", "expected", "pushed"),
    [
        (None, ["waits", "cancelled", "cancelled"], ["a"]),
        ("keep", ["waits", "cancelled", "cancelled"], ["a"]),
        ("reject", ["waits", "rejected", "rejected"], ["a"]),
        ("replace", ["cancelled", "cancelled", "waits"], ["c"]),
    ],
)
def test_one_of_three_tasks_with_a_unique_key_is_pending(
    rig: Rig, rounds: int, on_conflict: str | None, expected: list[str], pushed: list[str]
) -> None:
    for task_id in "abc":
        rig.send(task_id, 100, unique="report", on_conflict=on_conflict)
        rig.run(rounds=rounds)
    rig.run(rounds=2)
    assert list(states_by_task(rig).values()) == expected
    assert rig.pending() == 1
    rig.run(rounds=2, after_ms=100)
    assert rig.pushed == pushed
    assert rig.pending() == 0
    assert rig.engine.stats.rejected == expected.count("rejected")
    assert rig.engine.stats.guard_trips == 0


def test_reasons_name_the_key_and_the_other_task(rig: Rig) -> None:
    rig.run()
    rig.send_all(["a", "b"], 100, unique="report")
    rig.run()
    assert reasons(rig) == ["another task with the unique key 'report' is pending: a"]
    rig.send("c", 100, unique="report", on_conflict="replace")
    rig.run()
    assert reasons(rig)[1:] == ["replaced by task c with the same unique key 'report'"]
    assert {one.actor for one in rig.data.outcomes} == {"wheel"}


def test_a_rejected_task_keeps_its_bytes(rig: Rig) -> None:
    rig.send("a", 100, unique="k")
    rig.send("b", 100, unique="k", on_conflict="reject", body=b"mine")
    rig.run(rounds=2)
    (stored,) = [one for one in rig.data.rows.values() if one.row.lane == STOPPED]
    assert isinstance(stored.message, Message)
    assert (stored.message.task_id, stored.message.body) == ("b", b"mine")


def test_debouncing_postpones_the_task(rig: Rig) -> None:
    for n in range(5):
        rig.send(str(n), 100, unique="k", on_conflict="replace")
        rig.run(rounds=2)
        rig.pass_time(60)
    assert rig.pushed == []
    rig.run(rounds=2, after_ms=40)
    assert rig.pushed == ["4"]
    assert len(claims(rig)) == 1, "those that were replaced claim nothing"


@pytest.mark.parametrize("on_conflict", ["keep", "reject", "replace"])
def test_published_and_retired_tasks_do_not_count_for_a_unique_key(rig: Rig, on_conflict: str) -> None:
    rig.send("left", 0, unique="k")
    rig.run(rounds=2)
    assert rig.pushed == ["left"]
    rig.send("cancelled", 100, unique="k", on_conflict=on_conflict)
    rig.run()
    rig.put("cancel", task_ids=["cancelled"])
    rig.run()
    rig.send("new", 100, unique="k", on_conflict=on_conflict)
    rig.run()
    assert states_by_task(rig) == {"left": "left", "cancelled": "cancelled", "new": "waits"}
    assert len(claims(rig)) == 1, "what left claims nothing any more"


@pytest.mark.parametrize("on_conflict", ["keep", "reject", "replace"])
def test_a_task_in_flight_counts_as_published(rig: Rig, on_conflict: str) -> None:
    """Dispatch has taken it, and the broker has not answered yet."""
    rig.send("a", 0, unique="k")
    rig.run("tend", "ingest", "prefetch")
    dispatch = rig.stopped_at("dispatch", "taken")
    rig.send("b", 100, unique="k", on_conflict=on_conflict)
    rig.run("ingest")
    run_round(dispatch)
    rig.run(rounds=2)
    assert rig.pushed == ["a"]
    assert states_by_task(rig) == {"a": "left", "b": "waits"}


def test_each_of_several_on_conflict_is_judged_in_the_order_of_arrival(rig: Rig) -> None:
    for task_id, on_conflict in [("a", "keep"), ("b", "replace"), ("c", "keep"), ("d", "reject"), ("e", "replace")]:
        rig.send(task_id, 100, unique="k", on_conflict=on_conflict)
    rig.send("other", 100, unique="l")
    rig.send("none", 100)
    rig.run(rounds=2)
    assert states_by_task(rig) == {
        "a": "cancelled",
        "b": "cancelled",
        "c": "cancelled",
        "d": "rejected",
        "e": "waits",
        "other": "waits",
        "none": "waits",
    }


def test_a_repeated_message_changes_nothing(rig: Rig) -> None:
    first = rig.send("a", 100, unique="k", on_conflict="replace")
    rig.run(rounds=2)
    rig.send("b", 100, unique="k", on_conflict="replace")
    rig.run()
    rig.server.keys.wheel.append(first)
    rig.run()
    assert states_by_task(rig) == {"a": "cancelled", "b": "waits"}


@pytest.mark.parametrize("on_conflict", ["keep", "reject", "replace"])
def test_a_crash_between_commit_and_trim_changes_nothing(rig: Rig, on_conflict: str) -> None:
    rig.run()
    rig.send("a", 100, unique="k")
    rig.send("b", 100, unique="k", on_conflict=on_conflict)
    rig.stopped_at("ingest", "committed")
    expected = states_by_task(rig)
    assert sorted(expected.values()).count("waits") == 1
    rig.take_over(after_ms=10_000)
    rig.run(rounds=3)
    assert {**expected, **{one: "left" for one, state in expected.items() if state == "waits"}} == states_by_task(rig)
    assert len(rig.pushed) == 1


def test_a_task_cancelled_before_it_arrived_neither_waits_nor_replaces(rig: Rig) -> None:
    rig.put("cancel", task_ids=["early"], reason="paid")
    rig.run(rounds=2)
    rig.send("a", 100, unique="k")
    rig.run()
    rig.send("early", 100, unique="k", on_conflict="replace")
    rig.run()
    assert states_by_task(rig) == {"a": "waits", "early": "cancelled"}
    assert reasons(rig) == ["paid"]


def test_a_task_beyond_the_window_is_replaced_too(rig: Rig) -> None:
    rig.send("far", 10**8, unique="k")
    rig.run(rounds=2)
    rig.send("near", 10, unique="k", on_conflict="replace")
    assert rig.run("ingest") is Round.BUSY
    rig.run(rounds=3, after_ms=10**8)
    assert rig.pushed == ["near"]


def test_no_row_passes_a_replaced_task_before_the_commit(rig: Rig) -> None:
    rig.send("a", 10, unique="k")
    rig.send("c", 20)
    rig.run(rounds=2)
    rig.send("b", 30, unique="k", on_conflict="replace")
    ingest = rig.stopped_at("ingest", "reserved")
    rig.run("dispatch", rounds=3, after_ms=100)
    assert rig.pushed == [], "the store still has the replaced one between"
    run_round(ingest)
    rig.run(rounds=2)
    assert rig.pushed == ["c", "b"]
    assert rig.engine.stats.guard_trips == 0


def test_the_store_is_not_read_where_no_arrival_has_a_unique_key(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.store, "watchers", None)
    rig.send("a", 10, watch=["order:42"])
    rig.run(rounds=2)
    assert states_by_task(rig) == {"a": "waits"}


def test_a_task_revoked_by_its_stamps_replaces_nothing(rig: Rig) -> None:
    rig.send("old", 100, unique="report")
    rig.run(rounds=2)
    rig.state.stamps.add({"campaign": "spring"})
    stamped = b'{"stamped_headers": ["campaign"], "stamps": {"campaign": ["spring"]}, "campaign": ["spring"]}'
    rig.send("new", 100, unique="report", on_conflict="replace", headers=stamped)
    rig.run(rounds=2)
    assert states_by_task(rig) == {"old": "waits", "new": "cancelled"}


def test_a_requeued_task_has_no_unique_key_and_watches_no_key(rig: Rig) -> None:
    rig.server.wrong_types.add("celery")
    rig.send("bad", 0, unique="report", watch=["order:1"])
    rig.run(rounds=3)
    assert states_by_task(rig) == {"bad": "rejected"}
    rig.ask("requeue", task_ids=["bad"])
    assert claims(rig) == []


@pytest.fixture
def held(rig: Rig) -> Rig:
    rig.run("tend")
    return rig


ENVELOPE_ID = "00000000-0000-7000-8000-0000000000aa"


def accepted_ids(rig: Rig) -> dict[str, str]:
    rows = (one.message for one in rig.data.rows.values())
    return {one.task_id: one.envelope_id for one in rows if isinstance(one, Message)}


@pytest.mark.parametrize("together", [True, False], ids=["in one round", "one after the other"])
def test_a_task_with_the_envelope_id_of_another_task_is_accepted_under_an_id_of_its_own_once(
    rig: Rig, caplog: pytest.LogCaptureFixture, *, together: bool
) -> None:
    for _ in range(2):
        for task_id in ("a", "b", "c"):
            rig.send(task_id, 1_000, envelope_id=ENVELOPE_ID)
            if not together:
                rig.run(rounds=2)
        rig.run(rounds=2)
    assert accepted_ids(rig) == {"a": ENVELOPE_ID, "b": id_beside(ENVELOPE_ID, "b"), "c": id_beside(ENVELOPE_ID, "c")}
    assert rig.engine.stats.known == 3
    rig.run(rounds=2, after_ms=1_000)
    assert sorted(rig.pushed) == ["a", "b", "c"]
    with caplog.at_level(logging.WARNING):
        rig.engine.stats.rejections.log(0, rig.clock.monotonic_ms())
    (line,) = [one for one in caplog.records if "accepted under other ids" in one.getMessage()]
    assert (
        f"(id): 4; the first is of task tasks.add b: task a has the id {ENVELOPE_ID} too; correct" in line.getMessage()
    )


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
    return [rig.task_id(row_id) for row_id, one in sorted(rig.data.rows.items()) if one.row.lane != STOPPED]


def states(rig: Rig) -> list[str]:
    return [one.state for one in rig.disk.loads.loads.values()]


def test_a_load_is_accepted_in_parts_and_then_done() -> None:
    rig = Rig(limits=LIMITS)
    load(rig, "a", "b", "c")
    rig.run("tend", "ingest")
    assert accepted(rig) == ["a", "b"]
    rig.run("ingest", "keep_house")
    assert (accepted(rig), states(rig)) == (["a", "b", "c"], [DONE])
    rig.run(after_ms=1_000)
    assert rig.pushed == ["a", "b", "c"]


def test_an_open_load_is_not_accepted(rig: Rig) -> None:
    loads = rig.disk.loads
    run = loads.begin("monday")
    assert run is not None
    loads.put("monday", run, 0, loads.claim("monday", run, 0), 0, {0: b"whatever"})
    rig.run("tend", "ingest")
    assert accepted(rig) == []


def test_messages_of_a_load_that_were_accepted_before_are_known(rig: Rig) -> None:
    """Another load of the same key had them, or this load where an answer was lost."""
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
    rounds = rig.stopped_at("ingest", "reserved")
    rig.fail_once(point)
    run_round(rounds)
    there = len(rig.store.read_loads(0, 100))
    assert (there, len(accepted(rig))) == ((2, 0) if point == "before commit" else (0, 2))
    rig.run("tend", "ingest")
    assert accepted(rig) == ["a", "b"]


def test_a_chunk_that_cannot_be_read_is_rejected_and_stops_nothing(rig: Rig) -> None:
    load(rig, "a")
    part = rig.disk.loads.loads["monday"].parts[0]
    part[0, 0] = part[0, 0]._replace(payload=b"not packed")
    load(rig, "b", name="tuesday")
    rig.run("tend", "ingest")
    [rejected] = [one.message for one in rig.data.rows.values() if isinstance(one.message, Unreadable)]
    assert rejected.raw == b"not packed"
    assert "1 messages of a bulk load (chunk 1) cannot be read: packed messages" in rejected.reason
    assert accepted(rig) == ["b"]
    assert states(rig) == [COMMITTED, COMMITTED]


def test_commands_do_not_queue_behind_a_load() -> None:
    rig = Rig(limits=LIMITS)
    load(rig, *"abcdefghij")
    rig.run("tend", "ingest")
    known, coming, never = (
        rig.put("move", task_ids=["a"]),
        rig.put("cancel", task_ids=["h"]),
        rig.put("move", task_ids=["nobody"]),
    )
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
    rig.store.put_inboxes({0: [(MESSAGES, pack([(WHOLE, [task_id]) for task_id in task_ids]), len(task_ids))]})


def test_packed_messages_of_the_inbox_are_accepted_in_one_commit_with_the_end_of_their_item(rig: Rig) -> None:
    put_messages(rig, "a", "b", "c")
    rig.run("tend", "ingest")
    assert (accepted(rig), rig.data.inbox) == (["a", "b", "c"], {})


def test_a_cancel_reaches_the_packed_messages_before_it_and_none_behind_it(rig: Rig) -> None:
    put_messages(rig, "a", "b")
    number = rig.put("cancel", task_ids=["a"])
    put_messages(rig, "c", "d")
    put_messages(rig, "e", "a2")
    rig.run("tend", "ingest")
    assert rig.store.answer(number) == {"a": "done"}
    assert accepted(rig) == ["b", "c", "d", "e", "a2"]


def test_packed_messages_of_which_an_earlier_command_names_one_wait_behind_it(held: Rig) -> None:
    number = held.put("cancel", task_ids=["a"])
    put_messages(held, "a", "b")
    later = held.put("cancel", task_ids=["b"])
    held.run("ingest")
    assert (held.store.answer(number), held.store.answer(later), accepted(held)) == ({"a": "unknown"}, None, [])


def test_packed_messages_of_the_inbox_that_cannot_be_read_are_rejected(rig: Rig) -> None:
    rig.store.put_inboxes({0: [(MESSAGES, b"not packed", 2)]})
    put_messages(rig, "b")
    rig.run("tend", "ingest")
    [rejected] = [one.message for one in rig.data.rows.values() if isinstance(one.message, Unreadable)]
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
    assert rig.pending() == 4
    assert rig.state.window.rows == {}
    rig.run(rounds=3, after_ms=901_000)
    assert rig.pushed == ["a1", "a2", "a3", "a0"]
    assert rig.pending() == 0


def test_a_block_of_which_some_are_due_soon_goes_into_the_window(rig: Rig, kept: list[int]) -> None:
    rig.run("tend", "prefetch")
    put_block(rig, "a", 40, -5, 10, 900_000)
    rig.run("ingest")
    rig.run("dispatch", after_ms=50)
    assert (kept, rig.pushed) == ([4], ["a1", "a2", "a0"])


def test_a_block_with_a_known_message_is_taken_apart(held: Rig, kept: list[int]) -> None:
    put_block(held, "a", *[1_000] * 4)
    held.run("ingest")
    put_block(held, "a", *[1_000] * 5)
    put_block(held, "b", *[1_000] * 4)
    put_block(held, "b", *[1_000] * 4)
    held.run("ingest")
    assert (kept, held.engine.stats.known) == ([4], 8)
    assert accepted(held) == [*(f"a{n}" for n in range(5)), *(f"b{n}" for n in range(4))]


def test_a_tombstone_or_a_revoked_stamp_reaches_the_messages_of_a_block(held: Rig, kept: list[int]) -> None:
    held.put("cancel", task_ids=["a2"])
    held.run("ingest")
    put_block(held, "a", *[1_000] * 4)
    held.run("ingest")
    assert (kept, accepted(held)) == ([], ["a0", "a1", "a3"])
    held.state.stamps.add({"tenant": "7"})
    put_block(held, "b", *[1_000] * 4)
    held.run("ingest")
    assert (kept, len(accepted(held))) == ([], 7)


def test_a_command_on_a_task_of_a_block_waits_until_the_block_is_accepted(held: Rig) -> None:
    number = held.put("cancel", task_ids=["a1"])
    put_block(held, "a", *[1_000] * 4)
    later = held.put("cancel", task_ids=["a3"])
    held.run("ingest")
    assert (held.store.answer(number), held.store.answer(later)) == ({"a1": "unknown"}, None)
    held.run("ingest", rounds=2)
    assert (held.store.answer(later), accepted(held)) == ({"a3": "done"}, ["a0", "a1", "a2"])


def test_a_block_is_in_another_lane_while_due_time_is_behind_the_watermark(rig: Rig, kept: list[int]) -> None:
    rig.send("first", 1_000)
    rig.run("tend", "ingest", "prefetch")
    rig.run("dispatch", "settle", after_ms=1_000)
    state = rig.state
    assert state.lanes[0].watermark.due_ms == START_MS + 1_000
    with state.active():
        work = UnitOfWork(state, START_MS)
        [block] = unpack_messages(block_payload("a", 500, 600, 700, 1_500), QueuedMessageReader().decode)
        assert isinstance(block, MessageBlock)
        work.accept_block(block)
    assert work.change.blocks == []
    assert [row.lane == 0 for row in work.change.rows] == [False, False, False, True]
