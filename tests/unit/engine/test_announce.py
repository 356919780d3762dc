"""Every cancelled task is announced, and no other; tombstones of tasks that have not arrived, for a time."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.engine.commands import TOMBSTONE_MS
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import Round
from celery_wheel.engine.state.tombstones import RevokedStamps, TombstoneFilter
from celery_wheel.store.model import Row
from tests.unit.engine.conftest import Rig


@dataclass
class Books:
    told: list[str] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)  #: the number of rows of each call
    refuses: set[str] = field(default_factory=set)
    broken: bool = False

    def __call__(self, rows: Sequence[Row]) -> set[int]:
        self.calls.append(len(rows))
        if self.broken:
            raise RuntimeError("no books today")
        seen = [one for one in rows if one.task_id not in self.refuses]
        self.told += [one.task_id for one in seen]
        return {one.id for one in seen}


@dataclass
class Keeping(Rig):
    books: Books = field(default_factory=Books)
    stamps: RevokedStamps = field(default_factory=RevokedStamps)

    def new_engine(self, name: str = "one") -> Engine:
        plain = super().new_engine(name)
        limits, clock = self.limits, self.clock
        return Engine(
            0, plain.holder, self.store, self.broker, clock, limits, on_cancelled=self.books, stamps=self.stamps
        )

    def cancel(self, *task_ids: str, for_good: bool = False) -> None:
        self.put("cancel", task_ids=task_ids, for_good=for_good)
        self.run()

    def announce(self, most: int = 1_000) -> Round:
        result = Round.BUSY
        while result is Round.BUSY and most:
            result = self.run("announce")
            most -= 1
        return result


@pytest.fixture
def rig() -> Keeping:
    rig = Keeping()
    rig.run("tend")
    return rig


def test_a_cancelled_task_is_announced_once(rig: Keeping) -> None:
    rig.send_all([f"t{n:03}" for n in range(120)], 60_000)
    rig.send("stays", 60_000)
    rig.run()
    rig.cancel(*(f"t{n:03}" for n in range(120)))
    assert rig.announce() is Round.IDLE
    assert rig.books.told == [f"t{n:03}" for n in range(120)]
    rig.cancel("t000", "nobody")  # once more
    rig.announce()
    assert len(rig.books.told) == 120


def test_a_task_that_is_replaced_by_itself_is_not_revoked(rig: Keeping) -> None:
    """A debounce sends the same task id again, and the last message counts."""
    for n in range(3):
        rig.send("again", 60_000 + n, unique="k", on_conflict="replace")
        rig.run()
    rig.send("other", 60_000, unique="k", on_conflict="replace")
    rig.run()
    assert rig.announce() is Round.IDLE
    assert rig.books.told == ["again"]
    assert rig.store.unannounced(0, -1, 10) == []


def test_a_completed_task_is_announced_and_a_moved_task_is_not(rig: Keeping) -> None:
    rig.send("a", 60_000, watch=["order:42"])
    rig.send("b", 60_000)
    rig.run()
    rig.engine.ctx.unannounced.clear()
    rig.put("move", task_ids=["b"], eta_ms=None)
    rig.run()
    assert (rig.pushed, rig.engine.ctx.unannounced.is_set()) == (["b"], False)
    rig.put("complete", keys=["order:42"])
    rig.run()
    assert rig.engine.ctx.unannounced.is_set()
    rig.announce()
    assert rig.books.told == ["a"]


def test_a_task_cancelled_before_it_arrived_is_announced_when_it_arrives(rig: Keeping) -> None:
    rig.cancel("early")
    rig.announce()
    assert rig.books.told == []
    rig.send("early", 0)
    rig.run()
    rig.announce()
    assert (rig.books.told, rig.pushed) == (["early"], [])


def test_a_task_that_could_not_be_announced_is_announced_later_and_delays_no_other(rig: Keeping) -> None:
    rig.send_all(["a", "b", "c"], 60_000)
    rig.run()
    rig.books.refuses = {"a"}
    rig.cancel("a", "b", "c")
    assert rig.announce() is Round.FAILED
    assert rig.books.told == ["b", "c"]
    rig.books.refuses = set()
    assert rig.announce() is Round.IDLE
    assert rig.books.told == ["b", "c", "a"]


def test_a_round_reads_one_page_and_one_row_while_nothing_can_be_announced(
    rig: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"t{n:03}" for n in range(170)]
    rig.send_all(ids, 60_000)
    rig.run()
    rig.books.broken, read, rows = True, rig.store.unannounced, list[int]()

    def counted(*where: int) -> list[Row]:
        found = read(*where)
        rows.append(len(found))
        return found

    monkeypatch.setattr(rig.store, "unannounced", counted)
    rig.cancel(*ids)
    assert {rig.run("announce") for _ in range(60)} == {Round.FAILED}
    assert rows == [51] + [2] * 59, "one more than it announces: a lap ends with its last row, and without a wait"
    assert rig.books.calls == [50] + [1] * 59
    rig.books.broken = False
    assert rig.announce() is Round.IDLE
    assert sorted(rig.books.told) == ids, "the rows of the failed rounds as well, and each once"
    assert rig.store.unannounced(0, -1, 1) == []


def test_rows_that_are_never_announced_do_not_keep_the_others_from_it(rig: Keeping) -> None:
    ids = [f"t{n:03}" for n in range(230)]
    rig.books.refuses = set(ids[40:160])
    rig.send_all(ids, 60_000)
    rig.run()
    rig.cancel(*ids)
    for _ in range(300):
        rig.run("announce")
    assert sorted(rig.books.told) == sorted(set(ids) - rig.books.refuses)
    assert max(rig.books.calls) == 50


def test_a_task_that_is_cancelled_during_a_lap_is_announced(rig: Keeping) -> None:
    ids = [f"t{n:03}" for n in range(120)]
    rig.send_all(ids, 60_000)
    rig.run()
    rig.cancel(*ids[1:])
    assert rig.run("announce") is Round.BUSY
    rig.cancel(ids[0])  # behind the lap
    assert rig.announce() is Round.IDLE
    assert sorted(rig.books.told) == ids


def test_an_announcement_that_raises_ends_no_state_and_is_tried_again(
    rig: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    rig.send("a", 60_000)
    rig.run()
    rig.books.broken = True
    rig.cancel("a")
    term = rig.engine.state
    assert rig.announce() is Round.FAILED
    assert rig.engine.state is term
    assert "cancelled tasks were not announced" in caplog.text
    rig.books.broken = False
    rig.announce()
    assert rig.books.told == ["a"]


def test_the_next_holder_announces_after_a_crash(rig: Keeping) -> None:
    rig.send("a", 60_000)
    rig.run()
    rig.cancel("a")
    rig.pass_time(10_000)
    rig.engine = rig.new_engine("two")
    rig.run("tend")
    assert rig.engine.ctx.unannounced.is_set()
    rig.announce()
    assert rig.books.told == ["a"]


@pytest.mark.parametrize("for_good", [False, True])
def test_a_retry_of_a_published_task_is_accepted_unless_it_was_cancelled_for_good(rig: Keeping, for_good: bool) -> None:
    rig.send("a", 0)
    rig.run()
    rig.cancel("a", for_good=for_good)
    rig.send("a", 0)
    rig.run()
    rig.announce()
    assert rig.pushed == ["a"] * (1 if for_good else 2)
    assert rig.books.told == ["a"] * for_good


def test_a_task_with_a_revoked_stamp_is_not_published(rig: Keeping) -> None:
    rig.stamps.add({"campaign": ["spring", 7], "tenant": "x"})
    for task_id, stamps in [("a", {"campaign": ["spring"]}), ("b", {"campaign": 7}), ("c", {"tenant": ["x"]})]:
        rig.send(task_id, 0, headers=json.dumps({"stamps": stamps}).encode())
    for task_id, stamps in [("d", {"campaign": ["7"]}), ("e", {"tenant": ["spring"]}), ("f", None), ("g", {})]:
        rig.send(task_id, 0, headers=json.dumps({"stamps": stamps}).encode())
    rig.run()
    rig.announce()
    assert rig.pushed == ["d", "e", "f", "g"]
    assert rig.books.told == ["a", "b", "c"]


def test_the_oldest_of_too_many_stamps_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheel.engine.state.tombstones.MOST", 2)
    stamps = RevokedStamps()
    assert not stamps
    stamps.add({"a": [1, 2]})
    stamps.add({"a": [1]})
    stamps.add({"b": [3]})
    found = [
        stamps.match(json.dumps({"stamps": {name: [one]}}).encode()) for name, one in [("a", 1), ("a", 2), ("b", 3)]
    ]
    assert found == [True, False, True]


@given(st.lists(st.text(max_size=40)), st.lists(st.text(max_size=40)))
def test_no_id_that_was_added_is_missed(first: list[str], later: list[str]) -> None:
    found = TombstoneFilter(first)
    found.add(later)
    assert found.candidates([*first, *later]) == [*first, *later]


def test_the_next_holder_knows_the_tombstones(rig: Keeping) -> None:
    rig.cancel("a")
    rig.take_over(after_ms=5_000)
    rig.run()
    rig.send("a", 0)
    rig.run(rounds=2)
    assert rig.pushed == []


def test_few_other_ids_may_have_a_tombstone() -> None:
    found = TombstoneFilter([f"revoked {n}" for n in range(10_000)])
    assert len(found.candidates(f"other {n}" for n in range(10_000))) < 50


def test_100_000_ids_cost_half_a_megabyte() -> None:
    assert sys.getsizeof(TombstoneFilter([f"revoked {n}" for n in range(100_000)])._bits) < 520_000


def cancel(rig: Rig, *task_ids: str) -> None:
    rig.put("cancel", task_ids=task_ids)
    rig.run("tend", "ingest")


def test_tombstones_past_their_time_are_deleted_from_store_and_memory() -> None:
    with mock.patch("celery_wheel.engine.state.tombstones.FEWEST", 10):
        rig = Keeping()
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


def test_a_cancel_while_the_filter_is_filled_anew_is_in_it() -> None:
    with mock.patch("celery_wheel.engine.state.tombstones.FEWEST", 10):
        rig = Keeping()
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
