"""Failovers in a short form, and the judge; ``make replicas`` runs for as long as wanted."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.faults.judge import Verdict
from tests.kit.processes import ROOT
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.stack import Stack
from tests.replicas import postgres, sentinel
from tests.replicas.__main__ import SCENARIOS
from tests.replicas.queues import LENGTH, TASKS, overflow
from tests.replicas.stand import SAID, Account


@pytest.mark.slow
def test_the_schedulers_say_how_many_accepted_tasks_a_promoted_replica_lacks(tmp_path: Path) -> None:
    account = postgres.promote(tmp_path, 7, 1, synchronous=False, proxy=True)
    print(account)
    assert not account.broken, str(account)
    assert account.said == account.gone > 0


@pytest.mark.slow
def test_writes_that_redis_lost_are_dispatched_again(tmp_path: Path) -> None:
    account = sentinel.fail_over(tmp_path, 7, 1)
    print(account)
    assert not account.broken, str(account)
    assert account.counts["published again by the schedulers' own count"]


@pytest.mark.slow
@ON_RABBITMQ
@pytest.mark.parametrize(
    ("policy", "waiting", "arrived"), [("reject-publish", TASKS - LENGTH, TASKS), ("drop-head", 0, LENGTH)]
)
def test_a_full_queue_that_refuses_loses_nothing_and_one_that_drops_its_head_does(
    rabbit_server: RabbitServer, tmp_path: Path, policy: str, waiting: int, arrived: int
) -> None:
    """RabbitMQ confirms a message and drops another one: no client can know."""
    options = {"broker_transport_options": {"confirm_publish": True}}
    with Stack(tmp_path, rabbit_server.fresh(), **options) as stack:
        assert overflow(stack, policy) == (waiting, arrived)


@pytest.mark.parametrize(
    ("gone", "said", "synchronous", "exactly", "broken"),
    [
        (0, 0, True, True, set()),
        (3, 3, True, True, {"gone, and the replica was synchronous", "twice_unmarked"}),
        (3, 3, False, True, set()),
        (3, 2, False, True, {"said"}),
        (3, 2, False, False, set()),
        (3, 4, False, False, {"said"}),
        (0, 1, True, True, {"said"}),
    ],
)
def test_the_judge_compares_what_is_gone_with_what_was_said(
    gone: int, said: int, synchronous: bool, exactly: bool, broken: set[str]
) -> None:
    account = Account("a promotion", Verdict(), gone, said)
    if gone:
        account.broken["twice_unmarked"] = ["a task that was dispatched in the lost commits"]
    assert set(postgres.allowed(account, synchronous=synchronous, exactly=exactly).broken) == broken


def test_the_line_that_is_counted_is_the_product_s() -> None:
    from celery_wheel.engine.adoption import STORE_LOST

    said: Any = STORE_LOST % (1, 89, "then", 10, 99)
    assert SAID.findall(said) == ["89"]


def test_the_long_form_runs_in_the_workflow_within_its_time() -> None:
    text = (ROOT / ".github/workflows/test.yml").read_text()
    assert re.search(r"target: replicas MINUTES=60\b", text)
    assert len(SCENARIOS) == 9
