"""The load: delayed messages in the form in which producers send them, made before anything is timed.

::

    app.send_task(…, eta)  ──► wheel.0 ──► one real message of each kind, taken out again
                                             └─ its ids, instants and arguments become places in a template
    template % (ids, instants, arguments)  ──►  as many as wanted, 45 µs each (11 µs without arguments)

Arguments of 600 bytes make a body of 680 bytes, and 2.7 kB in the wheel queue. They are as a shop has them, so that a
compressor finds the same words in all of them and the values in none other.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import redis
from celery.utils.saferepr import saferepr

from celery_wheel.broker import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.values.ids import uuid7
from tests.benchmarks.parts import make_app

WHEEL_QUEUE = wheel_queue_name("wheel", 0)
BODY_BYTES = 600
#: The store of a producer, which never opens it.
UNUSED = "sqlite:////unused/wheel.sqlite3"
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


class Letter(NamedTuple):
    raw: bytes  #: its bytes in a list of Redis
    headers: dict[str, Any]
    properties: dict[str, Any]
    body: str


class Letters:
    """Messages with ``size`` bytes of arguments, as ``app`` sends them; those of a plain Celery app are native."""

    def __init__(
        self, app: Any, client: redis.Redis, kinds: Iterable[tuple[str, str]] = KINDS, size: int = BODY_BYTES
    ) -> None:
        self._size, self._rng = size, Random(5)
        letters = [self._letter(app, client, task, queue) for task, queue in kinds]
        self.example = letters[0]
        self._templates = [_template(letter) for letter in letters]

    def write(self, etas_ms: Iterable[int], created_ms: int) -> Iterator[bytes]:
        created = b"%d" % created_ms
        for eta_ms, (text, places) in zip(etas_ms, cycle(self._templates), strict=False):
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
            yield text % tuple([values[place] for place in places])

    def push(self, client: redis.Redis, queue: str, etas_ms: Iterable[int], created_ms: int) -> int:
        size, messages = 0, self.write(etas_ms, created_ms)
        while pushed := list(islice(messages, AT_ONCE)):
            client.lpush(queue, *pushed)
            size += sum(map(len, pushed))
        return size

    def _letter(self, app: Any, client: redis.Redis, task: str, queue: str) -> Letter:
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


def letters_of(broker: str, client: redis.Redis, kinds: Iterable[tuple[str, str]] = KINDS, **size: int) -> Letters:
    """Return messages for the wheel; called before a scheduler runs, which would take the samples."""
    with make_app(broker, UNUSED) as app:
        return Letters(app, client, kinds, **size)


def _template(letter: Letter) -> tuple[bytes, tuple[bytes, ...]]:
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
    return _PLACES.sub(b"%b", raw), tuple(_PLACES.findall(raw))


NAMES, SURNAMES, WORDS = (
    text.split()
    for text in (
        "Amina Berg Chiara Dmitri Elif Farid Greta Hugo Ingrid Jonas Keiko Lena Mateo Nadia Oskar Priya Rosa Sven Ulla",
        "Almeida Bauer Costa Dahl Eriksen Fontaine Gruber Haas Ivanova Janssen Kowalski Lindqvist Moreau Novak Tanaka",
        "please deliver after noon to the neighbour on second floor ring twice leave at door gift wrap without invoice "
        "call before arrival fragile handle with care urgent birthday return paper bag",
    )
)
CURRENCIES = ("EUR", "USD", "SEK", "PLN", "JPY")

#: The smallest order; fewer bytes of arguments are one string.
SMALLEST = 400

#: Celery's limit for ``argsrepr`` and ``kwargsrepr``.
REPR_CHARS = 1_024


def arguments(rng: Random, size: int) -> dict[str, Any]:
    """Return keyword arguments whose JSON has ``size`` bytes; of fewer than 10 bytes there are none."""
    if size < SMALLEST:
        return {"n": f"{rng.getrandbits(4 * (size - 9)):0{size - 9}x}"} if size >= 10 else {}
    order = _order(rng)
    left = size - len(json.dumps(order))
    while left > 200:
        line = _line(rng)
        order["lines"].append(line)
        left -= len(json.dumps(line)) + len(", ")
    order["note"] = " ".join(rng.choices(WORDS, k=left // 3 + 1))[:left]
    return order


def repr_of(found: dict[str, Any]) -> str:
    """Return what Celery writes into the header ``kwargsrepr``; ``repr`` is the same, and faster, where it fits."""
    text = repr(found)
    return text if len(text) < REPR_CHARS else saferepr(found, REPR_CHARS)


def _order(rng: Random) -> dict[str, Any]:
    name, surname = rng.choice(NAMES), rng.choice(SURNAMES)
    bits = rng.getrandbits(330)
    return {
        "order_id": str(UUID(int=bits & 2**128 - 1, version=4)),
        "number": bits >> 180 & 0x3FFFFFFF,
        "customer": f"{name} {surname}",
        "email": f"{name}.{surname}{bits >> 210 & 0x3FF}@example.org".lower(),
        "placed_at": f"2026-{1 + (bits >> 220) % 12:02}-{1 + (bits >> 230) % 28:02}T{(bits >> 240) % 24:02}:"
        f"{(bits >> 250) % 60:02}:{(bits >> 260) % 60:02}.{(bits >> 270) % 1_000_000:06}+00:00",
        "currency": CURRENCIES[(bits >> 300) % len(CURRENCIES)],
        "total": round(rng.random() * 900, 2),
        "lines": [_line(rng)],
        "note": "",
    }


def _line(rng: Random) -> dict[str, Any]:
    bits = rng.getrandbits(64)
    return {
        "sku": f"{bits & 0xFFFFFF:06X}-{bits >> 24 & 0xFF}",
        "quantity": 1 + (bits >> 32) % 9,
        "price": (bits >> 36) % 20_000 / 100,
        "gift": bool(bits >> 63),
    }
