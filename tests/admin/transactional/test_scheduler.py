"""A real scheduler beside real transactions: the delay after a commit, commands, killed processes, a locked file."""

import json
import statistics
import time
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from celery_wheel import CommandResult, NotCommitted, TransactionalRequest, WheelUnavailable
from celery_wheel.errors import SettingError
from tests.admin.transactional.conftest import ALIAS, Shop
from tests.admin.transactional.test_scheduling import failing, send
from tests.kit.patience import patience, wait_until
from tests.kit.processes import python
from tests.kit.site import celery_app
from tests.kit.warm import SITE

DONE, TOO_LATE, UNKNOWN = CommandResult.DONE, CommandResult.TOO_LATE, CommandResult.UNKNOWN


def left(shop: Shop) -> list[str]:
    """Return the task ids in the workers' queue, in the order of their arrival."""
    assert shop.redis is not None
    return [json.loads(raw)["headers"]["id"] for raw in reversed(shop.redis.client().lrange("celery", 0, -1))]


def accepted(shop: Shop, *task_ids: str) -> bool:
    return {row.task_id for row in shop.store.find(0, task_ids)} == set(task_ids)


def test_the_wheel_sees_a_task_soon_after_its_commit(live: Shop) -> None:
    """On a quiet machine the median is below 150 ms; other processes may be at work on this one."""
    took_s = []
    for number in range(20):
        with transaction.atomic(using=ALIAS):
            send(f"task {number}")
            send(f"another {number}")
        began_s = time.monotonic()
        seen = partial(accepted, live, f"task {number}", f"another {number}")
        wait_until(seen, "both are accepted", every_s=0.005)
        took_s.append(time.monotonic() - began_s)
    print(f"{live.vendor}: median {statistics.median(took_s) * 1e3:.0f} ms, at most {max(took_s) * 1e3:.0f} ms")
    assert statistics.median(took_s) < patience(1)


def test_a_committed_task_is_dispatched_when_it_is_due_and_a_rolled_back_one_never(live: Shop) -> None:
    with failing():
        send("rolled back", countdown=0.1)
    with transaction.atomic(using=ALIAS):
        send("past", eta="2020-01-01T00:00:00+00:00", countdown=None)
        send("without a delay", countdown=None, wheel={"transactional": True})
        send("last", countdown=0.5)
    wait_until(lambda: len(left(live)) == 3, "three tasks are dispatched")
    assert left(live)[2] == "last"
    assert live.waiting() == []


def test_a_commit_needs_no_broker(live: Shop) -> None:
    assert live.redis is not None
    live.redis.kill()
    with transaction.atomic(using=ALIAS):
        ids = [send(countdown=0.1) for _ in range(3)]
    live.redis.start()
    wait_until(lambda: left(live) == ids, "the tasks are dispatched")


