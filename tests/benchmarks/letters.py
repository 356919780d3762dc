"""The load: delayed messages in the form in which producers send them, made before anything is timed.

::

    app.send_task(…, eta)  ──► wheel.0 ──► one real message of each kind, taken out again
                                             └─ its ids, instants and arguments become places in a template
    template % (ids, instants, arguments)  ──►  as many as wanted, 45 µs each (11 µs without arguments)

Each message has arguments of its own (``arguments``), 600 bytes unless asked otherwise: a body of 680 bytes, and 2.7 kB
in the wheel queue. A plain Celery app without the wheel gives the messages of native Celery.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from random import Random
from typing import Any

import redis

from celery_wheel.broker import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.values.ids import uuid7
from tests.benchmarks.arguments import arguments, repr_of

WHEEL_QUEUE = wheel_queue_name("wheel", 0)
BODY_BYTES = 600
SEED = 5
AT_ONCE = 500

#: Task and queue of each kind of message; the kinds alternate.
KINDS = (
    ("shop.orders.tasks.cancel_unless_paid", "bench.orders"),
    ("shop.accounts.tasks.remind_of_trial", "bench.accounts"),
    ("shop.mail.tasks.send_campaign", "bench.mail"),
    ("shop.mail.tasks.retry_bounce", "bench.mail"),
)
QUEUES = tuple(dict.fromkeys(queue for _, queue in KINDS))

#: The end of every body: Celery's own part.
_EMBED = ', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
_TASK_ID = re.compile(rb'"id": ?"([^"]+)"')
_PLACES = re.compile(rb"@(ENVELOPE|TASK|TAG|ETA|ISO|CREATED|BODY|REPR)@")


@dataclass(frozen=True, slots=True)
class Letter:
    """A message in the two forms that the yardsticks need."""

    raw: bytes  #: its bytes in a list of Redis
    headers: dict[str, Any]
    properties: dict[str, Any]
    body: str


@dataclass(frozen=True, slots=True)
class _Template:
    text: bytes
    places: tuple[bytes, ...]


class Letters:
    """Messages of some kinds.

    Args:
        size: bytes of each message's arguments.
    """

    def __init__(
        self, app: Any, client: redis.Redis, kinds: Iterable[tuple[str, str]] = KINDS, size: int = BODY_BYTES
    ) -> None:
        self._size, self._rng = size, Random(SEED)
        self._letters = [self._letter(app, client, task, queue) for task, queue in kinds]
        self._templates = [_template(letter) for letter in self._letters]

    @property
    def example(self) -> Letter:
        return self._letters[0]

    def write(self, etas_ms: Iterable[int], created_ms: int) -> Iterator[bytes]:
        """Yield a message for each eta, with alternating kinds, new ids and new arguments."""
        created = b"%d" % created_ms
        for eta_ms, template in zip(etas_ms, cycle(self._templates), strict=False):
            found, envelope = arguments(self._rng, self._size), uuid7().encode()
            values = {
                b"ENVELOPE": envelope,
                b"TASK": uuid7().encode(),
                b"TAG": envelope,  # it only has to differ from the others
                b"ETA": b"%d" % eta_ms,
                b"ISO": datetime.fromtimestamp(eta_ms / 1_000, UTC).isoformat().encode(),
                b"CREATED": created,
                b"BODY": b64encode(body_of(found)),
                b"REPR": json.dumps(repr_of(found)).encode(),
            }
            yield template.text % tuple([values[place] for place in template.places])

    def push(self, client: redis.Redis, queue: str, etas_ms: Iterable[int], created_ms: int) -> int:
        """Write messages into a list of Redis; return their bytes."""
        size, messages = 0, self.write(etas_ms, created_ms)
        while pushed := list(islice(messages, AT_ONCE)):
            client.lpush(queue, *pushed)
            size += sum(map(len, pushed))
        return size

    def _letter(self, app: Any, client: redis.Redis, task: str, queue: str) -> Letter:
        """Return the message that the app itself sends."""
        found = arguments(self._rng, self._size)
        app.send_task(task, kwargs=found, eta=datetime.now(UTC) + timedelta(days=1), queue=queue)
        raw: Any = client.rpop(wheel_queue_name(Conf(app).namespace, 0)) or client.rpop(queue)
        message = json.loads(raw)
        body = body_of(found)
        assert message["body"] == b64encode(body).decode(), "Celery's own bytes of a body"
        return Letter(raw, message["headers"], message["properties"], body.decode())


def task_id_of(raw: bytes) -> bytes:
    """Return the task's id of a message in a queue of Redis: the first id of its headers."""
    found = _TASK_ID.search(raw)
    assert found, f"a message without an id: {raw!r}"
    return found[1]


def body_of(found: dict[str, Any]) -> bytes:
    """Return the body that Celery makes of these arguments, before kombu's base64."""
    return f"[[], {json.dumps(found)}{_EMBED}".encode()


def _template(letter: Letter) -> _Template:
    """Replace the values that differ from message to message by their places."""
    message, headers = json.loads(letter.raw), letter.headers
    places = [
        (message["body"], "@BODY@"),
        (json.dumps(headers["kwargsrepr"]), "@REPR@"),
        (headers["id"], "@TASK@"),
        (headers["eta"], "@ISO@"),
        (letter.properties["delivery_tag"], "@TAG@"),
    ]
    if envelope := headers.get("wheel"):
        places.append((envelope["id"], "@ENVELOPE@"))
        for name, place in (("eta_ms", "@ETA@"), ("created_ms", "@CREATED@")):
            places.append((f'"{name}": {envelope[name]}', f'"{name}": {place}'))
    text = letter.raw.decode()
    for value, place in places:
        assert value in text, f"a message of Celery has no {place}: {text}"
        text = text.replace(value, place)
    raw = text.encode().replace(b"%", b"%%")
    return _Template(_PLACES.sub(b"%b", raw), tuple(_PLACES.findall(raw)))
