"""The true destination, as Celery and kombu resolve it, in the envelope."""

from typing import Any

import kombu
import pytest
from celery.exceptions import QueueNotFound
from kombu import Connection, Exchange, Producer, Queue
from kombu.common import Broadcast
from kombu.transport.memory import Transport

from celery_wheel.errors import DestinationError
from celery_wheel.store.model import Message
from tests.unit.producer.memory_broker import Broker, MakeApp, Send

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


# ---- the wheel's own queue


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
