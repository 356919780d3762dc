"""The pool of threads: no job waits for the call of another, and long waits end together."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from celery_wheel.engine.pool import GRID_S, HANGS_S, IDLE_S, SEEN_S, Job, Pool, Stuck, Wait
from tests.kit.patience import PATIENCE_S, patience, wait_until


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


def a_job_has_run(pool: Pool) -> None:
    other = threading.Event()
    pool.job(lambda: other.set() or Wait(), "other").wake()  # type: ignore[func-returns-value]
    assert other.wait(patience(PATIENCE_S))


def test_a_job_that_hangs_delays_no_other(pool: Pool) -> None:
    hang, ran = threading.Event(), [threading.Event() for _ in range(20)]
    hanging = [
        pool.job(lambda: Wait(0.0, GRID_S) if hang.wait(patience(PATIENCE_S)) else Wait(), "hangs") for _ in range(5)
    ]
    others = [pool.job(lambda one=one: one.set() or Wait(), "a") for one in ran]  # type: ignore[misc, func-returns-value]
    for job in (*hanging, *others):
        job.wake()
    try:
        assert all(one.wait(patience(PATIENCE_S)) for one in ran)
        assert not hanging[0].join(time.monotonic())
    finally:
        hang.set()
    assert all(job.join(time.monotonic() + patience(PATIENCE_S)) for job in hanging)


def test_a_job_that_runs_for_a_while_is_on_time_afterwards(pool: Pool) -> None:
    """Meanwhile another thread leads, and waits for a later instant."""
    leads, runs = threading.Event(), list[float]()

    def run() -> Wait:
        runs.append(time.monotonic())
        wait_until(lambda: pool._leads, "another thread leads")
        return Wait(0.0, 0.01) if len(runs) < 5 else Wait(leads.set() or 0.0)  # type: ignore[func-returns-value]

    pool.job(run, "a").wake()
    assert leads.wait(patience(PATIENCE_S))
    assert len(runs) == 5


def test_a_job_with_short_waits_stays_in_its_thread(pool: Pool) -> None:
    """To wake another one for each run costs more than the run."""
    over, threads = threading.Event(), list[int]()

    def run() -> Wait:
        threads.append(threading.get_ident())
        wait_until(lambda: pool._leads, "another thread leads")
        return Wait(0.001, 0.001) if len(threads) < 20 else Wait(over.set() or 0.0)  # type: ignore[func-returns-value]

    pool.job(run, "a").wake()
    assert over.wait(patience(PATIENCE_S))
    assert len(set(threads)) == 1


def test_the_next_instant_is_kept_where_the_thread_that_waits_for_the_one_before_hangs(pool: Pool) -> None:
    hang, ran, runs = threading.Event(), threading.Event(), {"hangs": 0, "other": 0}

    def run(name: str, wait_s: float, second: Callable[[], object]) -> Wait:
        runs[name] += 1
        if runs[name] == 2:
            second()
            return Wait()
        wait_until(lambda: pool._leads, "another thread leads")
        return Wait(wait_s, wait_s)

    pool.job(lambda: run("hangs", 0.05, lambda: hang.wait(patience(PATIENCE_S))), "hangs").wake()
    pool.job(lambda: run("other", 0.1, ran.set), "other").wake()
    try:
        assert ran.wait(patience(PATIENCE_S))
    finally:
        hang.set()


def test_a_thread_that_waits_for_the_next_run_of_its_job_ends_with_the_pool() -> None:
    pool, own = Pool(), list[threading.Thread]()

    def run() -> Wait:
        own.append(threading.current_thread())
        wait_until(lambda: pool._leads, "another thread leads")
        return Wait(60.0, 60.0)

    pool.job(run, "a").wake()
    wait_until(lambda: pool._spares == 1, "the job's thread waits for its next run")
    pool.close()
    own[0].join(patience(PATIENCE_S))
    assert not own[0].is_alive()


def test_jobs_of_the_grid_pass_one_that_hangs(pool: Pool) -> None:
    """All of them become due in the same instant, and one thread would run them one after the other."""
    hang, counts = threading.Event(), [0] * 10

    def run(number: int) -> Wait:
        counts[number] += 1
        if number == 0 and counts[0] == 2:
            hang.wait(patience(PATIENCE_S))
        return Wait(GRID_S, GRID_S)

    for job in [pool.job(lambda number=number: run(number), "a") for number in range(10)]:  # type: ignore[misc]
        job.wake()
    try:
        wait_until(lambda: counts[0] == 2, "one of them hangs")
        enough = max(counts) + 2
        wait_until(lambda: min(counts[1:]) >= enough, "the others go on")
        assert counts[0] == 2
    finally:
        hang.set()


def test_a_job_that_is_woken_while_it_runs_runs_once_more(pool: Pool) -> None:
    runs: list[int] = []

    def run() -> Wait:
        runs.append(1)
        if len(runs) == 1:
            job.wake()
            job.wake()
        return Wait()

    job = pool.job(run, "a")
    job.wake()
    wait_until(lambda: len(runs) == 2, "it runs once more")
    assert job.join(time.monotonic() + patience(PATIENCE_S))
    a_job_has_run(pool)
    assert len(runs) == 2


def test_a_job_that_is_woken_waits_as_long_as_it_must(pool: Pool) -> None:
    began: list[float] = []

    def run() -> Wait:
        began.append(time.monotonic())
        return Wait(0.05)

    job = pool.job(run, "a")
    job.wake()
    wait_until(lambda: len(began) == 1, "it runs")
    job.wake()
    wait_until(lambda: len(began) == 2, "it runs again")
    assert began[1] - began[0] >= 0.05


def test_long_waits_end_together_and_never_late(pool: Pool) -> None:
    began_s, waits_s = time.monotonic(), [20 * GRID_S + number / 10 for number in range(3)]
    jobs = [pool.job(lambda wait_s=wait_s: Wait(0.0, wait_s), "a") for wait_s in waits_s]  # type: ignore[misc]
    for job in jobs:
        job.wake()
    at_s = list[float]()

    def wait() -> bool:
        at_s[:] = [job.at_s for job in jobs]  # read once: each runs again after its wait
        return all(began_s + 19 * GRID_S < one < math.inf for one in at_s)

    wait_until(wait, "each has run, and waits")
    ended_s = time.monotonic()
    for one, wait_s in zip(at_s, waits_s, strict=True):
        points = (one - pool._origin_s) / GRID_S
        assert points == pytest.approx(round(points)), "a point of the grid"
        assert began_s + wait_s - GRID_S < one <= ended_s + wait_s


def test_a_cancelled_job_does_not_run(pool: Pool) -> None:
    ran = threading.Event()
    job = pool.job(lambda: ran.set() or Wait(), "a")  # type: ignore[func-returns-value]
    job.cancel()
    job.wake()
    a_job_has_run(pool)
    assert not ran.is_set()


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_jobs_share_the_threads_that_there_are_where_the_system_gives_no_more(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, hang = [threading.Event() for _ in range(5)], threading.Event()

    def begin() -> Wait:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for job in others:
            job.wake()
        hang.wait(patience(PATIENCE_S))
        return Wait()

    others = [pool.job(lambda one=one: one.set() or Wait(0.0, GRID_S), "a") for one in ran]  # type: ignore[misc, func-returns-value]
    pool.job(begin, "begins").wake()
    try:
        assert all(one.wait(patience(PATIENCE_S)) for one in ran)
    finally:
        hang.set()


def test_a_pool_that_gets_no_thread_at_all_says_so(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    job = pool.job(Wait, "a")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            job.wake()


class Clock:
    """The time of a pool; a look at the jobs every LOOK_S or more, as by a scheduler's tick."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.now_s = pool.now_s()
        pool.now_s = lambda: self.now_s  # type: ignore[method-assign]

    def look(self, seconds: float, step_s: float = SEEN_S) -> list[Stuck]:
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            self.pool.stuck()
        return self.pool.stuck()


