"""A scheduler with a list of destinations, and a writer to its wheel queue who has none: what reaches which queue."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kombu import Exchange, Queue

from celery_wheel.control import Wheel
from tests.kit.patience import wait_until
from tests.kit.servers.rabbit import ON_RABBITMQ
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

TOPIC = Exchange("allowed", "topic")
#: Queues that a worker consumes, whoever sends: the list names the first, and the exchange of the second.
QUEUES = [Queue("mail", Exchange("mail"), "mail"), Queue("bound", TOPIC, "#.bound"), Queue("evil", TOPIC, "evil")]
SIGNING = "a secret of thirty-two characters"
QUEUES += [Queue("cast", Exchange("all", "fanout"), "")]


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=ON_RABBITMQ)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as stops:
        if request.param == "redis":
            server: Any = stops.enter_context(RedisServer(tmp_path / "redis"))
        else:
            server = request.getfixturevalue("rabbit_server").fresh()
        stack = stops.enter_context(Stack(tmp_path, server, beat_schedule={}))
        stack.app.conf.task_queues = QUEUES
        yield stack


def counts(stack: Stack) -> dict[str, int]:
    found = dict.fromkeys([queue.name for queue in QUEUES], 0)
    with stack.app.connection_for_write() as connection:
        for queue in QUEUES:
            bound: Any = queue(connection.default_channel)
            bound.declare()
            with suppress(connection.channel_errors):  # on Redis, an empty queue
                found[queue.name] = bound.queue_declare(passive=True).message_count
    return found


@pytest.mark.slow
def test_a_message_reaches_only_queues_and_exchanges_of_the_list(shop: Stack) -> None:
    counts(shop)  # declares the queues
    send = shop.app.send_task
    delay = {"countdown": 1}
    send("note", ("in the list",), queue="mail", **delay)
    send("note", ("by a topic exchange in the list",), exchange="allowed", routing_key="x.bound", **delay)
    send("note", ("its other queues are bound to it as well",), exchange="allowed", routing_key="evil", **delay)
    send("note", ("not in the list",), queue=Queue("evil"), task_id="queue", **delay)
    send("note", ("fanout",), exchange=Exchange("all", "fanout"), routing_key="x", task_id="fanout", **delay)
    beat = shop.beat(wheel_destinations=["mail", "allowed"])
    shop.wait_for_holder(beat)
    wheel: Wheel = shop.app.wheel
    wait_until(lambda: len(wheel.outcomes("rejected").items) == 2, "two are rejected", 30)
    wait_until(lambda: sum(counts(shop).values()) == 3, "and three are in their queues")
    assert counts(shop) == {"mail": 1, "bound": 1, "evil": 1, "cast": 0}
    reasons = {one.task_id: one.reason for one in wheel.outcomes("rejected").items}
    assert reasons == {
        "queue": "wheel_destinations does not name its queue, 'evil'",
        "fanout": "wheel_destinations does not name its exchange, 'all'",
    }
    beat.wait_for("rejected messages (destination): ")
    beat.terminate()
    beat = shop.beat(wheel_destinations=["*"])
    shop.wait_for_holder(beat)
    assert set(wheel.requeue(["queue", "fanout"]).values()) == {"done"}
    wait_until(lambda: counts(shop)["evil"] == 2, "the requeued one arrives")


def test_a_signed_message_may_go_to_any_queue(shop: Stack) -> None:
    counts(shop)
    shop.wait_for_holder(shop.beat(wheel_destinations=["mail"], wheel_signing_keys=[SIGNING]))
    signer = shop.make_app(wheel_signing_keys=[SIGNING], wheel_destinations=["mail"], task_queues=QUEUES)
    signer.send_task("note", ("signed",), countdown=1, queue="evil", task_id="signed")
    shop.app.send_task("note", ("not signed",), countdown=1, queue="evil", task_id="unsigned")
    wheel: Wheel = shop.app.wheel
    wait_until(lambda: wheel.outcomes("rejected").items, "one is rejected", 30)
    wait_until(lambda: counts(shop)["evil"] == 1, "and one is in its queue")
    assert [one.task_id for one in wheel.outcomes("rejected").items] == ["unsigned"]
