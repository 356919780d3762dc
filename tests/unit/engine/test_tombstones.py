"""Tombstones of tasks that have not arrived: in the store, with few bits in memory, and deleted after their time."""

from __future__ import annotations

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
    rig.put("cancel", task_ids=task_ids)
    rig.run("tend", "ingest")


def test_the_next_holder_knows_the_tombstones(rig: Rig) -> None:
    cancel(rig, "a")
    rig.take_over(after_ms=5_000)
    rig.run()
    rig.send("a", 0)
    rig.run(rounds=2)
    assert rig.pushed == []


def test_tombstones_past_their_time_are_deleted_from_store_and_memory(rig: Rig) -> None:
    with mock.patch("celery_wheel.engine.state.tombstones.FEWEST", 10):
        cancel(rig, *(f"early {n}" for n in range(500)))
        rig.pass_time(TOMBSTONE_MS + 1)
        cancel(rig, *(f"late {n}" for n in range(20)))
        state = rig.state
        assert len(state.tombstones) == 520
        rig.run("keep_house")
        assert len(state.tombstones) == 20
        assert set(rig.store.tombstone_ids(0)) == {f"late {n}" for n in range(20)}
    rig.send_all(["late 7", "early 7"], 0)
    rig.run(rounds=2)
    assert rig.pushed == ["early 7"]


def test_a_cancel_while_the_filter_is_filled_anew_is_in_it(rig: Rig) -> None:
    with mock.patch("celery_wheel.engine.state.tombstones.FEWEST", 10):
        cancel(rig, *(f"early {n}" for n in range(50)))
        steps = rig.stopped_at("keep_house", "tombstones read")
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
