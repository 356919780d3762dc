"""kombu's SQS transport at moto's server: messages that a visibility time-out returns, and refusals of the server."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import kombu
import pytest
from botocore.exceptions import ClientError
from kombu.transport import SQS

from celery_wheel import Celery
from celery_wheel.broker.destinations import Destinations
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.virtual import TRIES, KombuBroker
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.port import Peeked
from celery_wheel.errors import BrokerError
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN, Message, Row, Unreadable
from celery_wheel.timing import SystemClock
from tests.integration.virtual_edge.conftest import running
from tests.kit.chunks import at, chunk_of, make_row
from tests.kit.patience import wait_until
from tests.kit.servers.sqs import KEY, SECRET, SqsServer

BIG = 2**30
_names = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    with SqsServer(tmp_path_factory.mktemp("sqs")) as server:
        yield server


class Installation:
    def __init__(self, server: SqsServer) -> None:
        self.name = f"n{next(_names)}-{os.getpid()}"
        self.server = server
        self.client = server.client
        self.queue = server.make_queue(f"{self.name}-0", VisibilityTimeout="600")
        self.app = Celery(self.name, broker=server.url, set_as_current=False)
        self.app.conf.update(broker_transport_options=server.options, wheel_namespace=self.name)
        self._edges: list[KombuBroker] = []

    def edge(self) -> KombuBroker:
        edge = KombuBroker(self.app, QueuedMessageReader(Destinations(self.name), 2**20))
        self._edges.append(edge)  # kombu returns the messages of a collected connection
        return edge

    def adopted(self) -> KombuBroker:
        edge = self.edge()
        edge.adopt(0, 1)
        return edge

    def close(self) -> None:
        for edge in self._edges:
            edge.close()
        self.app.close()

    def send(self, count: int) -> list[str]:
        return [self.app.send_task("t", (n,), countdown=60, queue=f"{self.name}-out").id for n in range(count)]

    def end_time_outs(self, edge: KombuBroker) -> None:
        """Let the visibility time-outs of the messages that an edge holds end now."""
        for message in edge._shards[0]._unacknowledged:
            tag = message.delivery_tag
            self.client.change_message_visibility(QueueUrl=self.queue, ReceiptHandle=tag, VisibilityTimeout=0)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of visible and of hidden messages in the wheel queue."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])

    def row(self, row_id: int, queue: str, body: bytes = b"[]") -> Row:
        kept = b'{"content_type": "application/json", "content_encoding": "utf-8"}'
        return make_row(row_id, queue, due_ms=1, eta_ms=1, headers=b"{}", properties=kept, body=body)

    def publish(self, edge: KombuBroker, rows: list[Row]) -> Any:
        return edge.publish(chunk_of(ORIGIN, at(1), rows, now_ms=0), lambda: True)


@pytest.fixture(autouse=True)
def no_queue_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests apart: an older Kombu knows one list of queues for all servers of the process."""
    if kombu.VERSION < (5, 7):
        monkeypatch.setattr(SQS.Channel, "_queue_cache", {})


@pytest.fixture
def installed(server: SqsServer) -> Iterator[Installation]:
    installed = Installation(server)
    yield installed
    installed.close()


def ids(peeked: Peeked) -> list[str]:
    return [one.task_id for one in peeked.arrivals if isinstance(one, Message)]


def test_another_name_of_the_wheel_queue_is_no_tasks_queue(installed: Installation) -> None:
    """SQS allows no dot in a name, so kombu writes a dash in its place."""
    failed = installed.publish(installed.edge(), [installed.row(1, f"{installed.name}-0")]).failed
    assert failed == {1: f"queue '{installed.name}-0' is one of the wheel, of Celery or of kombu"}


def test_unacknowledged_messages_of_a_killed_scheduler_are_delivered_again(installed: Installation) -> None:
    sent = installed.send(12)  # more messages than one answer of SQS has
    killed, other = installed.adopted(), installed.edge()
    assert ids(killed.peek(0, 100, BIG)) == sent
    assert installed.counts() == (0, 12)
    installed.end_time_outs(killed)
    other.adopt(0, 2)
    wait_until(lambda: ids(other.peek(0, 100, BIG)) == sent, "the other gets the messages")
    assert other.trim(0, 2, other.peek(0, 100, BIG).token)
    assert installed.counts() == (0, 0)


