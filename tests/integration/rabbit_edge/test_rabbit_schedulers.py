"""Schedulers on one RabbitMQ: copies of a store, of which one is refused; and real processes with a worker."""

import random
import sqlite3
import threading
from pathlib import Path
from typing import Any

import amqp
import pytest
from kombu import Queue

from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.errors import BrokerError, StoreConflict
from celery_wheel.store.ports import StoreIdentity
from celery_wheel.store.store_model import EPOCH_LEAP
from tests.faults.load import StackUnderLoad
from tests.integration.rabbit_edge.conftest import Yard
from tests.kit.patience import patience, wait_until


def at(yard: Yard, place: str, instance: str, uuid: str = "u") -> AmqpBroker:
    store = StoreIdentity(uuid, instance, f"/srv/{place}", f"/srv/{place} on here")
    edge = AmqpBroker(yard.app.connection_for_write, QueuedMessageReader(), store)
    yard._edges.append(edge)
    return edge


def wait_for_silence(edge: AmqpBroker) -> None:
    wait_until(lambda: (owner := edge.owner(0)) is not None and not owner.lives, "its connection has ended")


def test_a_copy_is_refused_while_the_other_lives(yard: Yard) -> None:
    first, places = at(yard, "a", "1"), ("a", "b")
    first.adopt(0, 5)
    for place in places:
        with pytest.raises(StoreConflict) as refused:
            at(yard, place, "2").adopt(0, 6)
        for part in ("/srv/a on here", f"/srv/{place} on here", "claim-store"):
            assert part in str(refused.value)
    assert first.peek(0, 1, 1).arrivals == []
    owner = first.owner(0)
    assert (owner.lives, owner.place) == (True, "/srv/a on here")


def test_a_standby_of_the_same_store_takes_over_beside_a_holder_that_hangs(yard: Yard) -> None:
    at(yard, "a", "1").adopt(0, 5)
    at(yard, "a", "1").adopt(0, 6)


def test_a_silent_holder_is_succeeded_at_its_own_place_alone(yard: Yard) -> None:
    first, restored, copied = at(yard, "a", "1"), at(yard, "a", "2"), at(yard, "b", "3")
    first.adopt(0, 5)
    first.leave(0, 5)
    wait_for_silence(first)
    with pytest.raises(StoreConflict):
        copied.adopt(0, 6)
    restored.adopt(0, 4)
    with pytest.raises(StoreConflict):
        first.adopt(0, 7)


def test_a_claimed_copy_goes_on_and_the_other_is_refused_for_good(yard: Yard) -> None:
    first, second = at(yard, "a", "1"), at(yard, "b", "2")
    first.adopt(0, 5)
    first.leave(0, 5)
    second.adopt(0, 5 + EPOCH_LEAP)
    second.leave(0, 5 + EPOCH_LEAP)
    wait_for_silence(first)
    with pytest.raises(StoreConflict, match="/srv/b on here"):
        first.adopt(0, 6)


def test_another_store_is_refused_while_the_first_lives(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    first, other = at(yard, "a", "1"), at(yard, "b", "2", "v")
    first.adopt(0, 5)
    with pytest.raises(StoreConflict, match="belongs to another store"):
        other.adopt(0, 1)
    first.leave(0, 5)
    wait_for_silence(first)
    other.adopt(0, 1)
    assert "whose pending tasks stay there" in caplog.text


@pytest.mark.slow
def test_a_holder_whose_connection_was_cut_finds_the_copy_that_came_meanwhile(yard: Yard) -> None:
    first, restored = at(yard, "a", "1"), at(yard, "a", "2")
    first.adopt(0, 5)
    yard.cut_all()
    wait_for_silence(restored)
    restored.adopt(0, 6)
    with pytest.raises(BrokerError, match="was lost"):
        first.peek(0, 1, 1)
    with pytest.raises(StoreConflict):
        first.peek(0, 1, 1)


def test_a_look_at_the_holder_waits_for_another_one(yard: Yard) -> None:
    """A copy that is refused looks twice a second; a command that looks as well has its answer, and no error."""
    edge = yard.edge()
    edge.adopt(0, 1)
    lock = yard.app.connection_for_write()
    lock.default_channel.queue_declare("wheel.0.holder.lock", exclusive=True, auto_delete=False)
    with pytest.raises(BrokerError, match=r"another process looks who holds shard 0 .*; try again"):
        edge.owner(0)
    freed = threading.Timer(0.2, lock.close)
    freed.start()
    owner = edge.owner(0)
    freed.join()
    assert owner.lives


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"task_default_queue_type": "quorum", "worker_detect_quorum_queues": True}],
    ids=["classic", "quorum, with Celery's own delayed delivery"],
)
def test_delayed_tasks_go_through_the_wheel_and_run_once(tmp_path: Path, yard: Yard, settings: dict[str, Any]) -> None:
    """With a quorum queue Celery delays by exchanges of its own: the wheel has to act before that."""
    store = tmp_path / "wheel.sqlite3"
    settings = {"wheel_lease": 60, **settings}  # a holder that stands still sends nothing again after it
    with StackUnderLoad(tmp_path, yard, f"sqlite:///{store}", random.Random(1), **settings) as stack:
        stack.wait_for_runs(100)
        verdict = stack.settle(40)
    assert verdict.ran == verdict.scheduled >= 100
    assert (verdict.broken(), verdict.twice_marked) == ({}, []), str(verdict)
    with sqlite3.connect(store) as database:
        (accepted,) = database.execute("SELECT count(*) FROM wheel_timer").fetchone()
    database.close()
    assert accepted == verdict.scheduled, "every one of them was in the wheel"


@pytest.mark.slow
def test_tasks_for_a_full_queue_wait_and_delay_no_other_queue(tmp_path: Path, yard: Yard) -> None:
    yard.queue("full", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    yard.channel.basic_publish(amqp.Message(b"in the way", application_headers={}), routing_key="full")
    store = tmp_path / "wheel.sqlite3"
    with StackUnderLoad(tmp_path, yard, f"sqlite:///{store}", random.Random(2)) as stack:
        waiting = [
            stack.app.send_task(
                "note", ("full", 0), countdown=1 + n / 10, queue=Queue("full", routing_key="full", no_declare=True)
            ).id
            for n in range(5)
        ]
        stack.wait_for_runs(150)
        arrived: list[str] = []

        def all_arrived() -> bool:
            arrived.extend(m.properties["application_headers"].get("id", "") for m in yard.take("full", 1))
            return len([one for one in arrived if one]) >= 5

        wait_until(all_arrived, "the tasks for the full queue")
        assert [one for one in arrived if one] == waiting, "in the order in which they were due"
        assert stack.settle(40).late_ms < patience(5_000)
