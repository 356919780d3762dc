"""The true destination in the envelope; messages that stay with Celery: other brokers, ``wheel=False``, eager apps."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import kombu
import pytest
from celery._state import _task_stack
from celery.app import base
from celery.app.amqp import AMQP
from celery.exceptions import AlwaysEagerIgnored, QueueNotFound, Retry
from kombu import Connection, Exchange, Producer, Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError
from kombu.transport.memory import Channel, Transport

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.sealed import MessageSeal
from celery_wheel.conf import Conf
from celery_wheel.errors import ArgumentError, DestinationError
from celery_wheel.producer import destination
from celery_wheel.store.model import Message
from tests.unit.producer.memory_broker import Broker, MakeApp, Send

SECRET = "a secret of thirty-two characters"  # noqa: S105


def test_settings_are_read_late(app: Any, add: Any, broker: Broker) -> None:
    add.apply_async((1, 2), countdown=60)
    app.conf.wheel_namespace = "other"
    add.apply_async((1, 2), countdown=60)
    app.conf.wheel_enabled = False
    add.apply_async((1, 2), countdown=60)
    assert len(broker.waiting()) == len(broker.waiting(namespace="other")) == len(broker.sent()) == 1


def test_an_eager_app_runs_at_once(make_app: MakeApp, broker: Broker) -> None:
    app = make_app(task_always_eager=True)
    assert app.tasks["proj.add"].apply_async((1, 2), countdown=60, wheel={"key": "k"}).get() == 3
    assert not broker.waiting()
    with pytest.warns(AlwaysEagerIgnored):
        app.send_task("proj.add", (1, 2), countdown=60)
    assert broker.one_waiting()


@pytest.fixture
def _quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(base, "detect_quorum_queues"):
        pytest.skip("Celery before 5.5 has no native delayed delivery")
    monkeypatch.setattr("celery.app.base.detect_quorum_queues", lambda app, driver_type: (True, "celery"))


@pytest.mark.usefixtures("_quorum")
@pytest.mark.parametrize("countdown", [0.2, 5, 86_400 * 365 * 20])
def test_native_delayed_delivery_is_not_entered(make_app: MakeApp, broker: Broker, countdown: float) -> None:
    """It would replace the exchange, and raise for 0.2 s."""
    app = make_app(task_queues=[Queue("celery", Exchange("tasks", "topic"), "tasks.#")])
    app.send_task("proj.add", (1, 2), countdown=countdown, routing_key="tasks.x")
    message = broker.one_waiting()
    assert (message.exchange, message.exchange_type, message.routing_key) == ("tasks", "topic", "tasks.x")


@pytest.mark.usefixtures("_quorum")
def test_a_task_with_wheel_false_still_has_native_delayed_delivery(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(task_queues=[Queue("celery", Exchange("tasks", "topic"), "tasks.#")])
    published: list[Any] = []
    monkeypatch.setattr(Producer, "publish", lambda self, body, **kw: published.append(kw["exchange"].name))
    app.send_task("proj.add", (1, 2), countdown=60, routing_key="tasks.x", wheel=False)
    assert published == ["celery_delayed_27"]


@pytest.mark.parametrize("limit", [None, 0, 1])
def test_any_limit_of_the_connection_pool_works(make_app: MakeApp, broker: Broker, limit: int | None) -> None:
    make_app(broker_pool_limit=limit).tasks["proj.add"].apply_async((1, 2), countdown=60)
    assert broker.one_waiting()


@pytest.mark.parametrize(
    ("url", "options", "same"),
    [
        ("redis://broker.example", {}, True),
        ("redis://user:secret@broker.example:6379/0", {}, True),
        ("redis://broker.example:6380/0", {}, False),
        ("redis://broker.example/1", {}, False),
        ("redis://elsewhere.example/0", {}, False),
        ("redis://broker.example", {"global_keyprefix": "a:"}, False),
        ("memory://", {}, False),
    ],
)
@pytest.mark.parametrize("how", ["connection", "producer"])
def test_another_broker_is_distinguished_from_the_apps_own(
    app: Any, url: str, options: dict[str, Any], same: bool, how: str
) -> None:
    app.conf.broker_url = "redis://broker.example//"
    connection = Connection(url, transport_options=options)
    producer = Producer(connection, auto_declare=False) if how == "producer" else None
    assert destination.is_eligible(app, connection if how == "connection" else None, producer) is same


@pytest.mark.usefixtures("_quiet_log")
def test_several_redis_servers_are_left_to_celery_because_the_scheduler_refuses_them(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.broker_url = "redis://a.example;redis://b.example"
    assert not destination.is_eligible(app, None, None)
    assert "several servers" in caplog.text


def test_a_message_for_another_broker_is_not_diverted(app: Any, broker: Broker) -> None:
    with Connection("memory://elsewhere") as other:
        app.send_task("proj.add", (1, 2), countdown=60, connection=other)
        app.send_task("proj.add", (1, 2), countdown=60, producer=app.amqp.Producer(other, auto_declare=False))
        app.send_task("proj.add", (1, 2), countdown=60, publisher=app.amqp.Producer(other, auto_declare=False))
    assert len(broker.sent()) == 3
    assert not broker.waiting()


def test_a_connection_a_channel_or_a_producer_of_the_apps_own_broker_is_diverted(app: Any, broker: Broker) -> None:
    with app.connection_for_write() as connection:
        app.send_task("proj.add", (1, 2), countdown=60, connection=connection)
        app.send_task("proj.add", (1, 2), countdown=60, connection=connection.default_channel)
        app.send_task("proj.add", (1, 2), countdown=60, producer=app.amqp.Producer(connection))
        app.send_task("proj.add", (1, 2), countdown=60, producer=app.amqp.Producer(connection.default_channel))
    assert len(broker.waiting()) == 4


@pytest.fixture
def _quiet_log() -> Iterator[None]:
    destination._warn_unsupported.cache_clear()
    yield
    destination._warn_unsupported.cache_clear()


@pytest.mark.usefixtures("_quiet_log")
def test_an_unsupported_transport_stays_with_celery_and_warns_once(
    app: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.broker_url = "filesystem://"
    folders = {name: str(tmp_path) for name in ("data_folder_in", "data_folder_out", "control_folder")}
    app.conf.broker_transport_options = folders
    with caplog.at_level(logging.WARNING, logger="celery_wheel"):
        for _ in range(3):
            app.send_task("proj.add", (1, 2), countdown=60)
    (record,) = [r for r in caplog.records if r.name.startswith("celery_wheel")]
    assert "does not support transport 'filesystem'" in record.getMessage()
    assert (record.action, record.transport) == ("not_diverted", "filesystem")  # type: ignore[attr-defined]
    files = [path.read_text() for path in tmp_path.glob("*.msg")]
    assert len(files) == 3
    assert all('"eta": "2' in text and "wheel" not in text for text in files)


def test_a_message_that_is_not_diverted_still_has_its_eta(app: Any, broker: Broker) -> None:
    """A sender that was replaced makes the worker hold the task, as without the wheel: late perhaps, never early."""
    app.amqp.send_task_message = AMQP(app).send_task_message
    app.send_task("proj.add", (1, 2), eta="2099-01-01T00:00:00+00:00")
    message = broker.one_sent()
    assert message["headers"]["eta"] == "2099-01-01T00:00:00+00:00"
    assert "wheel" not in message["headers"]


@pytest.mark.usefixtures("_quorum")
def test_an_amqp_object_of_another_class_gets_celerys_own_arguments(app: Any) -> None:
    """As in a project's own tests: no sender diverts, so native delayed delivery acts."""
    app.amqp = mock.MagicMock()
    app.amqp.router.route.return_value = {"queue": Queue("celery", Exchange("tasks", "topic"), "tasks.x")}
    app.send_task("proj.add", (1, 2), countdown=60)
    assert app.amqp.create_task_message.call_args[0][4] == 60
    assert app.amqp.send_task_message.call_args.kwargs["exchange"].name == "celery_delayed_27"


