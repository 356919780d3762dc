"""The wheel queue of a real RabbitMQ: servers that hang or refuse, queues that disappear, the wait for a message."""

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import amqp
import pytest

from celery_wheel import Celery
from celery_wheel.broker.amqp import edge as amqp_edge
from celery_wheel.broker.amqp import link, publisher
from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.broker.amqp.frames import FrameReader
from celery_wheel.broker.amqp.link import AmqpLink
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine import runner
from celery_wheel.engine.port import Peeked
from celery_wheel.engine.round import Round, RoundSteps, run_round
from celery_wheel.errors import BrokerError, PublishInterrupted
from celery_wheel.scheduler.service import WheelService
from celery_wheel.store.model import Message, Row, Unreadable
from celery_wheel.values.ids import dispatched_ms
from tests.integration.rabbit_edge.conftest import Yard, ids
from tests.kit.chunks import chunk_of
from tests.kit.chunks import make_row as row
from tests.kit.patience import patience, wait_until
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.stack import Stack

BIG = 2**30
LONG_MS = 600_000


def is_lost(edge: AmqpBroker) -> bool:
    try:
        edge.peek(0, 10, BIG)
    except BrokerError:
        return True
    return False


@pytest.mark.slow
def test_a_message_that_is_very_much_too_large_is_not_read_into_memory(yard: Yard) -> None:
    before = yard.send(1)
    with yard.app.connection_for_write() as connection:
        channel = connection.default_channel
        channel.basic_publish(amqp.Message(b"x" * 900_000, application_headers={}), "", "wheel.0")
    after = yard.send(1)
    edge = AmqpBroker(yard.app.connection_for_write, QueuedMessageReader(max_message_bytes=100_000))
    edge.adopt(0, 1)
    first, large, last = peek(edge, 3).arrivals
    assert [one.task_id for one in (first, last) if isinstance(one, Message)] == before + after
    assert isinstance(large, Unreadable)
    assert large.reason == "message must be at most 100,000 bytes, not 900,000; the store has only its beginning"
    assert 2**16 < len(large.raw) < 2**18
    edge.close()


@pytest.mark.slow
def test_a_token_of_a_connection_that_died_trims_nothing(yard: Yard) -> None:
    sent = yard.send(3)
    edge = yard.adopted()
    old = peek(edge, 3)
    yard.cut_all()
    wait_until(lambda: is_lost(edge), "the edge notices")
    again = peek(edge, 3)
    assert task_ids(again) == sent
    assert not edge.trim(0, 1, old.token)
    assert edge.trim(0, 1, again.token)
    assert edge.peek(0, 10, BIG).arrivals == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": 5},
        {"compression": "zlib"},
        {"serializer": "pickle"},
        {"expires": 3_600},
        {"headers": {"mine": [1, {"a": None}], "when": 1.5}},
        {"reply_to": "somewhere", "task_id": "chosen"},
        {"ignore_result": True, "stamps": {"a": "b"}},
    ],
    ids=str,
)
def test_a_worker_gets_what_celery_would_have_sent_without_a_delay(yard: Yard, options: dict[str, object]) -> None:
    """All properties are compared, except those that differ between two calls: the expiry differs by milliseconds.

    The wheel's message has a dispatch id, which plain Celery's has not.
    """
    yard.queue("mail")
    options = {"task_id": "same", **options}
    yard.app.send_task("tasks.add", (1, 2), {"k": "v"}, queue="mail", **options)  # type: ignore[arg-type]
    (native,) = yard.take("mail")
    yard.app.send_task("tasks.add", (1, 2), {"k": "v"}, queue="mail", countdown=60, **options)  # type: ignore[arg-type]
    edge = yard.adopted()
    (message,) = peek(edge, 1).arrivals
    assert isinstance(message, Message)
    row = Row.of(message, 1, 0, message.eta_ms, 1)
    chunk = chunk_of(row.position.previous(), row.position, [row], now_ms=message.created_ms)
    assert edge.publish(chunk, lambda: True).failed == {}
    (mine,) = yard.take("mail")
    assert mine.body == native.body
    expiries = [int(one.properties.pop("expiration", 0)) for one in (mine, native)]
    assert abs(expiries[0] - expiries[1]) < 2_000
    for one in (mine, native):
        one.properties["application_headers"].pop("expires", None)  # an instant that depends on the call's
    assert dispatched_ms(mine.properties.pop("message_id")) == message.created_ms  # the time of the publish
    assert mine.properties == native.properties


