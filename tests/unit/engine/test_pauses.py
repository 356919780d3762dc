"""A busy round is followed by the next one the later, the less work it had: a stream is taken in groups."""

from __future__ import annotations

import pytest

from celery_wheel.engine.pool import Wait
from celery_wheel.engine.round import Round
from celery_wheel.engine.runner import DISPATCH_S, INGEST_S, Runner, ShardJobs
from tests.unit.engine.conftest import Rig


@pytest.fixture
def jobs(rig: Rig) -> ShardJobs:
    rig.run("tend", "ingest", "listen")
    [found] = Runner(rig.engine, lease_ms=2_000, poll_ms=50).shards
    return found


def test_a_round_of_few_messages_is_followed_by_a_pause_that_no_message_ends(jobs: ShardJobs) -> None:
    wait = jobs._after_ingest(Round.BUSY, 0.004)
    assert wait.least_s == wait.most_s == pytest.approx(INGEST_S - 0.008)
    assert jobs._after_dispatch(Round.BUSY, 0.001).least_s == pytest.approx(DISPATCH_S - 0.002)


def test_a_round_of_many_messages_is_followed_by_the_next_at_once(jobs: ShardJobs) -> None:
    assert jobs._after_ingest(Round.BUSY, INGEST_S / 2) == Wait(0.0, 0.0)
    assert jobs._after_dispatch(Round.BUSY, DISPATCH_S / 2) == Wait(0.0, 0.0)


def test_a_message_that_comes_alone_is_taken_at_once(jobs: ShardJobs) -> None:
    assert jobs._after_ingest(Round.IDLE, 0.004).least_s == 0
    assert jobs._after_dispatch(Round.IDLE, 0.001).least_s == 0
