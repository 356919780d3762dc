"""Shared rounds: the shards of a process begin together, make their calls as one, and fail alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from celery_wheel.engine.pool import IDLE_S, Job, Pool, Wait
from celery_wheel.engine.round import Round, RoundSteps, SharedCall
from celery_wheel.engine.shared import ShardPart, SharedRounds
from celery_wheel.errors import StoreError


class StandingPool(Pool):
    """Its time stands still, and no thread runs a job: the test does."""

    time_s = 100.0

    def wake(self, job: Job) -> None: ...

    def now_s(self) -> float:  # type: ignore[override]
        return self.time_s


class Table:
    """A server that notes the calls that it gets, each with the shards that made it."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.refused: set[int] = set()
        self.is_silent = False

    def one(self, shard: int) -> str:
        [answer] = self.several([(shard,)])
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    def several(self, shards: Sequence[tuple[int]]) -> list[Any]:
        self.calls.append([shard for (shard,) in shards])
        if self.is_silent:
            raise StoreError("silent")
        return [StoreError("refused") if shard in self.refused else f"answer {shard}" for (shard,) in shards]


class Shards:
    """Shards whose rounds make ``calls`` calls each; ``ended`` has shard and result of each round."""

    def __init__(self, count: int, *, stretches: bool = False) -> None:
        self.pool, self.table = StandingPool(), Table()
        self.rounds = SharedRounds(self.pool, "ingest", stretches=stretches)
        self.calls = dict.fromkeys(range(count), 1)
        self.waits = dict.fromkeys(range(count), Wait())
        self.ended: list[tuple[int, Round]] = []
        self.took_s: list[float] = []
        self.answers: list[str] = []
        self.parts = [self.rounds.part(self._begin(shard), self._end(shard)) for shard in range(count)]

    def _begin(self, shard: int) -> Callable[[], RoundSteps]:
        def steps() -> Iterator[str | Round]:
            try:
                for _ in range(self.calls[shard]):
                    call = SharedCall("call", self.table.one, self.table.several, (shard,))
                    yield "a step"
                    yield call
                    self.answers.append(call.answer())
            except StoreError:
                yield Round.FAILED
            else:
                yield Round.BUSY

        return steps

    def _end(self, shard: int) -> Callable[[Round, float], Wait]:
        def end(result: Round, took_s: float) -> Wait:
            self.ended.append((shard, result))
            self.took_s.append(took_s)
            return self.waits[shard]

        return end

    @property
    def job(self) -> Job:
        return self.rounds.job

    def wake(self, *shards: int) -> None:
        for shard in shards:
            self.parts[shard].wake()

    def run(self) -> Wait:
        """Run the job until no round is left; returns its wait."""
        while True:
            wait = self.job.run()
            if max(wait) > 0 or not self.rounds._running():
                return wait


@pytest.fixture
def shards() -> Shards:
    return Shards(3)


def part_of(shards: Shards, number: int) -> ShardPart:
    return shards.parts[number]


def test_rounds_that_begin_together_make_one_call(shards: Shards) -> None:
    shards.wake(0, 2)
    assert shards.run() == Wait(0.0, IDLE_S)
    assert shards.table.calls == [[0, 2]]
    assert shards.answers == ["answer 0", "answer 2"]
    assert shards.ended == [(0, Round.BUSY), (2, Round.BUSY)]


def test_a_round_alone_makes_its_own_call(shards: Shards) -> None:
    call = SharedCall("call", shards.table.one, shards.table.several, (1,))
    assert call.answer() == "answer 1"
    assert call == "call"


def test_an_error_is_of_its_own_shard(shards: Shards) -> None:
    shards.table.refused = {1}
    shards.wake(0, 1, 2)
    shards.run()
    assert shards.ended == [(0, Round.BUSY), (1, Round.FAILED), (2, Round.BUSY)]
    assert shards.answers == ["answer 0", "answer 2"]


def test_a_server_without_an_answer_fails_all(shards: Shards) -> None:
    shards.table.is_silent = True
    shards.wake(0, 1)
    shards.run()
    assert shards.ended == [(0, Round.FAILED), (1, Round.FAILED)]


