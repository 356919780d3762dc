"""Reads the queues of kombu's memory transport, and runs their messages as a worker would."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery.app.trace import build_tracer
from kombu.transport.memory import Channel
from kombu.utils.json import dumps, loads

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.sealed import NO_SEAL, MessageSeal
from celery_wheel.store.model import Message

LIMIT = 8 * 2**20

#: The fixtures ``make_app`` and ``send``.
MakeApp = Callable[..., Any]
Send = Callable[..., Message]


@dataclass
class Broker:
    """The queues of the memory transport; reading removes the messages."""

    def raw(self, queue: str) -> list[bytes]:
        """Return messages as the bytes that a server would have."""
        waiting = Channel.queues.get(queue)
        found = []
        while waiting is not None and waiting.qsize():
            found.append(dumps(waiting.get_nowait()).encode())
        return found

    def sent(self, queue: str = "celery") -> list[dict[str, Any]]:
        return [json.loads(raw) for raw in self.raw(queue)]

    def waiting(self, shard: int = 0, namespace: str = "wheel", seal: MessageSeal = NO_SEAL) -> list[Message]:
        return [read_message(raw, seal) for raw in self.raw(f"{namespace}.{shard}")]

    def one_waiting(self, seal: MessageSeal = NO_SEAL) -> Message:
        assert not self.raw("celery"), "it went native"
        (message,) = self.waiting(seal=seal)
        return message

    def one_sent(self, queue: str = "celery") -> dict[str, Any]:
        assert not self.raw("wheel.0"), "it was diverted"
        (message,) = self.sent(queue)
        return message


def read_message(raw: bytes, seal: MessageSeal = NO_SEAL) -> Message:
    message = QueuedMessageReader(max_message_bytes=LIMIT, seal=seal).decode(raw)
    assert isinstance(message, Message), message.reason
    return message


def dispatched_form(message: Message) -> dict[str, Any]:
    """Return a Message as the task's own queue would have it."""
    properties = json.loads(message.properties)
    return {
        "body": base64.b64encode(message.body).decode(),
        "content-encoding": properties.pop("content_encoding"),
        "content-type": properties.pop("content_type"),
        "headers": json.loads(message.headers),
        "properties": {
            **properties,
            "delivery_info": {"exchange": message.exchange, "routing_key": message.routing_key},
            "priority": message.priority or 0,
        },
    }


def run(app: Any, wire: dict[str, Any]) -> Any:
    """Run a message of protocol 2 as a worker's child would; returns the task's result."""
    args, kwargs, embed = loads(base64.b64decode(wire["body"]))
    headers = wire["headers"]
    task = app.tasks[headers["task"]]
    request = {**headers, **embed, "delivery_info": wire["properties"]["delivery_info"], "is_eager": False}
    request["reply_to"] = wire["properties"]["reply_to"]
    return build_tracer(task.name, task, app=app)(headers["id"], args, kwargs, request)
