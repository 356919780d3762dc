"""The tasks of a replay: a message of every kind, each under an id of its own, so that it can be sent twice alike."""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from celery.canvas import StampingVisitor

from tests.kit.project import queues_of

#: Name, exchange, type of the exchange, routing key.
QUEUES = [
    ("celery", "celery", "direct", "celery"),
    ("mail", "mail", "direct", "mail"),
    ("paused", "paused", "direct", "paused"),
    ("ticks", "ticks", "direct", "ticks"),
    ("world", "news", "topic", "news.world.#"),
]
NAMES = [name for name, *_ in QUEUES]

#: Pending for as long as anybody replays it.
FAR = datetime(2100, 1, 1, tzinfo=UTC)


class Scene(NamedTuple):
    """A task to send: ``task_id`` is its name."""

    task_id: str
    options: Mapping[str, Any] = MappingProxyType({})
    wheel: Mapping[str, Any] = MappingProxyType({})
    protocol: int = 2

    def send(self, app: Any, eta: datetime | None) -> None:
        """Send it by Celery alone where there is no eta."""
        delay = {} if eta is None else {"eta": eta, **({"wheel": dict(self.wheel)} if self.wheel else {})}
        app.conf.task_protocol = self.protocol
        try:
            app.send_task(
                "note", (self.task_id, "ü"), {"k": [None, 1.5]}, task_id=self.task_id, **self.options, **delay
            )
        finally:
            app.conf.task_protocol = 2


class Order(StampingVisitor):  # type: ignore[misc]
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"order": "42"}


class Stamped(Scene):
    def send(self, app: Any, eta: datetime | None) -> None:
        signature = app.signature("note", args=(self.task_id,))
        signature.stamp(Order())
        signature.apply_async(task_id=self.task_id, **({} if eta is None else {"eta": eta}))


def kinds(app: Any) -> list[Scene]:
    """Return a scene for each kind of message; RabbitMQ takes no message that expires after a month and a half."""
    link = app.signature("total", args=(["x"],), immutable=True)
    link.set(task_id="linked")
    of_group = {"group_id": "a-group", "group_index": 1, "root_id": "a-root", "parent_id": "a-parent"}
    chord = app.signature("total", kwargs={"tag": "body"}, task_id="chord-body")
    return [
        Scene("plain"),
        Scene("0193f2a1-5c1e-7a44-8c55-1b2f3a4c5d6e"),
        *(Scene(f"serialized by {name}", {"serializer": name}) for name in ("json", "pickle", "yaml")),
        *(Scene(f"compressed by {name}", {"compression": name}) for name in ("gzip", "bzip2", "lzma", "zlib")),
        Scene("of a group", of_group),
        Scene("of a chord", {**of_group, "chord": chord}),
        Scene("with links", {"link": [link], "link_error": [link]}),
        Stamped("stamped"),
        Scene("to a queue", {"queue": "mail", "priority": 6}),
        Scene("to a topic", {"exchange": "news", "routing_key": "news.world.eu", "declare": queues_of(QUEUES[-1:])}),
        Scene("with headers", {"headers": {"tenant": "é", "wheel": {"spokes": 32}, "deep": {"x": [1, None]}}}),
        Scene("with limits", {"time_limit": 60, "soft_time_limit": 50, "shadow": "another", "ignore_result": True}),
        Scene("with properties", {"app_id": "billing", "reply_to": "elsewhere", "delivery_mode": 1}),
        *([Scene("with expires", {"expires": FAR})] if app.conf.broker_url.startswith("redis") else []),
        Scene("large", {"argsrepr": "(…)", "headers": {"note": "x" * 5_000}}),
        Scene("of protocol 1", protocol=1),
        Scene("keyed", wheel={"key": "order:42"}),
        Scene("unique", wheel={"unique": "report"}),
        Scene("watching", wheel={"watch": ["order:1", "order:2"]}),
    ]


class OfTask(Scene):
    """The message of the task itself, as rows of bulk loads have it, and not of its name."""

    def send(self, app: Any, eta: datetime | None) -> None:
        delay = {} if eta is None else {"eta": eta}
        app.tasks["note"].apply_async((self.task_id, "ü"), {"k": [None, 1.5]}, task_id=self.task_id, **delay)


def row(task_id: str, eta: datetime) -> dict[str, Any]:
    """Return the row of a bulk load with the same message as ``OfTask(task_id)``."""
    return {"task": "note", "args": (task_id, "ü"), "kwargs": {"k": [None, 1.5]}, "task_id": task_id, "eta": eta}
