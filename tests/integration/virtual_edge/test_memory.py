"""With kombu's memory transport, producer, engine and worker run in one process."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from celery.contrib.testing.worker import start_worker
from kombu import Exchange, Queue
from kombu.transport.memory import Channel, Transport

from celery_wheel import Celery
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.virtual import MOST_PLACES, TRIES, KombuBroker
from celery_wheel.engine.port import Confirmed, Peeked
from celery_wheel.errors import BrokerError, PublishInterrupted
from celery_wheel.store.model import ORIGIN, Message, Row, Unreadable
from tests.integration.virtual_edge.conftest import running
from tests.kit.chunks import at, chunk_of, make_row
from tests.kit.patience import patience, wait_until

BIG = 2**30

#: Tasks are sent so long before the first is due: one that is due as it is sent does not go through the wheel.
LEAD_S = 4


def empty() -> None:
    Channel.queues.clear()
    Transport.global_state.clear()


@pytest.fixture
def app() -> Iterator[Any]:
    found = Celery("memory", broker="memory://", backend="cache+memory://", set_as_current=False)
    found.conf.update(task_queues=None)
    empty()  # of other tests of this process, which may have left messages
    yield found
    found.close()
    empty()


@pytest.fixture
def edge(app: Any) -> Iterator[KombuBroker]:
    edge = KombuBroker(app, QueuedMessageReader(max_message_bytes=2**20))
    yield edge
    edge.close()


#: A message without content.
EMPTY: dict[str, Any] = {"headers": b"{}", "properties": b"{}", "body": b"x"}


def publish(edge: KombuBroker, rows: list[Row], **changes: Any) -> Confirmed:
    return edge.publish(chunk_of(ORIGIN, at(1), rows, **changes), lambda: True)


def task_ids(peeked: Peeked) -> list[str]:
    return [one.task_id for one in peeked.arrivals if isinstance(one, Message)]


def rows_of(peeked: Peeked) -> list[Row]:
    return [Row.of(one, n, 0, n, n) for n, one in enumerate(peeked.arrivals, 1) if isinstance(one, Message)]


@pytest.mark.slow
def test_delayed_tasks_wait_in_the_wheel_and_a_worker_runs_them(app: Any, edge: KombuBroker, tmp_path: Path) -> None:
    ran: list[tuple[int, float]] = []

    @app.task(name="note", shared=False)
    def note(n: int) -> None:
        ran.append((n, time.time()))

    with running(edge, tmp_path):
        due = {n: time.time() + LEAD_S + n / 50 for n in range(20)}
        for n, at_s in due.items():
            note.apply_async((n,), countdown=at_s - time.time())
        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=patience(10)):
            wait_until(lambda: len(ran) == 20, "all tasks run")
    assert [n for n, _ in ran] == list(range(20))
    assert all(at_s >= due[n] - 0.001 for n, at_s in ran)


@pytest.mark.parametrize("compression", [None, "zlib", "bzip2"])
def test_a_worker_gets_what_celery_would_have_sent(app: Any, edge: KombuBroker, compression: str | None) -> None:
    """Even the bytes that the transport stores are the same, except for the delivery tag."""
    raws = []
    for countdown in (None, 60):
        options = {"task_id": "same", "priority": 3, "queue": "mail", "compression": compression}
        app.send_task("t", (1,), {"k": "v"}, countdown=countdown, **options)
        if countdown:
            edge.adopt(0, 1)
            (row,) = rows_of(edge.peek(0, 1, BIG))
            assert publish(edge, [row], now_ms=row.eta_ms).failed == {}
        raws.append(Channel.queues["mail"].get_nowait())
    for raw in raws:
        assert raw["properties"].pop("delivery_tag")
    dispatch_ids = [raw["properties"].pop("message_id", None) for raw in raws]
    assert sorted(one is None for one in dispatch_ids) == [False, True], "the wheel's message tells its dispatch"
    assert raws[0] == raws[1]


def test_no_task_goes_to_a_reserved_queue_that_is_bound_to_its_exchange(app: Any, edge: KombuBroker) -> None:
    app.conf.task_queues = [Queue(name, Exchange("news"), routing_key=name) for name in ("wheel.0", "h.celery.pidbox")]
    rows = [make_row(n, exchange="news", routing_key=one.name) for n, one in enumerate(app.conf.task_queues, 1)]
    failed = publish(edge, rows).failed
    assert failed == {
        1: "queue 'wheel.0' is one of the wheel, of Celery or of kombu",
        2: "queue 'h.celery.pidbox' is one of the wheel, of Celery or of kombu",
    }


def test_a_topic_exchange_routes_and_a_row_without_a_route_is_reported(app: Any, edge: KombuBroker) -> None:
    news = Exchange("news", "topic")
    app.conf.task_queues = [Queue("all", news, routing_key="news.#"), Queue("celery")]
    row = make_row(1, routing_key="news.x", exchange="news", exchange_type="topic", **EMPTY)
    lost = make_row(2, exchange="nowhere", **EMPTY)
    published = publish(edge, [row, lost], redelivered=True)
    assert published.failed.keys() == {2}
    (raw,) = [Channel.queues["all"].get_nowait()]
    assert raw["headers"] == {"wheel_redelivered": True}


def test_a_message_without_a_body_or_with_a_broken_one_is_kept(app: Any, edge: KombuBroker) -> None:
    edge.adopt(0, 1)
    app.send_task("t", countdown=60, compression="zlib")
    torn = Channel.queues["wheel.0"].get_nowait()
    Channel.queues["wheel.0"].put({"properties": {"delivery_tag": "1", "delivery_info": {}}})
    Channel.queues["wheel.0"].put({**torn, "body": "bm8gemxpYg=="})
    found = edge.peek(0, 10, BIG).arrivals
    assert [one.reason.partition(":")[0] for one in found if isinstance(one, Unreadable)] == [
        "message must have a body",
        "body must have the compression that its header names",
    ]


def test_depths_are_read_on_the_connection_that_publishes(app: Any, edge: KombuBroker) -> None:
    one = make_row(1, **EMPTY)
    publish(edge, [one])
    with patch.object(app, "connection_for_write") as opened:
        assert [edge.ready([one.route.target, "none"]) for _ in range(3)] == [{one.route.target: 1, "none": 0}] * 3
    assert not opened.called


def test_messages_already_read_outlive_the_server(app: Any, edge: KombuBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [app.send_task("t", (n,), countdown=60).id for n in range(2)]
    edge.adopt(0, 1)
    look, looks = Transport.drain_events, iter([True, True, False, False])

    def two_and_no_more(*arguments: Any, **options: Any) -> Any:
        if next(looks):
            return look(*arguments, **options)
        raise ConnectionResetError("gone")

    monkeypatch.setattr(Transport, "drain_events", two_and_no_more)
    peeked = edge.peek(0, 10, BIG)
    assert task_ids(peeked) == sent
    assert edge.trim(0, 1, peeked.token)
    with pytest.raises(BrokerError, match="gone"):
        edge.peek(0, 10, BIG)


def test_a_row_whose_answer_is_lost_is_in_doubt(edge: KombuBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is in its queue, and its confirm was lost: the next copy has to be marked."""
    put = Channel._put

    def put_and_lose_the_answer(self: Any, *args: Any, **options: Any) -> None:
        put(self, *args, **options)
        raise ConnectionResetError("the answer is lost")

    row = make_row(1, **EMPTY)
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "_put", put_and_lose_the_answer)
        with pytest.raises(PublishInterrupted):
            publish(edge, [row], now_ms=0)
    assert Channel.queues["mail"].qsize() == 1


