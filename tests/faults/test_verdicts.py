"""Answers of ``app.wheel`` under kills, in a short form; the comparison is tried on answers that are untrue.

``python -m tests.faults.verdicts`` takes any number of answers.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.faults.claims import DONE, IN_DOUBT, REFUSED, Claim, Truth, compare
from tests.faults.verdicts import STORES, stack_on
from tests.kit.servers.rabbit import ON_RABBITMQ

SEED = int(os.environ.get("WHEEL_FAULT_SEED", "7"))

POSITIVES = 150


@pytest.mark.slow
@pytest.mark.parametrize("store", [STORES[0], pytest.param(STORES[1], marks=ON_RABBITMQ)])
def test_each_answer_is_true_over_kills(tmp_path: Path, store: str) -> None:
    with stack_on(store, tmp_path, SEED) as stack:
        while stack.positives < POSITIVES:
            stack.strike()
        truth = stack.settle()
        print(f"seed {SEED}, {stack.kills} kills: {truth}")
        assert truth.broken() == {}, f"seed {SEED}: {truth}"
        assert truth.positives >= POSITIVES
        assert stack.kills


def _note(id_: str, ran_ms: int = 2_000, **more: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "ran_ms": ran_ms,
        "args": [1_000],
        "delivery": ran_ms,
        "redelivered": False,
        "marked": False,
    } | more


CLAIMS = [
    Claim("cancel", ("cancelled",), 1, 1),
    Claim("cancel", ("late",), 0),
    Claim("move", ("moved",), 0, 1, 5_000),
    Claim("complete", ("watching", "other"), 1, 1),
    Claim("unique", ("first",), 0, 1),
    Claim("unique", ("second",), 1),
    Claim("erase", ("gone", "away"), 2, 2),
    Claim("cancel", ("perhaps",), None),
]

NOTES = [_note("late"), _note("moved", 5_001), _note("other"), _note("first")]


def _compared(*more: dict[str, Any], without: str = "") -> Truth:
    return compare(CLAIMS, [*(one for one in NOTES if one["id"] != without), *more])


@pytest.mark.parametrize("perhaps", [[], [_note("perhaps")]])
def test_answers_that_agree_with_what_ran_are_true(perhaps: list[dict[str, Any]]) -> None:
    truth = _compared(*perhaps)
    assert truth.broken() == {}
    assert truth.positives == 6
    assert truth.said["cancel"] == {DONE: 1, REFUSED: 1, IN_DOUBT: 1}
    assert truth.said["erase"] == {DONE: 2, REFUSED: 0}


@pytest.mark.parametrize("ran", ["cancelled", "watching", "second", "gone"])
def test_a_task_that_runs_in_spite_of_an_answer_is_found(ran: str) -> None:
    truth = _compared(_note(ran))
    assert [ran in one.ids for one in truth.untrue] == [True]
    assert "untrue" in truth.broken()


@pytest.mark.parametrize("lost", ["late", "moved", "other", "first"])
def test_a_task_that_does_not_run_in_spite_of_an_answer_is_found(lost: str) -> None:
    assert [lost in one.ids for one in _compared(without=lost).untrue] == [True]


def test_a_moved_task_that_runs_before_its_new_time_is_found() -> None:
    truth = _compared(_note("moved", 4_000, marked=True))
    assert [one.kind for one in truth.untrue] == ["move"]


def test_a_second_copy_without_a_mark_is_found() -> None:
    assert _compared(_note("late", 3_000)).broken() == {"twice_unmarked": ["late"]}