def test_a_message_delivered_again_while_it_is_held_is_accepted_once(installed: Installation, tmp_path: Path) -> None:
    installed.send(5)
    edge = installed.edge()
    store = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")
    engine = Engine(0, "here", store, edge, SystemClock())
    for _ in engine.tend():
        pass
    for step in engine.ingest():
        if step == "applied":
            break  # committed, and held for longer than the queue hides it
    installed.end_time_outs(edge)
    assert installed.counts() == (5, 0)
    for _ in engine.ingest():
        pass
    assert sum(store.pending(0).values()) == 5
    assert engine.stats.known == 10  # each twice: the first copy's receipt and the second's
    assert installed.counts() == (0, 0)
    for _ in engine.release():
        pass
    store.close()


@pytest.mark.slow
def test_an_invalid_receipt_stops_no_trim_or_leave(installed: Installation, caplog: pytest.LogCaptureFixture) -> None:
    sent = installed.send(3)
    edge, other = installed.adopted(), installed.edge()
    first = edge.peek(0, 1, BIG)
    held = edge._shards[0]._unacknowledged
    for message in list(held)[:2]:  # another consumer has received and deleted the message
        installed.client.delete_message(QueueUrl=installed.queue, ReceiptHandle=message.delivery_tag)
    assert edge.trim(0, 1, first.token)
    edge.leave(0, 1)  # the second message's receipt is invalid; the third message is returned all the same
    other.adopt(0, 2)
    assert ids(other.peek(0, 10, BIG)) == sent[2:]
    assert "DUMP" not in caplog.text  # kombu writes the bodies that it cannot return into a file in /tmp


@pytest.mark.slow
def test_neither_a_single_message_nor_an_empty_queue_delays_a_peek(installed: Installation) -> None:
    """By default kombu lets the server hold each request for 10 seconds. The wheel asks for 1 second at most."""

    def seconds(doing: Callable[[], Any]) -> float:
        began_s = time.monotonic()
        doing()
        return time.monotonic() - began_s

    edge = installed.adopted()
    assert 0.9 < seconds(lambda: edge.peek(0, 100, BIG)) < 9
    sent = installed.send(1)
    assert min(seconds(lambda: edge.peek(0, 100, BIG)) for _ in range(5)) < 1, "a machine may stand still for seconds"
    assert ids(edge.peek(0, 100, BIG)) == sent
    assert seconds(lambda: edge.leave(0, 1)) < 9


@pytest.mark.slow
@pytest.mark.skipif(kombu.VERSION < (5, 7), reason="Kombu before 5.7 never forgets a queue that was deleted")
def test_a_wheel_queue_that_was_deleted_is_made_anew(installed: Installation) -> None:
    edge = installed.adopted()
    installed.client.delete_queue(QueueUrl=installed.queue)
    with pytest.raises(BrokerError, match=r"NonExistentQueue|QueueDoesNotExist|does not exist"):
        edge.peek(0, 10, BIG)
    assert edge.peek(0, 10, BIG).arrivals == []
    sent = installed.send(1)
    assert ids(edge.peek(0, 10, BIG)) == sent


def test_a_refused_delete_is_reported_and_read_once(installed: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.send(2)
    edge = installed.adopted()
    peeked = edge.peek(0, 10, BIG)
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "not you"}}, "DeleteMessage")
    monkeypatch.setattr(edge._shards[0]._channel.sqs(), "delete_message", Mock(side_effect=denied))
    with pytest.raises(BrokerError, match=r"acknowledging .*AccessDeniedQueueException: not you"):
        edge.trim(0, 1, peeked.token)
    again = edge.peek(0, 10, BIG)
    assert {one.envelope_id for one in again.arrivals} == {one.envelope_id for one in peeked.arrivals}