PROGRAM = """
import signal, sys, django
django.setup()
from django.db import transaction
from tests.kit.site import celery_app
celery_app.conf.wheel_transactional = True
with transaction.atomic():
    celery_app.send_task("site.nothing", task_id="killed", countdown=60)
    if sys.argv[1] == "before":
        print("ready", flush=True)
        signal.pause()
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(("when", "found"), [("before", []), ("after", ["killed"])])
def test_a_killed_process_has_scheduled_what_it_committed(connected: Shop, when: str, found: list[str]) -> None:
    log, variables = connected.folder / "killed.log", connected.running.environment
    with python(log, "-c", PROGRAM, when, kind=SITE, environment=variables) as process:
        process.wait_for("ready")
    assert connected.waiting() == found


def test_without_a_scheduler_a_task_waits_in_the_inbox(connected: Shop) -> None:
    with transaction.atomic(using=ALIAS):
        send("a", countdown=0.1)
    connected.running.beat()
    wait_until(lambda: left(connected) == ["a"], "the task is dispatched")


def test_a_cancellation_is_part_of_the_transaction(live: Shop) -> None:
    wheel = celery_app.wheel
    send("kept", countdown=3_600)
    send("gone", countdown=3_600)
    wait_until(lambda: accepted(live, "kept", "gone"), "they wait")
    with failing():
        kept = wheel.cancel("kept", transactional=True)
    with transaction.atomic(using=ALIAS):
        gone = wheel.cancel("gone", transactional=True, reason="paid")
        assert isinstance(gone, TransactionalRequest)
        with pytest.raises(NotCommitted, match="still open, or was rolled back"):
            gone.result()
    assert gone.result() is DONE
    assert gone.result() is DONE
    with pytest.raises(NotCommitted):
        kept.result()
    assert [one.task_id for one in wheel.pending().items] == ["kept"]
    [found] = wheel.outcomes("cancelled").items
    assert (found.reason, found.kind) == ("paid", "cancelled")


def test_several_tasks_are_moved_and_run_at_once(live: Shop) -> None:
    wheel = celery_app.wheel
    with transaction.atomic(using=ALIAS):
        ids = [send(countdown=3_600) for _ in range(3)]
        moved = wheel.reschedule(ids[0], countdown=7_200, transactional=True)
        run = wheel.run_now([*ids[1:], "nobody"], transactional=True)
    assert moved.result() is DONE
    assert run.result() == {ids[1]: DONE, ids[2]: DONE, "nobody": UNKNOWN}
    wait_until(lambda: sorted(left(live)) == sorted(ids[1:]), "two tasks are dispatched")


def test_the_setting_concerns_only_calls_inside_a_block(live: Shop) -> None:
    wheel = celery_app.wheel
    send("a", countdown=3_600)
    send("b", countdown=3_600)
    with transaction.atomic(using=ALIAS):
        pending: Any = wheel.cancel("a")
        assert isinstance(pending, TransactionalRequest)
    assert pending.result() is DONE
    assert wheel.cancel("b") is DONE
    assert wheel.cancel("b", transactional=False) is CommandResult.ALREADY


def test_a_task_sent_anew_after_its_cancel_is_not_cancelled(live: Shop) -> None:
    send("order", countdown=3_600)
    wait_until(lambda: accepted(live, "order"), "it waits")
    with transaction.atomic(using=ALIAS):
        cancelled = celery_app.wheel.cancel("order", transactional=True)
        send("order", countdown=1_800)
        send("other", countdown=1_800)
        send("never", countdown=1_800)
        celery_app.wheel.cancel("never", transactional=True)
    assert cancelled.result() is DONE
    wait_until(lambda: live.items() == [], "all is accepted")
    assert sorted(one.task_id for one in celery_app.wheel.pending().items) == ["order", "other"]


def test_a_request_without_an_answer_is_withdrawn(connected: Shop) -> None:
    with transaction.atomic(using=ALIAS):
        pending = celery_app.wheel.cancel("a", transactional=True)
    with pytest.raises(WheelUnavailable, match="withdrawn"):
        pending.result(timeout=0.1)
    assert connected.items() == []


def test_a_gate_and_a_completion_are_no_part_of_a_transaction(connected: Shop) -> None:
    with pytest.raises(TypeError, match="without the option transactional"):
        celery_app.wheel.pause(queue="mail", transactional=True)
    with pytest.raises(TypeError, match="complete must be without"):
        celery_app.wheel.complete("order:1", transactional=True)


@pytest.mark.usefixtures("connected", "nowhere")
def test_a_command_needs_the_store_in_the_transactions_database() -> None:
    with pytest.raises(SettingError, match="needs wheel_store = django://"):
        celery_app.wheel.cancel("a", transactional=True)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_transaction_that_stays_open_holds_up_the_wheel_but_loses_nothing(live: Shop) -> None:
    """A slow request has written and stays open for three seconds: tasks in memory are dispatched all the same."""
    holder = live.store.state(0).epoch
    due = [send(f"due {n}", countdown=1 + n / 10) for n in range(10)]
    wait_until(lambda: accepted(live, *due), "they wait")
    with transaction.atomic(using=ALIAS):
        began_s = time.monotonic()
        send("in it", countdown=0.1)
        wait_until(lambda: left(live) == due, "tasks are dispatched while the file is locked")
        wait_until(lambda: time.monotonic() - began_s > 3, "three seconds")
    wait_until(lambda: left(live) == [*due, "in it"], "the task is dispatched")
    assert live.store.state(0).epoch == holder
    assert len(left(live)) == 11