def test_a_long_round_delays_no_other_shard(shards: Shards) -> None:
    shards.calls[0] = 5
    shards.wake(0)
    shards.job.run()
    shards.wake(1)
    shards.job.run()
    shards.job.run()
    assert shards.ended == [(1, Round.BUSY)]
    shards.run()
    assert shards.ended[-1] == (0, Round.BUSY)
    assert shards.table.calls == [[0], [0, 1], [0], [0], [0]]


def test_the_pause_of_a_round_is_the_pause_of_all(shards: Shards) -> None:
    """So the next rounds begin together."""
    shards.waits[0] = Wait(0.05, 0.05)
    shards.wake(0)
    assert shards.run() == Wait(pytest.approx(0.05), pytest.approx(0.05))
    shards.wake(1)
    shards.pool.time_s += 0.04
    assert shards.run() == Wait(pytest.approx(0.01), pytest.approx(0.01))
    assert shards.ended == [(0, Round.BUSY)]
    shards.pool.time_s += 0.02
    shards.run()
    assert shards.table.calls == [[0], [0, 1]]


def test_a_pause_that_may_be_longer_is_so_by_the_root_of_the_number_of_rounds() -> None:
    shards = Shards(4, stretches=True)
    shards.waits = dict.fromkeys(range(4), Wait(0.01, 0.01))
    shards.wake(0, 1, 2, 3)
    assert shards.run() == Wait(pytest.approx(0.02), pytest.approx(0.02))
    shards.pool.time_s += 0.02
    shards.table.refused = {3}
    shards.run()
    assert [round(one.not_before_s - shards.pool.time_s, 6) for one in shards.parts] == [0.02, 0.02, 0.02, 0.01]


def test_a_failed_round_pauses_its_own_shard_only(shards: Shards) -> None:
    shards.table.refused, shards.waits[0] = {0}, Wait(2.0, 2.0)
    shards.wake(0)
    assert shards.run() == Wait(0.0, pytest.approx(2.0, abs=0.5))
    shards.wake(0, 1)
    shards.run()
    assert shards.ended == [(0, Round.FAILED), (1, Round.BUSY)]


def test_a_shard_that_waits_for_an_instant_begins_then(shards: Shards) -> None:
    shards.waits[2] = Wait(0.0, 0.3)
    shards.wake(2)
    assert shards.run() == Wait(0.0, pytest.approx(0.3))
    shards.pool.time_s += 0.31
    shards.run()
    assert shards.ended == [(2, Round.BUSY)] * 2


def test_a_round_takes_its_part_of_the_time(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    several = shards.table.several

    def slow(calls: Sequence[tuple[int]]) -> list[Any]:
        shards.pool.time_s += 0.3
        return several(calls)

    monkeypatch.setattr(shards.table, "several", slow)
    shards.wake(0, 1, 2)
    shards.run()
    assert shards.took_s == [pytest.approx(0.1)] * 3


def test_a_stop_lets_the_rounds_end(shards: Shards) -> None:
    shards.calls[1] = 3
    shards.wake(0, 1)
    shards.job.run()
    for part in shards.parts:
        part.cancel()
    assert part_of(shards, 0).join(shards.pool.time_s + 1)
    assert shards.ended == [(0, Round.BUSY), (1, Round.BUSY)]
    shards.wake(0)
    shards.job.run()
    assert len(shards.ended) == 2, "no further round begins"


def test_a_stop_does_not_wait_for_longer_than_it_may(shards: Shards) -> None:
    shards.calls[1] = 3
    shards.wake(1)
    shards.job.run()
    assert not part_of(shards, 1).join(shards.pool.time_s)


def test_a_lost_wake_delays_a_shard_by_at_most_a_minute(shards: Shards) -> None:
    shards.wake(0)
    shards.run()
    shards.pool.time_s += IDLE_S
    shards.run()
    assert shards.ended == [(0, Round.BUSY)] * 2


def test_a_stop_after_a_defect_lets_all_rounds_end(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no shard would be given up."""
    shards.calls[2] = 2

    def defective(_: Sequence[tuple[int]]) -> list[Any]:
        raise TypeError("a defect")

    shards.wake(0, 1, 2)
    monkeypatch.setattr(shards.table, "several", defective)
    shards.job.run()
    with pytest.raises(TypeError):
        shards.job.run()
    for part in shards.parts:
        part.cancel()
    assert part_of(shards, 0).join(shards.pool.time_s + 1)
    assert sorted(shard for shard, _ in shards.ended) == [0, 1, 2]
    assert shards.pool.failure is not None