@pytest.mark.slow
@pytest.mark.skipif(kombu.VERSION < (5, 6), reason="Kombu before 5.6 stops at a message that is no JSON")
def test_a_foreign_message_is_kept_and_the_others_go_on(installed: Installation) -> None:
    for text in ("hello", '{"properties": {}}', "[1, 2]"):
        installed.client.send_message(QueueUrl=installed.queue, MessageBody=text)
    sent = installed.send(1)
    edge = installed.adopted()
    peeked = edge.peek(0, 10, BIG)
    assert ids(peeked) == sent
    assert sum(isinstance(one, Unreadable) for one in peeked.arrivals) == 3
    assert edge.trim(0, 1, peeked.token)
    assert installed.counts() == (0, 0)


def test_predefined_queues_work_under_both_names(installed: Installation) -> None:
    place = {"url": installed.queue, "access_key_id": KEY, "secret_access_key": SECRET}
    queues = dict.fromkeys((f"{installed.name}.0", f"{installed.name}-0", f"{installed.name}-out"), place)
    installed.app.conf.broker_transport_options = {**installed.server.options, "predefined_queues": queues}
    sent = installed.send(1)
    edge = installed.adopted()
    peeked = edge.peek(0, 10, BIG)
    assert ids(peeked) == sent
    assert edge.trim(0, 1, peeked.token)
    assert installed.counts() == (0, 0)


def test_the_producer_gets_an_error_for_a_message_that_is_too_big(installed: Installation) -> None:
    with pytest.raises(ClientError, match="shorter than 1048576 bytes"):
        installed.app.send_task("t", ("x" * 2**20,), countdown=60)


def test_a_message_too_big_for_its_queue_is_rejected_and_delays_only_that_queue(installed: Installation) -> None:
    installed.server.make_queue(f"{installed.name}-small", MaximumMessageSize="1024")
    small, other = f"{installed.name}-small", f"{installed.name}-other"
    big, after, free = installed.row(1, small, b"x" * 2_000), installed.row(2, small), installed.row(3, other)
    edge = installed.edge()
    published = installed.publish(edge, [big, after, free])
    assert published.failed == {}
    assert published.refused.keys() == {1, 2}  # no row overtakes it, and the third row is dispatched
    for _ in range(TRIES - 2):
        assert installed.publish(edge, [big]).refused.keys() == {1}
    assert f"refused {TRIES} times" in installed.publish(edge, [big]).failed[1]
    assert installed.publish(edge, [after]).failed == {}


def test_a_server_that_is_busy_is_no_reason_to_reject(installed: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    edge, row = installed.edge(), installed.row(1, f"{installed.name}-out")
    error = {"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    with monkeypatch.context() as patch:
        patch.setattr("kombu.transport.SQS.Channel._put", Mock(side_effect=ClientError(error, "SendMessage")))
        for _ in range(TRIES + 1):
            assert installed.publish(edge, [row]).refused.keys() == {1}
    assert installed.publish(edge, [row]).refused == {}


@pytest.mark.slow
@pytest.mark.skipif(kombu.VERSION < (5, 7), reason="Kombu before 5.7 never forgets a queue that was deleted")
def test_a_server_that_went_away_and_lost_its_queues_stops_nothing(tmp_path: Path) -> None:
    with SqsServer(tmp_path / "sqs") as server:
        installed = Installation(server)
        with closing(installed), running(installed.edge(), tmp_path) as engine:
            installed.app.send_task("t", countdown=2, queue="out")
            wait_until(lambda: engine.stats.accepted == 1, "the store has the task")
            server.kill()
            wait_until(lambda: engine.stats.broker_errors > 1, "the schedulers have noticed")
            server.start()
            wait_until(lambda: engine.stats.dispatched == 1, "the tasks in the store are dispatched")
            queues = {"QueueNamePrefix": f"{installed.name}-0"}
            wait_until(lambda: "QueueUrls" in server.client.list_queues(**queues), "the wheel queue is made anew")
            installed.app.send_task("t", countdown=0.1, queue="out")
            wait_until(lambda: engine.stats.dispatched == 2, "later tasks are dispatched as well")
