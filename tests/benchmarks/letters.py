"""The load: delayed messages in the form in which producers send them, made before anything is timed.

::

    app.send_task(…, eta)  ──► wheel.0 ──► one real message of each kind, taken out again
                                             └─ its ids and instants become places in a template
    template % (ids, instants)  ──►  as many as wanted, 4 µs each

600 bytes of body; headers and the envelope as Celery and the wheel make them, about 1.9 kB in all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import redis

from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.values.ids import uuid7

WHEEL_QUEUE = wheel_queue_name("wheel", 0)
BODY_BYTES = 600

#: Task and queue of each kind of message; the kinds alternate.
KINDS = (
    ("shop.orders.tasks.cancel_unless_paid", "bench.orders"),
    ("shop.accounts.tasks.remind_of_trial", "bench.accounts"),
    ("shop.mail.tasks.send_campaign", "bench.mail"),
    ("shop.mail.tasks.retry_bounce", "bench.mail"),
)
QUEUES = tuple(dict.fromkeys(queue for _, queue in KINDS))

_PLACES = re.compile(rb"ENVELOPE|TASK|TAG|ETA|CREATED")


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
    def __init__(self, app: Any, client: redis.Redis, kinds: Iterable[tuple[str, str]] = KINDS) -> None:
        self._letters = [_letter(app, client, task, queue) for task, queue in kinds]
        self._templates = [_template(letter.raw) for letter in self._letters]

    @property
    def example(self) -> Letter:
        return self._letters[0]

    def write(self, etas_ms: Iterable[int], created_ms: int) -> Iterator[bytes]:
        """Yield a message for each eta, with alternating kinds and new ids."""
        created = b"%d" % created_ms
        for eta_ms, template in zip(etas_ms, cycle(self._templates), strict=False):
            envelope = uuid7().encode()
            values = {
                b"ENVELOPE": envelope,
                b"TASK": uuid7().encode(),
                b"TAG": envelope,  # it only has to differ from the others
                b"ETA": b"%d" % eta_ms,
                b"CREATED": created,
            }
            yield template.text % tuple([values[place] for place in template.places])


def _letter(app: Any, client: redis.Redis, task: str, queue: str) -> Letter:
    """Return the message that the app itself sends to the wheel queue."""
    eta = datetime.now(UTC) + timedelta(days=1)
    filler = "x" * (BODY_BYTES - len(_body("")))
    app.send_task(task, (filler,), eta=eta, queue=queue)
    raw: Any = client.rpop(wheel_queue_name(Conf(app).namespace, 0))
    message = json.loads(raw)
    return Letter(raw, message["headers"], message["properties"], _body(filler))


def _body(filler: str) -> str:
    """Return the body that Celery makes of one argument, before kombu's base64."""
    return json.dumps([[filler], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])


def _template(raw: bytes) -> _Template:
    message = json.loads(raw)
    envelope = message["headers"]["wheel"]
    text = raw.replace(b"%", b"%%")
    for value, place in (
        (envelope["id"], b"ENVELOPE"),
        (envelope["task_id"], b"TASK"),
        (message["properties"]["delivery_tag"], b"TAG"),
    ):
        text = text.replace(value.encode(), place)
    for name, place in (("eta_ms", b"ETA"), ("created_ms", b"CREATED")):
        text = text.replace(b'"%b": %d' % (name.encode(), envelope[name]), b'"%b": %b' % (name.encode(), place))
    places = tuple(_PLACES.findall(text))
    assert set(places) == {b"ENVELOPE", b"TASK", b"TAG", b"ETA", b"CREATED"}, places
    return _Template(_PLACES.sub(b"%b", text), places)
