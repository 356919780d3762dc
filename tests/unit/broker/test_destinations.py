"""The destinations of an app: the names of its own settings, and the names that Celery has from them."""

from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

from celery_wheel.broker.destinations import Destinations, destinations_of
from celery_wheel.broker.envelope import encode
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.conf import Conf
from celery_wheel.scheduler.service import limits_of
from celery_wheel.store.model import Message, Route, Unreadable
from tests.unit.broker.test_envelope import envelope, raw

NODE = "5f7c1e0a-7d0c-5c5e-9a55-3f4e1f6f3a10"


def app_with(**settings: Any) -> Any:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(settings)
    return app


def refused(found: Destinations, *queues: str) -> list[str]:
    return [one for one in queues if found.refusal("", one, one)]


def test_without_the_setting_every_name_but_the_reserved_is_allowed() -> None:
    found = destinations_of(app_with())
    assert refused(found, "celery", "evil", "tenant-1", "wheel.0", "celery.pidbox") == ["wheel.0", "celery.pidbox"]


def test_the_word_app_stands_for_the_queues_and_exchanges_of_its_settings() -> None:
    app = app_with(
        task_default_queue="work",
        task_queues=[Queue("mail"), Queue("feed", Exchange("news", "topic"), "feed.#")],
        task_routes=[
            {"a.*": {"queue": "sms"}, "b": "push", "c": {"exchange": "log", "routing_key": "x"}},
            {"d": {"queue": Queue("own", Exchange("owned"))}},
            lambda *_: {"queue": "computed"},
            [("e*", {"queue": "glob[1]"})],
        ],
        wheel_destinations=["@app", "tenant-*"],
    )
    found = destinations_of(app)
    assert refused(found, "work", "mail", "feed", "sms", "push", "own", "glob[1]", "tenant-3") == []
    assert [name for name in ("news", "log", "owned") if found.refusal(name, "k", None)] == []
    assert refused(found, "computed", "evil", "celery", "glob1") == ["computed", "evil", "celery", "glob1"]
    app.amqp.queues["evil"]  # Celery adds the queue of each call there
    app.conf.wheel_destinations = ["@app"]
    assert refused(destinations_of(app), "evil", "tenant-3") == ["evil", "tenant-3"]


def test_an_app_to_which_celery_sends_to_no_other_queue_has_its_own_ones_by_default() -> None:
    app = app_with(task_queues=[Queue("mail")], task_default_queue="mail", task_create_missing_queues=False)
    found = destinations_of(app)
    assert refused(found, "mail", "evil") == ["evil"]
    why = "task_queues (task_create_missing_queues is False) does not name its queue, 'evil'"
    assert found.refusal("", "evil", "evil") == why
    refusal: Any = limits_of(Conf(app)).refusal
    assert refusal(Route.named("evil", "t")) == why
    app.conf.wheel_destinations = ["evil"]
    assert refused(destinations_of(app), "mail", "evil") == ["mail"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"event_exchange": "shop-events"}, ["shop-events", "SHOP-events", "celeryev"]),
        ({"event_queue_prefix": "ev"}, [f"ev.{NODE}", "celeryev.x"]),
        ({"result_exchange": "answers"}, ["answers"]),
        (
            {"control_exchange": "shop"},
            ["shop.pidbox", "reply.shop.pidbox", f"{NODE}.reply.shop.pidbox", "w@h.shop.pidbox"],
        ),
        ({}, ["celeryresults"]),
    ],
)
def test_celerys_own_names_are_reserved_as_the_app_has_them(settings: dict[str, Any], names: list[str]) -> None:
    found = destinations_of(app_with(**settings))
    assert refused(found, *names) == names
    assert [name for name in names if not found.refusal(name, "k", None)] == []
    near = ["shop-events2", "ev", "ev.mail", f"ev2.{NODE}", "shop", "answers.1", "celery"]
    assert refused(found, *near) == []


def test_a_message_for_a_custom_exchange_of_events_cannot_be_read() -> None:
    own = destinations_of(app_with(event_exchange="shop-events"))
    fields = encode(envelope(exchange="shop-events", exchange_type="topic", routing_key="task.sent"))
    data = raw(headers={"task": "t", "wheel": fields})
    assert isinstance(QueuedMessageReader().decode(data), Message)
    found = QueuedMessageReader(own).decode(data)
    assert isinstance(found, Unreadable)
    assert "is no task's queue" in found.reason