@pytest.mark.parametrize("callback", [True, False])
def test_publishing_again_repeats_the_same_message(
    app: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch, callback: bool
) -> None:
    """The connection is lost after the broker has accepted the message: two copies have one envelope id."""
    if callback and not hasattr(AMQP, "_retry_publish"):
        pytest.skip("Celery before 5.7 publishes links like other tasks")
    original = Channel.basic_publish
    failures = iter([True, True, False])

    def lossy(self: Any, *args: Any, **kwargs: Any) -> Any:
        original(self, *args, **kwargs)
        if next(failures):
            raise ConnectionError("gone")

    monkeypatch.setattr(Channel, "basic_publish", lossy)
    transport = type(app.connection_for_write().transport)
    for name in ("connection_errors", "recoverable_connection_errors"):
        monkeypatch.setattr(transport, name, (ConnectionError,), raising=False)
    app.conf.task_publish_retry_policy = {"interval_start": 0, "interval_step": 0, "interval_max": 0, "max_retries": 5}
    send = app.tasks["proj.add"].apply_async
    if callback:  # how a worker publishes links and the next step of a chain
        app.amqp._retry_publish(send, (1, 2), countdown=60)
    else:
        send((1, 2), countdown=60)
    messages = broker.waiting()
    assert len(messages) == 3
    assert len({message.envelope_id for message in messages}) == 1


