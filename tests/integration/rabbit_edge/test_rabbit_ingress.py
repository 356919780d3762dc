"""The wheel queue of a real RabbitMQ, and servers that hang, block or refuse, queues that disappear, two schedulers."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Any

import amqp
import pytest

from celery_wheel import Celery
from celery_wheel.broker.amqp import link, publisher
from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.broker.amqp.frames import FrameReader
from celery_wheel.broker.amqp.link import AmqpLink
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.port import Peeked
from celery_wheel.errors import BrokerError, PublishInterrupted
from celery_wheel.store.model import Message, Row, Unreadable
from celery_wheel.values.ids import dispatched_ms
from tests.integration.rabbit_edge.conftest import Yard, ids, row
from tests.kit.chunks import chunk_of
from tests.kit.patience import patience, wait_until

BIG = 2**30


def is_lost(edge: AmqpBroker) -> bool:
    try:
        edge.peek(0, 10, BIG)
    except BrokerError:
        return True
    return False


def test_a_token_of_a_connection_that_died_trims_nothing(yard: Yard) -> None:
    sent = send(yard, 3)
    edge = yard.edge()
    edge.adopt(0, 1)
    old = peek(edge, 3)
    yard.cut_all()
    wait_until(lambda: is_lost(edge), "the edge notices")
    again = peek(edge, 3)
    assert task_ids(again) == sent
    assert not edge.trim(0, 1, old.token)
    assert edge.trim(0, 1, again.token)
    assert edge.peek(0, 10, BIG).arrivals == []


def test_a_queue_with_other_arguments_is_used_as_it_is(yard: Yard) -> None:
    yard.queue("wheel.0", **{"x-queue-type": "quorum"})
    edge = yard.edge()
    edge.adopt(0, 1)
    assert edge.peek(0, 10, BIG).arrivals == []


def test_an_unreadable_message_is_kept_with_its_bytes_and_the_others_go_on(yard: Yard) -> None:
    edge = yard.edge()
    edge.adopt(0, 1)
    for bad in (amqp.Message(b"\xff\x00"), amqp.Message("[]", application_headers={"wheel": {"v": 99}})):
        yard.channel.basic_publish(bad, routing_key="wheel.0")
    sent = send(yard, 1)
    found = peek(edge, 3)
    one, other, good = found.arrivals
    assert isinstance(one, Unreadable)
    assert isinstance(other, Unreadable)
    assert "headers must be an object" in one.reason
    assert "version" in other.reason
    assert b"/wA=" in one.raw, "the body, in base64"
    assert isinstance(good, Message)
    assert good.task_id == sent[0]


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
    edge = yard.edge()
    edge.adopt(0, 1)
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


def send(yard: Yard, count: int, **options: Any) -> list[str]:
    return [yard.app.send_task("tasks.add", (n,), countdown=60, queue="mail", **options).id for n in range(count)]


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


# -- the wheel queue --------------------------------------------------------------------------------------


def test_a_wheel_queue_that_is_deleted_and_made_again_is_read_again(yard: Yard) -> None:
    edge = yard.edge()
    edge.adopt(0, 1)
    yard.channel.queue_delete("wheel.0")
    wheel_queue("wheel", 0)(yard.channel).declare()
    sent = send(yard, 2)
    assert task_ids(peek(edge, 2)) == sent


def test_a_queue_that_others_declared_with_other_arguments_is_named_in_the_log(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard.queue("wheel.0", **{"x-max-length": 5})
    yard.edge().adopt(0, 1)
    (said,) = [one.getMessage() for one in caplog.records if "wheel.0" in one.getMessage()]
    assert "x-max-length" in said
    assert "x-delivery-limit=-1" in said


def test_a_user_without_the_right_to_declare_the_wheel_queue_gets_an_error(yard: Yard) -> None:
    vhost = yard.url.rpartition("/")[2]
    yard.server.ctl("set_permissions", "-p", vhost, "guest", "^$", ".*", ".*")
    with pytest.raises(BrokerError, match=r"ACCESS_REFUSED.*wheel\.0"):
        yard.edge().adopt(0, 1)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig", "utf-7", "binary"])
def test_bodies_pass_as_bytes_whatever_their_encoding_says(yard: Yard, encoding: str) -> None:
    sent, body = send(yard, 1), "\ufeffa+äü".encode("utf-16")
    (given,) = yard.take("wheel.0")
    given.properties["content_encoding"] = encoding
    yard.channel.basic_publish(amqp.Message(body, **given.properties), routing_key="wheel.0")
    edge = yard.edge()
    edge.adopt(0, 1)
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

    edge = yard.edge()
    edge.adopt(0, 1)
    yard.channel.basic_publish(Bad(b"body"), routing_key="wheel.0")
    sent = send(yard, 1)
    found = peek(edge, 2)
    assert isinstance(found.arrivals[0], Unreadable)
    assert found.arrivals[0].reason
    assert b"Ym9keQ==" in found.arrivals[0].raw, "the body, in base64"
    assert task_ids(found) == sent
    assert edge.trim(0, 1, found.token)


def test_a_heartbeat_reads_no_message_into_memory(yard: Yard) -> None:
    """The bounds of ``peek`` are the only ones that memory has."""
    edge = yard.edge()
    edge.adopt(0, 1)
    send(yard, 50)
    assert peek(edge, 1).arrivals
    edge.trim(0, 1, edge.peek(0, 1, BIG).token)
    for _ in range(20):
        edge.now_ms()
        edge.peek(0, 5, BIG)
    send(yard, 200)
    held = edge._shards[0]._unacknowledged
    before = len(held)
    for _ in range(20):
        edge.now_ms()
    assert len(held) == before


def test_the_end_of_one_shards_connection_does_not_affect_another(yard: Yard) -> None:
    sent, edge = send(yard, 2), yard.edge()
    edge.adopt(0, 1)
    found = peek(edge, 2)
    edge.adopt(1, 1)
    edge.leave(1, 1)
    edge.adopt(1, 2)
    assert task_ids(found) == sent
    assert edge.trim(0, 1, found.token)


def test_two_schedulers_at_one_queue_lose_nothing_between_them(yard: Yard) -> None:
    """Neither knows the other: the unacknowledged messages of one come to the other when the first leaves."""
    sent = send(yard, 20)
    one, other = yard.edge(), yard.edge()
    one.adopt(0, 1)
    assert task_ids(peek(one, 20)) == sent
    other.adopt(0, 2)
    sent += send(yard, 20)
    mine = edge_share(one, other, 40)
    one.close()
    rest = peek(other, 40)
    assert sorted(task_ids(rest)) == sorted(sent)
    assert len(mine) == 40


def edge_share(one: AmqpBroker, other: AmqpBroker, count: int) -> list[str]:
    found: list[str] = []

    def both() -> bool:
        found[:] = [task for edge in (one, other) for task in task_ids(edge.peek(0, 1_000, BIG))]
        return len(found) >= count

    wait_until(both, f"both schedulers have {count} messages")
    return found


# -- the connection ---------------------------------------------------------------------------------------


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


def test_the_second_server_is_reached_when_the_first_says_nothing(yard: Yard) -> None:
    yard.queue("mail")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://guest:guest@127.0.0.1:{silent.getsockname()[1]}/x;{yard.url}"
        app = Celery("failover", broker=url, set_as_current=False)
        edge = AmqpBroker(app.connection_for_write, QueuedMessageReader(max_message_bytes=BIG))
        began = time.monotonic()
        assert yard.publish(edge, [row(1)]).failed == {}
        assert time.monotonic() - began < patience(10)
        edge.close()
        app.close()
    assert ids(yard.take("mail")) == ["task-1"]


def test_options_in_the_url_are_used(yard: Yard) -> None:
    yard.queue("mail")
    app = Celery("options", broker=f"{yard.url}?heartbeat=0&connect_timeout=3", set_as_current=False)
    edge = AmqpBroker(app.connection_for_write, QueuedMessageReader(max_message_bytes=BIG))
    assert yard.publish(edge, [row(1)]).failed == {}
    edge.close()
    app.close()


# -- dispatch ---------------------------------------------------------------------------------------------


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
        send(yard, 1)


def test_the_publish_after_an_interruption_logs_nothing_of_the_client(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard.queue("mail")
    edge, may = yard.edge(), iter([True, False])
    with pytest.raises(BrokerError, match="lease"):
        yard.publish(edge, [row(1), row(2)], may_send=lambda: next(may))
    assert yard.publish(edge, [row(2)], redelivered=True).failed == {}
    assert [one.getMessage() for one in caplog.records if one.name.startswith("amqp")] == []