def peek(edge: AmqpBroker, at_least: int, shard: int = 0) -> Peeked:
    """Peek as the engine does: a peek that fails is tried again."""
    found: list[Peeked] = []

    def look() -> bool:
        try:
            found.append(edge.peek(shard, 1_000, BIG))
        except BrokerError:
            return False
        return len(found[-1].arrivals) >= at_least

    wait_until(look, f"{at_least} messages")
    return found[-1]


def task_ids(peeked: Peeked) -> list[str]:
    return [one.task_id for one in peeked.arrivals if isinstance(one, Message)]


@pytest.mark.parametrize("arguments", [{"x-max-length": 5}, {"x-queue-type": "quorum"}])
def test_a_queue_that_others_declared_with_other_arguments_is_used_and_named_in_the_log(
    yard: Yard, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any]
) -> None:
    yard.queue("wheel.0", **arguments)
    assert yard.adopted().peek(0, 10, BIG).arrivals == []
    (said,) = [one.getMessage() for one in caplog.records if "wheel.0" in one.getMessage()]
    assert "x-delivery-limit=-1" in said
    assert next(iter(arguments)) in said


def test_a_user_without_the_right_to_declare_the_wheel_queue_gets_an_error(yard: Yard) -> None:
    vhost = yard.url.rpartition("/")[2]
    yard.server.ctl("set_permissions", "-p", vhost, "guest", "^$", ".*", ".*")
    with pytest.raises(BrokerError, match=r"ACCESS_REFUSED.*wheel\.0"):
        yard.edge().adopt(0, 1)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig", "utf-7", "binary"])
def test_bodies_pass_as_bytes_whatever_their_encoding_says(yard: Yard, encoding: str) -> None:
    sent, body = yard.send(1), "\ufeffa+äü".encode("utf-16")
    (given,) = yard.take("wheel.0")
    given.properties["content_encoding"] = encoding
    yard.channel.basic_publish(amqp.Message(body, **given.properties), routing_key="wheel.0")
    edge = yard.adopted()
    (message,) = peek(edge, 1).arrivals
    assert isinstance(message, Message)
    assert (message.task_id, message.body) == (sent[0], body)


@pytest.mark.parametrize(
    "table",
    [b"\x04when" + b"T" + struct.pack(">Q", 2**50), b"\x02\xff\xfe" + b"t\x01"],
    ids=["a date beyond all years", "a name that is not text"],
)
def test_unreadable_properties_stop_no_other_message(yard: Yard, table: bytes) -> None:
    class Bad(amqp.Message):
        def _serialize_properties(self) -> bytes:
            return b"\x20\x00" + struct.pack(">I", len(table)) + table

    edge = yard.adopted()
    yard.channel.basic_publish(Bad(b"body"), routing_key="wheel.0")
    sent = yard.send(1)
    found = peek(edge, 2)
    assert isinstance(found.arrivals[0], Unreadable)
    assert found.arrivals[0].reason
    assert b"Ym9keQ==" in found.arrivals[0].raw, "the body, in base64"
    assert task_ids(found) == sent
    assert edge.trim(0, 1, found.token)


def test_the_end_of_one_shards_connection_does_not_affect_another(yard: Yard) -> None:
    sent, edge = yard.send(2), yard.adopted()
    found = peek(edge, 2)
    edge.adopt(1, 1)
    edge.leave(1, 1)
    edge.adopt(1, 2)
    assert task_ids(found) == sent
    assert edge.trim(0, 1, found.token)


def test_two_schedulers_at_one_queue_lose_nothing_between_them(yard: Yard) -> None:
    """Neither knows the other: the unacknowledged messages of one come to the other when the first leaves."""
    sent = yard.send(20)
    one, other = yard.adopted(), yard.edge()
    assert task_ids(peek(one, 20)) == sent
    other.adopt(0, 2)
    sent += yard.send(20)

    def held() -> int:
        return sum(len(edge.peek(0, 1_000, BIG).arrivals) for edge in (one, other))

    wait_until(lambda: held() == 40, "both schedulers have all messages")
    one.close()
    assert sorted(task_ids(peek(other, 40))) == sorted(sent)