def test_a_broker_that_cannot_be_reached_is_celerys_error(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "basic_publish", mock.Mock(side_effect=OperationalError("refused")))
    with pytest.raises(OperationalError):
        app.tasks["proj.add"].apply_async((1, 2), countdown=60, retry=False)


@pytest.mark.skipif(not hasattr(Producer, "batch"), reason="this Kombu has no batches")
def test_a_batch_of_a_producer_is_honoured(app: Any, broker: Broker) -> None:
    with app.producer_pool.acquire() as producer, producer.batch():
        for _ in range(3):
            app.tasks["proj.add"].apply_async((1, 2), countdown=60, producer=producer)
    assert len(broker.waiting()) == 3


NEWS = Exchange("news", "topic")
QUEUES = (
    Queue("celery", Exchange("celery"), "celery"),
    Queue("emails", Exchange("emails"), "emails"),
    Queue("world", NEWS, "news.world.*", expires=60),
    Queue("short", Exchange("short"), "short", queue_arguments={"x-expires": 90_000}),
    Broadcast("all", exchange=Exchange("everybody", "fanout")),
)


def where(message: Message) -> tuple[str, str, str, str | None, int | None]:
    return (message.exchange, message.exchange_type, message.routing_key, message.queue, message.queue_expires_ms)


def obeyed(expires_ms: int | None) -> int | None:
    """Before 5.7 Kombu lets no queue of Redis expire."""
    return expires_ms if kombu.VERSION >= (5, 7) else None


@pytest.fixture
def app(make_app: MakeApp) -> Any:
    return make_app(task_queues=QUEUES)


@pytest.mark.parametrize(
    ("options", "destination"),
    [
        ({}, ("", "direct", "celery", "celery", None)),
        ({"queue": "emails"}, ("", "direct", "emails", "emails", None)),
        ({"queue": "made.up"}, ("", "direct", "made.up", "made.up", None)),
        ({"queue": "short"}, ("", "direct", "short", "short", 90_000)),
        ({"queue": "emails", "routing_key": "other"}, ("", "direct", "emails", "emails", None)),
        ({"queue": "world"}, ("news", "topic", "news.world.*", "world", 60_000)),
        ({"queue": "world", "routing_key": "news.world.eu"}, ("news", "topic", "news.world.eu", "world", 60_000)),
        ({"exchange": "news", "routing_key": "news.world.eu"}, ("news", "topic", "news.world.eu", None, None)),
        ({"exchange": NEWS, "routing_key": "a.b"}, ("news", "topic", "a.b", None, None)),
        ({"exchange": "emails", "routing_key": "emails"}, ("emails", "direct", "emails", None, None)),
        ({"exchange": "unheard.of", "routing_key": "k"}, ("unheard.of", "direct", "k", None, None)),
        (
            {"exchange": "unheard.of", "routing_key": "k", "exchange_type": "topic"},
            ("unheard.of", "topic", "k", None, None),
        ),
        ({"queue": "all"}, ("everybody", "fanout", "celery", None, None)),
        ({"queue": Queue("own", Exchange("x", "topic"), "k.#")}, ("x", "topic", "k.#", "own", None)),
        ({"queue": Queue("own", Exchange("x"), "k", expires=1.5)}, ("", "direct", "own", "own", 1500)),
    ],
)
def test_the_envelope_has_the_destination_of_the_call(
    send: Send, options: dict[str, Any], destination: tuple[Any, ...]
) -> None:
    assert where(send(**options)) == (*destination[:-1], obeyed(destination[-1]))


