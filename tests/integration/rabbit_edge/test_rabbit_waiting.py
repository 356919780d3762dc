"""The wait for a message on RabbitMQ: what ends it, and an idle scheduler that waits in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from celery_wheel.broker.amqp import edge as amqp_edge
from celery_wheel.broker.amqp import link
from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.engine import runner
from celery_wheel.engine.round import Round, RoundSteps, run_round
from celery_wheel.errors import BrokerError
from celery_wheel.scheduler.service import WheelService
from tests.integration.rabbit_edge.conftest import Yard
from tests.kit.patience import patience, wait_until
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.stack import Stack

BIG = 2**30
LONG_MS = 600_000


def send(yard: Yard, task_id: str) -> None:
    yard.app.send_task("tasks.add", (1, 2), countdown=60, queue="mail", task_id=task_id)


def adopted(yard: Yard) -> AmqpBroker:
    edge = yard.edge()
    edge.adopt(0, 1)
    return edge


def outcome(waiting: Future[bool]) -> bool | BrokerError:
    try:
        return waiting.result(patience(60))
    except BrokerError as error:
        return error


@pytest.mark.parametrize(
    "end", [lambda edge: edge.leave(0, 1), lambda edge: edge.close()], ids=["the shard is left", "the edge is closed"]
)
def test_a_wait_ends_at_once_where_nobody_needs_it_any_more(yard: Yard, end: Callable[[AmqpBroker], None]) -> None:
    edge = adopted(yard)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(edge.await_message, 0, LONG_MS)
        wait_until(waiting.running, "the thread waits")
        end(edge)
        assert outcome(waiting) is False


def test_a_wait_goes_on_over_a_new_adoption(yard: Yard) -> None:
    edge = adopted(yard)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(edge.await_message, 0, LONG_MS)
        wait_until(waiting.running, "the thread waits")
        edge.adopt(0, 2)
        send(yard, "one")
        assert outcome(waiting) is True


def test_a_wheel_queue_that_is_deleted_meanwhile_is_a_failure_and_is_made_again(yard: Yard) -> None:
    edge = adopted(yard)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(edge.await_message, 0, LONG_MS)
        yard.channel.queue_delete("wheel.0")
        assert isinstance(outcome(waiting), BrokerError)
        assert edge.await_message(0, 10) is False
        waiting = pool.submit(edge.await_message, 0, LONG_MS)
        send(yard, "one")
        assert outcome(waiting) is True
    assert edge.peek(0, 10, BIG).arrivals


def test_the_wait_reads_one_message_and_the_rest_stays_in_the_socket(yard: Yard) -> None:
    """The bounds of ``peek`` are the only ones that memory has."""
    edge = adopted(yard)
    for n in range(20):
        send(yard, f"task {n}")
    for _ in range(20):
        assert edge.await_message(0, LONG_MS) is True
    assert len(edge._shards[0]._unacknowledged) == 1


def test_a_connection_that_only_waits_sends_heartbeats(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends a connection that sends nothing for two heartbeats."""
    for module in (link, amqp_edge):
        monkeypatch.setattr(module, "HEARTBEAT_S", 1)
    edge = adopted(yard)
    assert edge.await_message(0, 4_000) is False
    send(yard, "one")
    assert edge.await_message(0, LONG_MS) is True


def test_a_server_that_hangs_is_a_failure_and_is_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats tell: the socket stays open, and nothing comes."""
    for module in (link, amqp_edge):
        monkeypatch.setattr(module, "HEARTBEAT_S", 1)
    monkeypatch.setattr(link, "TIMEOUT_S", 1)
    with RabbitServer(tmp_path) as server:
        yard = Yard(server)
        edge = adopted(yard)
        server.pause()
        for _ in range(2):  # the first finds the end of the connection, the second no new one
            with pytest.raises(BrokerError, match=r"waiting at the wheel queue wheel\.0"):
                edge.await_message(0, LONG_MS)
        server.resume()
        send(yard, "one")

        def is_told() -> bool:
            try:
                return edge.await_message(0, 1_000)
            except BrokerError:
                return False

        wait_until(is_told, "the message is told")
        yard.close()


def test_an_idle_scheduler_is_told_of_messages_and_no_round_fails(
    tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is due at once is dispatched, though the scheduler would peek once a minute."""
    ends = Counter[Round]()

    def counted(steps: RoundSteps, *on_step: Callable[[], None]) -> Round:
        ends[end := run_round(steps, *on_step)] += 1
        return end

    yard.queue("mail")
    monkeypatch.setattr(runner, "run_round", counted)
    with Stack(tmp_path, yard.url, wheel_poll_interval=60, wheel_control=False) as stack:
        service = WheelService(stack.app)
        service.start()
        try:
            wait_until(lambda: service.holds(0), "the shard is held")
            [engine] = service._engines()
            for n in range(3):
                listened = ends.total()
                wait_until(lambda: ends.total() > listened + 10, "the scheduler has been idle", every_s=1)  # noqa: B023
                yard.app.send_task("tasks.add", (1, 2), countdown=0.01, queue="mail", task_id=str(n))
                wait_until(lambda: len(yard.take("mail")) == 1, "the task is dispatched")
            status = engine.stats
            assert (status.dispatched, status.broker_errors, status.store_errors) == (3, 0, 0)
            assert ends[Round.FAILED] == 0
        finally:
            service.stop()