def test_a_server_that_stops_in_the_middle_of_a_frame_ends_the_call() -> None:
    ours, theirs = socket.socketpair()
    connection = amqp.Connection()
    connection._transport = amqp.transport.TCPTransport("nowhere")
    connection._transport.sock = ours
    connection._transport._setup_transport()
    under_test = AmqpLink(lambda: None)
    under_test._connection, under_test._frames = connection, FrameReader(connection._transport)
    connection.on_inbound_frame = lambda frame: frames.append(frame) or True
    frames: list[Any] = []
    frame = b"\x03\x00\x01" + struct.pack(">I", 1_000) + b"x" * 1_000 + b"\xce"
    theirs.sendall(frame[:500])
    waits = threading.Thread(target=under_test.drain, args=(0,), daemon=True)
    waits.start()
    waits.join(patience(5))
    assert not waits.is_alive()
    theirs.sendall(frame[500:])
    assert under_test.drain(1)
    assert frames == [(3, 1, b"x" * 1_000)]
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "broker",
    ["amqp://guest:guest@127.0.0.1:{port}/x;{url}", "{url}?heartbeat=0&connect_timeout=3"],
    ids=["the first server says nothing", "options in the URL"],
)
def test_the_url_may_have_several_servers_and_options(yard: Yard, broker: str) -> None:
    yard.queue("mail")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = broker.format(port=silent.getsockname()[1], url=yard.url)
        app = Celery("another", broker=url, set_as_current=False)
        edge = AmqpBroker(app.connection_for_write, QueuedMessageReader(max_message_bytes=BIG))
        began = time.monotonic()
        assert yard.publish(edge, [row(1)]).failed == {}
        assert time.monotonic() - began < patience(10)
        edge.close()
        app.close()
    assert ids(yard.take("mail")) == ["task-1"]


@pytest.mark.slow
def test_a_lasting_alarm_leaves_two_copies_at_most(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "TIMEOUT_S", patience(1))
    monkeypatch.setattr(link, "TIMEOUT_S", patience(1))
    yard.queue("mail")
    edge, rows = yard.edge(), [row(n) for n in range(10)]
    yard.publish(edge, [row(99)])
    yard.limit_memory("0.0000001", edge)
    interrupted = 0
    try:
        for _ in range(6):
            with pytest.raises(BrokerError, match=r"alarm|answer") as caught:
                yard.publish(edge, rows, redelivered=bool(interrupted))
            interrupted += isinstance(caught.value, PublishInterrupted)
    finally:
        yard.limit_memory("0.6")
    assert interrupted == 1, "after that nothing of it was written"

    def goes_on() -> bool:
        try:
            return not yard.publish(edge, rows, redelivered=True).failed
        except BrokerError:
            return False

    wait_until(goes_on, "dispatch goes on")
    arrived = ids(yard.take("mail"))
    assert set(arrived) == {f"task-{n}" for n in (*range(10), 99)}
    assert max(arrived.count(one) for one in arrived) <= 2


@pytest.mark.slow
def test_a_connection_that_ends_while_it_is_idle_puts_nothing_in_doubt(yard: Yard) -> None:
    yard.queue("mail")
    edge = yard.edge()
    yard.publish(edge, [row(1)])
    yard.cut_all()
    with pytest.raises(BrokerError) as caught:
        yard.publish(edge, [row(2)])
    assert not isinstance(caught.value, PublishInterrupted)
    assert yard.publish(edge, [row(2)]).failed == {}
    assert ids(yard.take("mail")) == ["task-1", "task-2"]


def test_a_producer_gets_an_error_for_a_wheel_queue_with_other_arguments(yard: Yard) -> None:
    yard.queue("wheel.0", **{"x-queue-type": "quorum"})
    with pytest.raises(amqp.exceptions.PreconditionFailed, match=r"x-queue-type.*wheel\.0"):
        yard.send(1)