def test_routes_are_followed(make_app: MakeApp, broker: Broker) -> None:
    route = {"queue": "world", "routing_key": "news.world.asia", "priority": 3}
    make_app(task_queues=QUEUES, task_routes={"proj.add": route}).send_task("proj.add", (1, 2), countdown=60)
    message = broker.one_waiting()
    assert (*where(message), message.priority) == ("news", "topic", "news.world.asia", "world", obeyed(60_000), 3)


def test_the_target_is_bound_and_the_wheel_queue_is_not_and_is_in_no_workers_list(
    app: Any, send: Send, broker: Broker
) -> None:
    send(queue="world")
    assert Transport.global_state.has_binding("world", "news", "news.world.*")
    assert not broker.raw("world")
    assert not any(queue == "wheel.0" for queue, _, _ in list_bindings())
    assert "wheel.0" not in app.amqp.queues
    assert "wheel.0" not in app.amqp.queues.consume_from


def list_bindings() -> list[Any]:
    with Connection("memory://") as connection:
        return list(connection.channel().list_bindings())


def test_the_callers_declarations_are_made(send: Send) -> None:
    declare = [Queue("beside", NEWS, "news.#")]
    message = send(exchange="news", routing_key="news.x", declare=declare)
    assert Transport.global_state.has_binding("beside", "news", "news.#")
    assert len(declare) == 1, "the caller's own list"
    assert where(message) == ("news", "topic", "news.x", "beside", None)


def test_the_type_of_an_exchange_that_only_the_connection_knows_is_found(send: Send) -> None:
    with Connection("memory://") as connection:
        Exchange("by.hand", "topic")(connection).declare()
        assert where(send(exchange="by.hand", routing_key="a.b"))[:3] == ("by.hand", "topic", "a.b")


def test_a_producers_own_exchange_is_the_destination(app: Any, broker: Broker) -> None:
    """kombu reads an empty exchange as the producer's default; the wheel queue is not bound to that exchange."""
    with app.connection_for_write() as connection:
        producer = Producer(connection, exchange=NEWS, routing_key="unused")
        app.send_task("proj.add", (1, 2), countdown=60, queue="emails", producer=producer)
        app.send_task("proj.add", (1, 2), queue="emails", producer=producer)
    assert where(broker.waiting()[0])[:3] == ("news", "topic", "emails")
    assert not broker.raw("emails"), "natively, it goes to the producer's exchange as well"


def test_missing_queues_are_still_refused_if_so_configured(make_app: MakeApp, broker: Broker) -> None:
    app = make_app(task_queues=QUEUES, task_create_missing_queues=False)
    with pytest.raises(QueueNotFound):
        app.send_task("proj.add", (1, 2), countdown=60, queue="made.up")
    assert not broker.waiting()


def test_a_destination_that_is_too_long_is_refused_at_the_call(app: Any, broker: Broker) -> None:
    with pytest.raises(ValueError, match="routing_key must be a text of 1 to 512 characters"):
        app.send_task("proj.add", (1, 2), countdown=60, queue="q" * 513)
    assert not broker.waiting()


@pytest.mark.parametrize("delay", [{}, {"countdown": 60}, {"countdown": 60, "wheel": False}])
@pytest.mark.parametrize(
    "options",
    [
        {"queue": "wheel.0"},
        {"queue": Queue("wheel.0")},
        {"queue": Queue("wheel.0", NEWS, "news.#")},
        {"queue": "wheel.0", "routing_key": "wheel.0"},
        {"exchange": "wheel.0", "routing_key": "wheel.0"},
    ],
)
def test_a_wheel_queue_is_refused_at_the_call(
    app: Any, broker: Broker, options: dict[str, Any], delay: dict[str, Any]
) -> None:
    with pytest.raises(DestinationError, match=r"got 'wheel\.0', which is the wheel's own: .* wheel_namespace"):
        app.tasks["proj.add"].apply_async((1, 2), **options, **delay)
    assert not broker.raw("wheel.0")
    assert not list_bindings(), "nothing was declared, which RabbitMQ would refuse as another kind of queue"


@pytest.mark.parametrize("options", [{"exchange": "celery.pidbox", "routing_key": "k"}, {"queue": "celeryev.5f7c"}])
def test_a_delayed_command_to_workers_is_refused_at_the_call(app: Any, broker: Broker, options: dict[str, Any]) -> None:
    with pytest.raises(DestinationError, match="of kombu: the scheduler would reject the task; nothing was sent; name"):
        app.tasks["proj.add"].apply_async((1, 2), countdown=60, **options)
    assert not broker.raw("wheel.0")


