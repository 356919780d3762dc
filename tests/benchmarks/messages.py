"""CPU of a message, one piece at a time, without a scheduler. The calls of two contestants alternate in short turns.

::

    producer    apply_async(countdown=…) through the wheel     beside the same call of plain Celery
    decoding    a message of the wheel queue, by msgspec       by Python's own JSON alone, which is kombu's way
                signed; encrypted and signed                   as it is
    keys        pack and encrypt a stored message; unpack it   without a key
    schedules   an occurrence, by the renderer                 the same calls by apply_async, captured

A figure is the median of the turns' CPU; the ratio of two figures holds where others use the cores, too.
"""

import json
import statistics
import uuid
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import celery
from kombu.transport.memory import Channel

from celery_wheel import Celery
from celery_wheel.broker import reader
from celery_wheel.broker.envelope import HEADER
from celery_wheel.broker.queues import build_message, encode_message
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.sealed import MessageSeal
from celery_wheel.bulk_load.message_template import Sampler
from celery_wheel.bulk_load.row import TaskCall
from celery_wheel.engine.recurring.occurrence import Occurrence
from celery_wheel.producer.eta import due_time_of_header
from celery_wheel.recurring import Instants, Recurrence, to_json
from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.scheduler.occurrences import ScheduleRenderer
from celery_wheel.store.model import Message, join
from celery_wheel.store.schedule_model import Schedule
from celery_wheel.store.sql.dictionaries import SKELETON, Dictionary
from celery_wheel.values.keyring import EncryptionKeys, SigningKeys
from tests.benchmarks.figure import Figure, pace
from tests.benchmarks.letters import letters_of
from tests.kit.servers.redis import RedisServer

TURNS, CALLS = 40, 250
AT_MS = 1_793_664_000_000

#: CPU of the wheel's call, as a multiple of the plain call's; of an occurrence, in µs.
TARGET, TARGET_US = 1.15, 40

#: 600 bytes of body.
ARGUMENTS = ("x" * 520,)


def _medians(works: Iterable[Callable[[], object]], count: int, after: Callable[[], object] = int) -> list[float]:
    """Return the CPU of each work for one of ``count`` messages, in µs; its first turns connect and do not count."""
    spent: dict[Callable[[], object], list[float]] = {work: [] for work in works}
    for _ in range(TURNS):
        for work, found in spent.items():
            found.append(pace(work, count).cpu_us)
            after()
    return [statistics.median(found[2:]) for found in spent.values()]


def producer(folder: Path, _rows: int) -> Iterator[Figure]:
    """On kombu's memory transport, which shows the Python part alone, and on Redis."""
    with RedisServer(folder / "redis") as server:
        for transport, broker, empty in (
            ("memory", "memory://", Channel.queues.clear),
            ("Redis", server.url, server.client().flushall),
        ):
            ours, theirs = _medians([_sender(Celery, broker), _sender(celery.Celery, broker)], CALLS, empty)
            against = "plain Celery", theirs, TARGET * theirs
            what = f"{transport}: apply_async(countdown)"
            yield Figure("producer", what, ours, "µs/call", *against, less_is_better=True)


def _sender(app_class: Any, broker: str) -> Callable[[], None]:
    app = app_class("bench", broker=broker, set_as_current=False)
    app.conf.task_ignore_result = True

    @app.task(name="shop.orders.tasks.cancel_unless_paid")
    def task(order: str) -> None:
        raise AssertionError(f"no worker runs {order}")

    def send() -> None:
        for _ in range(CALLS):
            task.apply_async(ARGUMENTS, countdown=3_600)

    return send


def decoding(folder: Path, _rows: int) -> Iterator[Figure]:
    """Python's JSON reads the messages that msgspec does not read as Python does; here it reads all of them."""
    with RedisServer(folder / "redis") as server:
        letters = letters_of(server.url, server.client())
    raws = list(letters.write([2_000_000_000_000] * 4 * CALLS, 1_900_000_000_000))
    decode = QueuedMessageReader().decode
    assert isinstance(decode(raws[0]), Message)

    def read() -> None:
        for raw in raws:
            decode(raw)

    def read_by_json() -> None:
        with mock.patch.multiple(reader, _decode_queued=_refuse, _dumps=reader._dumps_all):
            read()

    ours, theirs = _medians([read, read_by_json], len(raws))
    what = f"a message of {sum(map(len, raws)) / len(raws):,.0f} B"
    yield Figure("decoding", what, ours, "µs", "Python's json", theirs, less_is_better=True)

    for name, seal in SEALS.items():
        sealed = [sealed_form(raw, seal) for raw in raws]
        read_sealed = partial(_read_all, QueuedMessageReader(seal=seal).decode, sealed)
        opened, plain = _medians([read_sealed, read], len(raws))
        yield Figure("decoding", f"{what}, {name}", opened, "µs", "as it is", plain, less_is_better=True)