def test_a_message_over_which_the_transport_fails_is_rejected(
    edge: KombuBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is not among those of the connection: too large, perhaps, in a class of the client's own."""
    put = Channel._put

    def put_unless_odd(self: Any, queue: str, message: Any, **options: Any) -> None:
        if message["headers"].get("odd"):
            raise LookupError("too large")
        put(self, queue, message, **options)

    monkeypatch.setattr(Channel, "_put", put_unless_odd)
    odd = {**EMPTY, "headers": b'{"odd": true}'}
    rows = [make_row(1, **EMPTY), make_row(2, **odd), make_row(3, **EMPTY)]
    left, failed = rows, dict[int, str]()
    for _ in range(TRIES):
        published = publish(edge, left, now_ms=0)
        failed |= published.failed
        left = [row for row in left if row.id in published.refused]
    assert left == []
    assert failed.keys() == {2}
    assert "LookupError" in failed[2]
    assert Channel.queues["mail"].qsize() == 2


def test_nothing_is_kept_of_messages_that_were_refused(edge: KombuBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is cancelled, moved or given up after a refusal, and never comes again."""
    put, refuses = Channel._put, [True]

    def put_or_refuse(self: Any, *args: Any, **options: Any) -> None:
        if refuses[0]:
            raise LookupError("not now")
        put(self, *args, **options)

    monkeypatch.setattr(Channel, "_put", put_or_refuse)
    publisher = edge._outgoing
    publish(edge, [make_row(1, **EMPTY)], now_ms=0)
    row, error = make_row(2, **EMPTY), LookupError("not now")
    for number in range(2, 1_000_000):
        row.id = number
        assert publisher._rejection(row, error) == ""
    assert len(publisher._refused) == 1
    for number in range(3 * MOST_PLACES):
        publisher._rejection(make_row(number, f"queue {number}", **EMPTY), error)
    assert len(publisher._refused) == MOST_PLACES
    publisher._refused = {"mail": (999_999, 3)}
    refuses[0] = False
    assert publish(edge, [make_row(1_000_000, **EMPTY)], now_ms=0) == Confirmed()
    assert publisher._refused == {}


def test_the_memory_of_declared_destinations_is_bounded(edge: KombuBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic exchange may get a routing key for each of the application's users."""
    monkeypatch.setattr("celery_wheel.broker.virtual.MOST_PLACES", 10)
    for number in range(35):
        assert not publish(edge, [make_row(number + 1, f"queue {number}", **EMPTY)], now_ms=0).refused
        assert 0 < len(edge._outgoing._declared) <= 10