def test_a_queue_that_the_list_does_not_name_is_refused_at_the_call(make_app: MakeApp, broker: Broker) -> None:
    add = make_app(wheel_destinations=["@app", "mail"]).tasks["proj.add"]
    with pytest.raises(DestinationError, match=r"wheel_destinations does not name its queue, 'evil': .* was sent"):
        add.apply_async((1, 2), countdown=60, queue="evil")
    assert not broker.raw("wheel.0")
    add.apply_async((1, 2), countdown=60, queue="mail")
    add.apply_async((1, 2), countdown=60)
    assert [message.queue for message in map(QueuedMessageReader().decode, broker.raw("wheel.0"))] == ["mail", "celery"]


def test_the_retry_of_a_task_from_another_queue_is_left_to_the_scheduler(make_app: MakeApp, broker: Broker) -> None:
    """Celery drops a task whose retry raises; the scheduler keeps what it rejects."""
    app = make_app(wheel_destinations=["mail"])
    add = app.tasks["proj.add"]
    add.push_request(id="t", called_directly=False, delivery_info={"exchange": "", "routing_key": "evil"}, args=(1, 2))
    _task_stack.push(add)
    try:
        with pytest.raises(Retry):
            add.retry(countdown=60)
        with pytest.raises(DestinationError):
            add.apply_async((1, 2), countdown=60, queue="evil")
    finally:
        _task_stack.pop()
        add.pop_request()
    [message] = map(QueuedMessageReader().decode, broker.raw("wheel.0"))
    assert (message.task_id, message.queue) == ("t", "evil")


@pytest.mark.parametrize("keys", [{}, {"wheel_encryption_keys": [SECRET]}], ids=["plain", "encrypted"])
def test_a_message_is_measured_as_the_scheduler_does(make_app: MakeApp, broker: Broker, keys: dict[str, Any]) -> None:
    """Encryption packs it before: a large one must not be accepted here to be rejected there."""
    add = make_app(wheel_max_message_bytes=100_000, **keys).tasks["proj.add"]
    with pytest.raises(ArgumentError, match="at most 100,000 bytes"):
        add.apply_async((1, "x" * 150_000), countdown=60)
    assert not broker.raw("wheel.0")


def test_a_producer_that_signs_may_name_any_queue_but_a_reserved_one(make_app: MakeApp, broker: Broker) -> None:
    app = make_app(wheel_destinations=["mail"], wheel_signing_keys=[SECRET])
    app.tasks["proj.add"].apply_async((1, 2), countdown=60, queue="evil")
    [message] = map(QueuedMessageReader(seal=MessageSeal.of(Conf(app))).decode, broker.raw("wheel.0"))
    assert (message.queue, message.signed) == ("evil", True)
    with pytest.raises(DestinationError, match="of kombu"):
        app.tasks["proj.add"].apply_async((1, 2), countdown=60, queue="celeryev.5f7c")


def test_a_route_to_a_wheel_queue_is_refused_as_the_settings_have_it(make_app: MakeApp, broker: Broker) -> None:
    app = make_app(task_routes={"proj.*": {"queue": "eta.1"}}, wheel_namespace="eta", wheel_shards=2)
    with pytest.raises(DestinationError, match=r"'eta\.1'.*wheel_namespace, which is 'eta'"):
        app.send_task("proj.add", (1, 2), countdown=60)
    assert not broker.waiting(1, "eta")


@pytest.mark.parametrize("queue", ["wheel.x", "wheel.offset", "other.0", "wheel"])
def test_a_queue_with_another_name_is_the_projects_own(send: Send, queue: str) -> None:
    assert send(queue=queue).queue == queue


def test_the_name_of_a_wheel_queue_is_free_where_the_wheel_is_off_or_elsewhere(
    make_app: MakeApp, broker: Broker
) -> None:
    make_app(wheel_enabled=False).send_task("proj.add", (1, 2), queue="wheel.0")
    app = make_app()
    app.conf.broker_url = "redis://broker.example//"
    with Connection("memory://") as connection:
        app.send_task("proj.add", (1, 2), queue="wheel.0", connection=connection)
    assert len(broker.raw("wheel.0")) == 2