SECRET = "a secret of thirty-two characters"  # noqa: S105 - of nobody
SIGNED = MessageSeal(signing=SigningKeys([SECRET]))
SEALS = {"signed": SIGNED, "encrypted and signed": MessageSeal(EncryptionKeys([SECRET]), SIGNED.signing)}


def sealed_form(raw: bytes, seal: MessageSeal) -> bytes:
    """Return a message of the wheel queue as a producer with keys would have sent it."""
    message = json.loads(raw)
    names = message["headers"][HEADER]
    publish = {"exchange": "", "routing_key": "wheel.0", "headers": message["headers"], **message["properties"]}
    publish |= {"content_type": message["content-type"], "content_encoding": message["content-encoding"]}
    body = b64decode(message["body"])
    return encode_message(build_message(*seal.seal(body, publish, names["task"], names["task_id"], 0)))


def _read_all(decode: Callable[[bytes], object], raws: Iterable[bytes]) -> None:
    for raw in raws:
        decode(raw)


def keys(folder: Path, _rows: int) -> Iterator[Figure]:
    """The work of a store's key for each of 500 messages at once, as they are accepted and dispatched."""
    with RedisServer(folder / "redis") as server:
        letters = letters_of(server.url, server.client())
    found = map(QueuedMessageReader().decode, letters.write([2_000_000_000_000] * 500, 1_900_000_000_000))
    plain = [join(one.headers, one.properties, one.body) for one in found if isinstance(one, Message)]
    without, own = Dictionary(1, SKELETON), EncryptionKeys([SECRET])
    encrypted = Dictionary(2, SKELETON, own, own.current)
    packed = [one.pack(plain) for one in (without, encrypted)]
    works = [partial(one.pack, plain) for one in (without, encrypted)]
    before, after = _medians(works, len(plain))
    yield Figure("keys", "pack a message", after, "µs", "without a key", before, less_is_better=True)
    yield Figure("keys", "of it the key's work", after - before, "µs", "asked", 5.0, less_is_better=True)
    before, after = _medians(
        [partial(_read_all, one.unpack, some) for one, some in zip((without, encrypted), packed, strict=True)],
        len(plain),
    )
    yield Figure("keys", "unpack a message", after, "µs", "without a key", before, less_is_better=True)
    more = statistics.fmean(len(two) - len(one) for one, two in zip(*packed, strict=True))
    yield Figure("keys", "bytes of a row", more, "bytes more", "asked", 40.0, less_is_better=True)


def _refuse(_raw: bytes) -> None:
    raise ValueError


def schedules(_folder: Path, _rows: int) -> Iterator[Figure]:
    """The message of an occurrence: the renderer, and the same calls by ``apply_async``, captured."""
    app: Any = Celery("bench", broker="redis://", set_as_current=False)

    @app.task(name="bench.report", shared=False)
    def task(number: int, period: str) -> None: ...

    options = {"recurrence": to_json(Recurrence(Instants((AT_MS,)))), "task": task.name, "options": {"queue": "celery"}}
    some = [
        Schedule(number, f"report {number}", to_text({**options, "args": [number, "daily"]}), "api", 1, AT_MS)
        for number in range(CALLS)
    ]
    renderer, sampler = ScheduleRenderer(app, 2**20, QueuedMessageReader().decode), Sampler(app)
    due = due_time_of_header(app, "2026-11-03T00:00:00+00:00")

    def by_renderer() -> None:
        for one in some:
            occurrence = Occurrence(0, AT_MS, AT_MS, None, str(uuid.UUID(int=one.id)))
            renderer.render(one, read_definition(one.definition), occurrence)

    def by_celery() -> None:
        for one in some:
            sampler.send(TaskCall(task.name, task, [one.id, "daily"], {}, {"queue": "celery"}, due, str(one.id)))

    ours, theirs = _medians([by_renderer, by_celery], CALLS)
    cost = ours, "µs", "by Celery's own code", theirs, TARGET_US
    yield Figure("schedules", "a message of an occurrence, CPU", *cost, less_is_better=True)
    app.close()
