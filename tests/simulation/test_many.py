"""Parts of a long run add up, and a broken promise is named with the command that shows it."""

from pathlib import Path

import pytest

from tests.simulation.happenings import Violation
from tests.simulation.many import Tally, run_many, run_part
from tests.simulation.worlds import WORLDS


@pytest.mark.slow
def test_parts_add_up(tmp_path: Path) -> None:
    file = tmp_path / "tally.json"
    for first in (0, 3):
        tally = Tally.of(file)
        run_many(["packs", "redis"], first, first + 3, tally)
        tally.keep(file)
    whole = Tally.of(file)
    assert whole.seeds == {"packs": 6, "redis": 6}
    alone = run_part("packs", 0, 6)
    alone.add(run_part("redis", 0, 6))
    assert (whole.meetings.met, whole.meetings.seen) == (alone.meetings.met, alone.meetings.seen)
    assert whole.violations == []


def test_a_broken_promise_is_counted_and_the_other_seeds_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, seed: int) -> None:
            self.seed = seed

        def run(self) -> None:
            if self.seed == 1:
                raise Violation("seed 1: row 5 was pushed early\n  and its history")

    monkeypatch.setitem(WORLDS, "redis", Broken)
    tally = run_part("redis", 0, 3)
    assert tally.seeds == {"redis": 3}
    assert tally.violations == ["seed 1: row 5 was pushed early: python -m tests.simulation seed 1 redis --minimise"]
    assert "3 seeds, 1 broken promises" in list(tally.report())


def test_a_promise_that_breaks_by_aimed_faults_is_named_with_its_aims(monkeypatch: pytest.MonkeyPatch) -> None:
    class BreaksIfAimed:
        aims: frozenset[tuple[str, str]] = frozenset()

        def __init__(self, seed: int) -> None:
            self.seed = seed

        def run(self) -> None:
            if self.aims:
                raise Violation("seed 1: row 5 was pushed early")

    monkeypatch.setitem(WORLDS, "redis", BreaksIfAimed)
    [found] = run_part("redis", 1, 2, frozenset([("settle: applied", "crash")])).violations
    assert found.endswith("seed 1 redis --minimise --aim 'settle: applied' 'crash'")


@pytest.mark.slow
def test_a_fault_comes_at_a_step_where_it_is_aimed() -> None:
    cell = "settle: applied", "crash"
    met = [run_part("redis", 0, 10, frozenset(aims)).meetings.met[cell] for aims in ([], [cell])]
    assert met[0] < met[1]
