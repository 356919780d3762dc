"""The pool of threads: no job waits for the call of another, and long waits end together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import pytest

from celery_wheel.engine.pool import GRID_S, Pool, Wait
from tests.kit.patience import PATIENCE_S, patience, wait_until


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


def test_a_job_that_hangs_delays_no_other(pool: Pool) -> None:
    hang, ran = threading.Event(), [threading.Event() for _ in range(20)]
    hanging = [pool.job(lambda: Wait(0.0, GRID_S) if hang.wait(patience(PATIENCE_S)) else Wait()) for _ in range(5)]
    others = [pool.job(lambda one=one: one.set() or Wait()) for one in ran]  # type: ignore[misc, func-returns-value]
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

    pool.job(run).wake()
    assert leads.wait(patience(PATIENCE_S))
    assert len(runs) == 5


def test_jobs_of_the_grid_pass_one_that_hangs(pool: Pool) -> None:
    """All of them become due in the same instant, and one thread would run them one after the other."""
    hang, counts = threading.Event(), [0] * 10

    def run(number: int) -> Wait:
        counts[number] += 1
        if number == 0 and counts[0] == 2:
            hang.wait(patience(PATIENCE_S))
        return Wait(GRID_S, GRID_S)

    for job in [pool.job(lambda number=number: run(number)) for number in range(10)]:  # type: ignore[misc]
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

    job = pool.job(run)
    job.wake()
    wait_until(lambda: len(runs) == 2, "it runs once more")
    assert job.join(time.monotonic() + patience(PATIENCE_S))
    other = threading.Event()
    pool.job(lambda: other.set() or Wait()).wake()  # type: ignore[func-returns-value]
    assert other.wait(patience(PATIENCE_S))
    assert len(runs) == 2


def test_a_job_that_is_woken_waits_as_long_as_it_must(pool: Pool) -> None:
    began: list[float] = []

    def run() -> Wait:
        began.append(time.monotonic())
        return Wait(0.05)

    job = pool.job(run)
    job.wake()
    wait_until(lambda: len(began) == 1, "it runs")
    job.wake()
    wait_until(lambda: len(began) == 2, "it runs again")
    assert began[1] - began[0] >= 0.05


def test_long_waits_end_together_and_never_late(pool: Pool) -> None:
    began_s, waits_s = time.monotonic(), [20 * GRID_S + number / 10 for number in range(3)]
    jobs = [pool.job(lambda wait_s=wait_s: Wait(0.0, wait_s)) for wait_s in waits_s]  # type: ignore[misc]
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
    job = pool.job(lambda: ran.set() or Wait())  # type: ignore[func-returns-value]
    job.cancel()
    job.wake()
    other = threading.Event()
    pool.job(lambda: other.set() or Wait()).wake()  # type: ignore[func-returns-value]
    assert other.wait(patience(PATIENCE_S))
    assert not ran.is_set()


def test_jobs_share_the_threads_that_there_are_where_the_system_gives_no_more(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, hang = [threading.Event() for _ in range(5)], threading.Event()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def begin() -> Wait:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for job in others:
            job.wake()
        hang.wait(patience(PATIENCE_S))
        return Wait()

    others = [pool.job(lambda one=one: one.set() or Wait(0.0, GRID_S)) for one in ran]  # type: ignore[misc, func-returns-value]
    pool.job(begin).wake()
    try:
        assert all(one.wait(patience(PATIENCE_S)) for one in ran)
    finally:
        hang.set()


def test_a_pool_that_gets_no_thread_at_all_says_so(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    job = pool.job(Wait)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            job.wake()