def test_a_publish_after_an_interruption_logs_nothing_of_the_client(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard.queue("mail")
    edge, may = yard.edge(), iter([True, False])
    with pytest.raises(BrokerError, match="lease"):
        yard.publish(edge, [row(1), row(2)], may_send=lambda: next(may))
    assert yard.publish(edge, [row(2)], redelivered=True).failed == {}
    assert [one.getMessage() for one in caplog.records if one.name.startswith("amqp")] == []


def outcome(waiting: Future[bool]) -> bool | BrokerError:
    try:
        return waiting.result(patience(60))
    except BrokerError as error:
        return error


@pytest.mark.parametrize(
    ("happens", "ends"),
    [
        (lambda edge, yard: edge.leave(0, 1), False),
        (lambda edge, yard: edge.close(), False),
        (lambda edge, yard: (edge.adopt(0, 2), yard.send(1)), True),
    ],
    ids=["the shard is left", "the edge is closed", "it is adopted anew"],
)
def test_a_wait_ends_at_once_where_nobody_needs_it_and_goes_on_over_a_new_adoption(
    yard: Yard, happens: Callable[[AmqpBroker, Yard], object], ends: bool
) -> None:
    edge = yard.adopted()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(edge.await_message, 0, LONG_MS)
        wait_until(waiting.running, "the thread waits")
        happens(edge, yard)
        assert outcome(waiting) is ends


def test_a_wheel_queue_that_is_deleted_meanwhile_is_a_failure_and_is_made_again(yard: Yard) -> None:
    edge = yard.adopted()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(edge.await_message, 0, LONG_MS)
        yard.channel.queue_delete("wheel.0")
        assert isinstance(outcome(waiting), BrokerError)
        assert edge.await_message(0, 10) is False
        waiting = pool.submit(edge.await_message, 0, LONG_MS)
        yard.send(1)
        assert outcome(waiting) is True
    assert edge.peek(0, 10, BIG).arrivals


def test_the_wait_reads_one_message_a_heartbeat_none_and_the_rest_stays_in_the_socket(yard: Yard) -> None:
    edge = yard.adopted()
    yard.send(20)
    for _ in range(20):
        assert edge.await_message(0, LONG_MS) is True
    assert len(edge._shards[0]._unacknowledged) == 1
    edge.trim(0, 1, edge.peek(0, 1, BIG).token)
    for _ in range(20):
        edge.keep_alive()
        edge.peek(0, 5, BIG)
    yard.send(200)
    before = len(edge._shards[0]._unacknowledged)
    for _ in range(20):
        edge.keep_alive()
    assert len(edge._shards[0]._unacknowledged) == before


def test_a_connection_that_only_waits_sends_heartbeats(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends a connection that sends nothing for two heartbeats."""
    for module in (link, amqp_edge):
        monkeypatch.setattr(module, "HEARTBEAT_S", 1)
    edge = yard.adopted()
    assert edge.await_message(0, 4_000) is False
    yard.send(1)
    assert edge.await_message(0, LONG_MS) is True


def test_no_connection_of_an_idle_edge_ends(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next publish, scrape or probe would find a broker that does not answer."""
    for module in (link, amqp_edge):
        monkeypatch.setattr(module, "HEARTBEAT_S", 1)
    edge, queue = yard.adopted(), yard.queue("mail")
    yard.publish(edge, [row(1)])
    assert edge.ready([queue]) == {queue: 1}
    until_s = time.monotonic() + 4
    while time.monotonic() < until_s:
        edge.keep_alive()
        time.sleep(0.2)
    assert edge.ready([queue]) == {queue: 1}
    yard.publish(edge, [row(2)])
    assert edge._publishing.generation == edge._inspecting.generation == 1


@pytest.mark.slow
def test_a_server_that_hangs_is_a_failure_and_waited_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats tell: the socket stays open, and nothing comes."""
    for module in (link, amqp_edge):
        monkeypatch.setattr(module, "HEARTBEAT_S", 1)
    monkeypatch.setattr(link, "TIMEOUT_S", 1)
    with RabbitServer(tmp_path) as server:
        yard = Yard(server)
        edge = yard.adopted()
        server.pause()
        for _ in range(2):  # the first finds the end of the connection, the second no new one
            with pytest.raises(BrokerError, match=r"waiting at the wheel queue wheel\.0"):
                edge.await_message(0, LONG_MS)
        server.resume()
        yard.send(1)

        def is_told() -> bool:
            try:
                return edge.await_message(0, 1_000)
            except BrokerError:
                return False

        wait_until(is_told, "the message is told")
        yard.close()


@pytest.mark.slow
def test_an_idle_scheduler_is_told_of_messages(tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
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
