"""A unique key has one pending task: which task that is, and the outcomes of the others."""

from __future__ import annotations

import pytest

from celery_wheel.engine.round import Round, run_round
from celery_wheel.store.model import STOPPED, UNANNOUNCED, Message, Watch
from tests.unit.engine.conftest import Rig


def states(rig: Rig) -> dict[str, str]:
    """Return the state of each task: pending, published, or the kind of its outcome."""
    data = rig.disk.shard(0)
    kinds = {one.timer_id: one.kind for one in data.outcomes}
    found = {}
    for stored in data.rows.values():
        assert isinstance(stored.message, Message)
        row = stored.row
        left = "left" if row.lane != STOPPED and row.position <= data.lanes[row.lane].offset else "waits"
        found[stored.message.task_id] = kinds.get(row.id, left)
    return found


def claims(rig: Rig) -> list[Watch]:
    return [one for one in rig.disk.shard(0).watches if one.kind != UNANNOUNCED]


def reasons(rig: Rig) -> list[str]:
    return [one.reason for one in rig.disk.shard(0).outcomes]


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
    assert list(states(rig).values()) == expected
    assert sum(rig.disk.shard(0).tally.values()) == 1
    rig.pass_time(100)
    rig.run(rounds=2)
    assert rig.pushed == pushed
    assert not any(rig.disk.shard(0).tally.values())
    assert rig.engine.stats.rejected == expected.count("rejected")
    assert rig.engine.stats.guard_trips == 0


def test_reasons_name_the_key_and_the_other_task(rig: Rig) -> None:
    rig.run()
    rig.send("a", 100, unique="report")
    rig.send("b", 100, unique="report")
    rig.run()
    assert reasons(rig) == ["another task with the unique key 'report' is pending: a"]
    rig.send("c", 100, unique="report", on_conflict="replace")
    rig.run()
    assert reasons(rig)[1:] == ["replaced by task c with the same unique key 'report'"]
    assert {one.actor for one in rig.disk.shard(0).outcomes} == {"wheel"}


def test_a_rejected_task_keeps_its_bytes(rig: Rig) -> None:
    rig.send("a", 100, unique="k")
    rig.send("b", 100, unique="k", on_conflict="reject", body=b"mine")
    rig.run(rounds=2)
    (stored,) = [one for one in rig.disk.shard(0).rows.values() if one.row.lane == STOPPED]
    assert isinstance(stored.message, Message)
    assert (stored.message.task_id, stored.message.body) == ("b", b"mine")


def test_debouncing_postpones_the_task(rig: Rig) -> None:
    for n in range(5):
        rig.send(str(n), 100, unique="k", on_conflict="replace")
        rig.run(rounds=2)
        rig.pass_time(60)
    assert rig.pushed == []
    rig.pass_time(40)
    rig.run(rounds=2)
    assert rig.pushed == ["4"]
    assert len(claims(rig)) == 1, "those that were replaced claim nothing"


@pytest.mark.parametrize("on_conflict", ["keep", "reject", "replace"])
def test_published_and_retired_tasks_do_not_count_for_a_unique_key(rig: Rig, on_conflict: str) -> None:
    rig.send("left", 0, unique="k")
    rig.run(rounds=2)
    assert rig.pushed == ["left"]
    rig.send("cancelled", 100, unique="k", on_conflict=on_conflict)
    rig.run()
    rig.store.put_inbox(0, [("cancel", b'{"task_ids": ["cancelled"]}')])
    rig.run()
    rig.send("new", 100, unique="k", on_conflict=on_conflict)
    rig.run()
    assert states(rig) == {"left": "left", "cancelled": "cancelled", "new": "waits"}
    assert len(claims(rig)) == 1, "what left claims nothing any more"


@pytest.mark.parametrize("on_conflict", ["keep", "reject", "replace"])
def test_a_task_in_flight_counts_as_published(rig: Rig, on_conflict: str) -> None:
    """Dispatch has taken it, and the broker has not answered yet."""
    rig.send("a", 0, unique="k")
    rig.run("tend", "ingest", "prefetch")
    dispatch = rig.engine.dispatch()
    while next(dispatch) != "taken":
        pass
    rig.send("b", 100, unique="k", on_conflict=on_conflict)
    rig.run("ingest")
    run_round(dispatch)
    rig.run(rounds=2)
    assert rig.pushed == ["a"]
    assert states(rig) == {"a": "left", "b": "waits"}


