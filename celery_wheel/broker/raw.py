"""A message in the form in which it lies in the wheel queue, for those who write it into the store's inbox.

::

    producer.publish(body, headers={…, "wheel": envelope}, …)  ──►  raw(body, publish)  ──►  written(…): bytes
                                                                     └─ read by ``envelope.decode``, as from the queue

It is kombu's own code that serialises and compresses; nothing is connected.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Protocol, cast

from kombu.messaging import Producer
from kombu.utils.json import JSONEncoder


class Preparing(Protocol):
    """What is used of kombu's Producer: nothing that needs a connection."""

    def _prepare(self, body: Any, serializer: Any, *, compression: Any, headers: Any) -> tuple[bytes, str, str]: ...
    def _delivery_details(self, exchange: Any, delivery_mode: Any) -> tuple[str, int]: ...


#: kombu's serialising, compressing and defaults, without a channel.
kombu = cast("Preparing", cast(Any, Producer)(None))

#: What kombu's ``publish`` takes that is no property of the message.
_NO_PROPERTY = frozenset(
    [
        "exchange",
        "routing_key",
        "declare",
        "retry",
        "retry_policy",
        "timeout",
        "confirm_timeout",
        "mandatory",
        "immediate",
        "headers",
        "serializer",
        "compression",
        "content_type",
        "content_encoding",
        "delivery_mode",
        "priority",
        "expiration",
    ]
)


def raw(body: Any, publish: dict[str, Any]) -> dict[str, Any]:
    """The message that ``publish`` with these arguments would put into a queue; its body is the base64 text.

    As kombu does, it writes the compression into the headers that it is given.
    """
    headers = publish["headers"]
    encoded, content_type, content_encoding = kombu._prepare(
        body, publish.get("serializer"), compression=publish.get("compression"), headers=headers
    )
    _, mode = kombu._delivery_details(publish["exchange"], publish.get("delivery_mode"))
    properties = {name: value for name, value in publish.items() if name not in _NO_PROPERTY}
    return {
        "body": base64(encoded),
        "content-encoding": content_encoding,
        "content-type": content_type,
        "headers": headers,
        "properties": {**properties, "delivery_mode": mode, "body_encoding": "base64"},
    }


def base64(body: Any) -> str:
    """A body as it stands in a message; serialisers give text or bytes."""
    return b64encode(body.encode() if isinstance(body, str) else body).decode()


def written(message: dict[str, Any]) -> bytes:
    return JSONEncoder().encode(message).encode()