@pytest.fixture
def clock(pool: Pool) -> Clock:
    return Clock(pool)


@pytest.fixture
def hanging(pool: Pool) -> Iterator[tuple[Job, threading.Event]]:
    """Return a job that is within its run, and the event that ends it."""
    began, end = threading.Event(), threading.Event()

    def run() -> Wait:
        began.set()
        end.wait(patience(PATIENCE_S))
        return Wait()

    job = pool.job(run, "hangs")
    job.wake()
    assert began.wait(patience(PATIENCE_S))
    yield job, end
    end.set()


@pytest.mark.parametrize("error", [ValueError("a defect"), SystemExit(), MemoryError()], ids=repr)
def test_a_job_that_raises_is_told_and_no_job_begins_any_more(
    pool: Pool, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    pool.job(mock.Mock(side_effect=error), "ingest of shard 3").wake()
    wait_until(lambda: pool.failure is not None, "the pool has the failure")
    assert pool.failure == ("ingest of shard 3", error)
    assert "the job ingest of shard 3 died" in caplog.text
    ran = threading.Event()
    other = pool.job(lambda: ran.set() or Wait(), "other")  # type: ignore[func-returns-value]
    other.wake()
    wait_until(lambda: pool._threads == 0, "its threads have ended")
    assert not ran.is_set()
    assert other.join(pool.now_s()), "a stop waits for no job that does not run"


def test_a_job_that_hangs_in_a_call_is_stuck_until_it_goes_on(
    pool: Pool, clock: Clock, hanging: tuple[Job, threading.Event]
) -> None:
    job, end = hanging
    assert clock.look(HANGS_S - 1) == []
    [found] = clock.look(3)
    assert (found.job, found.runs) == ("hangs", True)
    assert HANGS_S <= found.seconds <= HANGS_S + 3
    assert str(found) == f"the job hangs has hung in one call for {found.seconds} s"
    end.set()
    assert job.join(pool.now_s() + patience(PATIENCE_S))
    assert clock.look(1) == []


def test_a_long_run_that_makes_progress_is_not_stuck(clock: Clock, hanging: tuple[Job, threading.Event]) -> None:
    for _ in range(10):
        assert clock.look(HANGS_S - 1) == []
        hanging[0].step()


def test_a_job_of_patience_may_take_longer(pool: Pool, clock: Clock, hanging: tuple[Job, threading.Event]) -> None:
    hanging[0].hangs_s = 60.0
    assert clock.look(58) == []
    assert [one.job for one in clock.look(4)] == ["hangs"]


def test_a_process_that_was_stopped_judges_no_job_by_that_time(
    clock: Clock, hanging: tuple[Job, threading.Event]
) -> None:
    clock.look(1)
    assert clock.look(3_600, step_s=3_600) == []
    assert len(clock.look(HANGS_S)) == 1


def test_a_job_without_a_thread_is_stuck_and_gets_one_when_there_is_one(
    pool: Pool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, hangs, end, ran = threading.Thread.start, threading.Event(), threading.Event(), threading.Event()

    def refuse_second(thread: threading.Thread) -> None:
        if pool._threads or thread.name != "wheel-pool":
            raise RuntimeError("can't start new thread")
        start(thread)

    def hang() -> Wait:
        hangs.set()
        end.wait(patience(PATIENCE_S))
        return Wait()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_second)
        pool.job(hang, "hangs").wake()
        assert hangs.wait(patience(PATIENCE_S))
        pool.job(lambda: ran.set() or Wait(), "starved").wake()  # type: ignore[func-returns-value]
        found = {one.job: one for one in clock.look(HANGS_S + 2)}
    assert (found["hangs"].runs, found["starved"].runs) == (True, False)
    assert str(found["starved"]).startswith("the job starved is due and has had no thread for ")
    assert not ran.is_set()
    clock.look(1)
    assert ran.wait(patience(PATIENCE_S))
    end.set()


def test_no_wait_is_longer_than_a_minute(pool: Pool) -> None:
    """A wake that is lost costs no more."""
    job = pool.job(Wait, "a")
    job.wake()
    wait_until(lambda: job.steps == 1 and not job.is_running, "it has run")
    assert IDLE_S - GRID_S - patience() < job.at_s - pool.now_s() <= IDLE_S