def test_each_of_several_on_conflict_is_judged_in_the_order_of_arrival(rig: Rig) -> None:
    for task_id, on_conflict in [("a", "keep"), ("b", "replace"), ("c", "keep"), ("d", "reject"), ("e", "replace")]:
        rig.send(task_id, 100, unique="k", on_conflict=on_conflict)
    rig.send("other", 100, unique="l")
    rig.send("none", 100)
    rig.run(rounds=2)
    found = states(rig)
    assert found == {
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
    assert states(rig) == {"a": "cancelled", "b": "waits"}


@pytest.mark.parametrize("on_conflict", ["keep", "reject", "replace"])
def test_a_crash_between_commit_and_trim_changes_nothing(rig: Rig, on_conflict: str) -> None:
    rig.run()
    rig.send("a", 100, unique="k")
    rig.send("b", 100, unique="k", on_conflict=on_conflict)
    steps = rig.engine.ingest()
    while next(steps) != "committed":
        pass
    expected = states(rig)
    assert sorted(expected.values()).count("waits") == 1
    rig.engine = rig.new_engine("two")
    rig.pass_time(10_000)
    rig.run(rounds=3)
    assert {**expected, **{one: "left" for one, state in expected.items() if state == "waits"}} == states(rig)
    assert len(rig.pushed) == 1


def test_a_task_cancelled_before_it_arrived_neither_waits_nor_replaces(rig: Rig) -> None:
    rig.store.put_inbox(0, [("cancel", b'{"task_ids": ["early"], "reason": "paid"}')])
    rig.run(rounds=2)
    rig.send("a", 100, unique="k")
    rig.run()
    rig.send("early", 100, unique="k", on_conflict="replace")
    rig.run()
    assert states(rig) == {"a": "waits", "early": "cancelled"}
    assert reasons(rig) == ["paid"]


def test_a_task_beyond_the_window_is_replaced_too(rig: Rig) -> None:
    rig.send("far", 10**8, unique="k")
    rig.run(rounds=2)
    rig.send("near", 10, unique="k", on_conflict="replace")
    assert rig.run("ingest") is Round.BUSY
    rig.pass_time(10**8)
    rig.run(rounds=3)
    assert rig.pushed == ["near"]


def test_no_row_passes_a_replaced_task_before_the_commit(rig: Rig) -> None:
    rig.send("a", 10, unique="k")
    rig.send("c", 20)
    rig.run(rounds=2)
    rig.send("b", 30, unique="k", on_conflict="replace")
    ingest = rig.engine.ingest()
    while next(ingest) != "reserved":
        pass
    rig.pass_time(100)
    rig.run("dispatch", rounds=3)
    assert rig.pushed == [], "the store still has the replaced one between"
    run_round(ingest)
    rig.run(rounds=2)
    assert rig.pushed == ["c", "b"]
    assert rig.engine.stats.guard_trips == 0


def test_the_store_is_not_read_where_no_arrival_has_a_unique_key(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.store, "watchers", None)
    rig.send("a", 10, watch=["order:42"])
    rig.run(rounds=2)
    assert states(rig) == {"a": "waits"}


def test_a_task_revoked_by_its_stamps_replaces_nothing(rig: Rig) -> None:
    rig.send("old", 100, unique="report")
    rig.run(rounds=2)
    assert rig.engine.state is not None
    rig.engine.state.stamps.add({"campaign": "spring"})
    stamped = b'{"stamped_headers": ["campaign"], "stamps": {"campaign": ["spring"]}, "campaign": ["spring"]}'
    rig.send("new", 100, unique="report", on_conflict="replace", headers=stamped)
    rig.run(rounds=2)
    assert states(rig) == {"old": "waits", "new": "cancelled"}


def test_a_requeued_task_has_no_unique_key_and_watches_no_key(rig: Rig) -> None:
    rig.server.wrong_types.add("celery")
    rig.send("bad", 0, unique="report", watch=["order:1"])
    rig.run(rounds=3)
    assert states(rig) == {"bad": "rejected"}
    rig.store.put_inbox(0, [("requeue", b'{"task_ids": ["bad"]}')])
    rig.run("ingest")
    assert claims(rig) == []
