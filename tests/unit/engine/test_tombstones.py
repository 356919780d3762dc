"""Tombstones of tasks that have not arrived: in the store, with few bits in memory, and deleted after their time."""

from __future__ import annotations

import json
import sys
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.engine.commands import TOMBSTONE_MS
from celery_wheel.engine.state.tombstones import TombstoneFilter
from tests.unit.engine.conftest import Rig


@given(st.lists(st.text(max_size=40)), st.lists(st.text(max_size=40)))
def test_no_id_that_was_added_is_missed(first: list[str], later: list[str]) -> None:
    found = TombstoneFilter(first)
    found.add(later)
    assert found.candidates([*first, *later]) == [*first, *later]


def test_few_other_ids_may_have_a_tombstone() -> None:
    found = TombstoneFilter([f"revoked {n}" for n in range(10_000)])
    assert len(found.candidates(f"other {n}" for n in range(10_000))) < 50


def test_100_000_ids_cost_half_a_megabyte() -> None:
    found = TombstoneFilter([f"revoked {n}" for n in range(100_000)])
    assert sys.getsizeof(found._bits) < 520_000


def cancel(rig: Rig, *task_ids: str) -> None:
    rig.store.put_command(0, "cancel", json.dumps({"task_ids": list(task_ids)}).encode())
    rig.run("tend", "ingest")


def test_a_task_cancelled_before_it_arrived_is_not_published(rig: Rig) -> None:
    cancel(rig, "a", "b")
    for task_id in ("a", "c", "b"):
        rig.send(task_id, 0)
    rig.run(rounds=2)
    assert rig.pushed == ["c"]


def test_the_next_holder_knows_the_tombstones(rig: Rig) -> None:
    cancel(rig, "a")
    rig.engine = rig.new_engine("two")
    rig.pass_time(5_000)
    rig.run()
    rig.send("a", 0)
    rig.run(rounds=2)
    assert rig.pushed == []


def test_tombstones_past_their_time_are_deleted_from_store_and_memory(rig: Rig) -> None:
    with mock.patch("celery_wheel.engine.state.tombstones.FEWEST", 10):
        cancel(rig, *(f"early {n}" for n in range(500)))
        rig.pass_time(TOMBSTONE_MS + 1)
        cancel(rig, *(f"late {n}" for n in range(20)))
        state = rig.engine.state
        assert state is not None
        assert len(state.tombstones) == 520
        rig.run("keep_house")
        assert len(state.tombstones) == 20
        assert set(rig.store.tombstone_ids(0)) == {f"late {n}" for n in range(20)}
    rig.send("late 7", 0)
    rig.send("early 7", 0)
    rig.run(rounds=2)
    assert rig.pushed == ["early 7"]


def test_a_cancel_while_the_filter_is_filled_anew_is_in_it(rig: Rig) -> None:
    with mock.patch("celery_wheel.engine.state.tombstones.FEWEST", 10):
        cancel(rig, *(f"early {n}" for n in range(50)))
        steps = rig.engine.keep_house()
        while next(steps) != "tombstones read":
            pass
        cancel(rig, "meanwhile")
        assert list(steps)
    rig.send("meanwhile", 0)
    rig.run(rounds=2)
    assert rig.pushed == []


def test_the_store_is_not_read_where_no_task_was_cancelled(rig: Rig) -> None:
    rig.run()
    rig.send("a", 0)
    with mock.patch.object(rig.store, "tombstones", side_effect=AssertionError("asked")):
        rig.run(rounds=2)
    assert rig.pushed == ["a"]
