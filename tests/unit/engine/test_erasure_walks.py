"""Random walks: tasks of two keys come and go while all of one key are erased, between crashes, takeovers and failures.

Promises: at the end nothing of the erased key is left that was sent before, every other task is pushed once, and the
pending counts are those of the rows. The same walks find a holder that erases a row at a position where it may be
published, and one that counts erased rows as pending.
"""

import random
from collections import Counter

import pytest

from celery_wheel.engine import erasure
from celery_wheel.engine.intake.inbox import Erasure
from celery_wheel.engine.round import run_round
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.errors import WheelError
from celery_wheel.store.model import Row
from tests.unit.engine.conftest import Rig

ACTIVITIES = ("tend", "ingest", "prefetch", "dispatch", "settle", "keep_house")
DIGEST = "erased:00.00"


class Walk:
    def __init__(self, seed: int) -> None:
        self.random, self.rig = random.Random(seed), Rig()
        self.sent: dict[str, str] = {}  #: task id → its key
        self.erased: set[str] = set()  #: sent before the request
        self.number = ""

    def send(self) -> None:
        task_id, key = f"t{len(self.sent)}", self.random.choice(("anna", "bert"))
        self.sent[task_id] = key
        self.rig.send(task_id, self.random.choice((5, 50, 500, 5_000)), key=key)

    def erase(self) -> None:
        if not self.number:
            self.number = self.rig.put("erase", digests=[DIGEST], by="key", value="anna", actor="", reason="")
            self.erased = {task_id for task_id, key in self.sent.items() if key == "anna"}

    def step(self) -> None:
        """Run an activity as far as a crash, a failure of the store or its end."""
        rig, activity = self.rig, self.random.choice(ACTIVITIES)
        if self.random.random() < 0.1:
            rig.fail_once(self.random.choice(("before commit", "after commit", "read")))
        try:
            if self.random.random() < 0.03:
                for _, _ in zip(getattr(rig.engine, activity)(), range(self.random.randint(1, 4)), strict=False):
                    pass
                rig.take_over(f"host-{self.random.random()}")
            else:
                run_round(getattr(rig.engine, activity)())
        except WheelError:
            pass
        rig.pass_time(self.random.choice((0, 1, 10, 100)))

    def run(self) -> None:
        for _ in range(self.random.randint(20, 200)):
            self.random.choices((self.send, self.erase, self.step), (3, 1, 12))[0]()
        self.erase()
        self.rig.take_over("last")
        for _ in range(60):
            self.rig.run(after_ms=500)
        self.judge()

    def judge(self) -> None:
        rig, pushes = self.rig, Counter(self.rig.pushed)
        answer = rig.store.answer(self.number)
        assert answer is not None, "the erasure has ended"
        left = {rig.task_id(row_id) for row_id in rig.data.rows}
        assert not left & self.erased, "nothing is left"
        of_anna = {task_id for task_id, key in self.sent.items() if key == "anna"}
        assert answer[DIGEST]["pending"] + answer[DIGEST]["history"] == len(of_anna - left), "each is counted once"
        assert all(pushes[task_id] <= 1 for task_id in self.sent), pushes
        others = {task_id for task_id in self.sent if task_id not in of_anna or task_id in left}
        assert {task_id for task_id in others if pushes[task_id] == 1} == others, "the others are pushed"
        assert rig.pending() == 0


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "ROWS_AT_ONCE", 3)


@pytest.mark.parametrize("seed", range(60))
def test_an_erasure_keeps_its_promises(seed: int) -> None:
    Walk(seed).run()


def violated() -> bool:
    for seed in range(60):
        try:
            Walk(seed).run()
        except (AssertionError, WheelError, KeyError, ValueError):
            return True
    return False


def test_a_holder_that_erases_rows_in_flight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "is_closed", lambda state, row: True)
    assert violated()


def test_a_holder_that_forgets_the_pending_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def erase(self: UnitOfWork, row: Row) -> None:
        self.change.erased.append(row.id)
        self._tally.clear()

    monkeypatch.setattr(UnitOfWork, "erase", erase)
    assert violated()


def test_a_holder_that_loses_its_progress_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Erasure, "with_progress", lambda self, progress: self.payload)
    assert violated()
