"""Messages that reach an engine: through the wheel queue, reports of runs among them, and through the inbox.

::

    64 hostile messages, 3 good ones     a new store from a file made once, the real reader, intake, dispatch and broker
      └─ rounds until idle ─► no round fails; each hostile message is
             accepted       the store has it, with the body and the headers that plain JSON reads from its bytes
             rejected       the store has its bytes, with a reason
             acted on       a report or a command: it leaves no row, and the inbox is empty in the end
         and each good message reaches its queue, each good command its answer

A message gets an id of its own, or all mutations of one message would be one; of eight, one keeps its id.
"""

from __future__ import annotations

import json
import logging
import zlib
from abc import abstractmethod
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from kombu.transport.memory import Channel

from celery_wheel import Celery
from celery_wheel.broker.destinations import destinations_of
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.intake.inbox import RunEnded, parse, run_ended
from celery_wheel.engine.round import Round, run_round
from celery_wheel.scheduler.occurrences import ScheduleRenderer
from celery_wheel.store import model, open_store
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import RUN_ENDED_TASK
from celery_wheel.testing.engine import MemoryBroker
from celery_wheel.timing import ManualClock
from celery_wheel.values.ids import id_beside, is_derived
from tests.hostile import messages
from tests.hostile.judge import Broken, Layer
from tests.hostile.messages import GOOD, SEED_ID, START_MS, wire
from tests.kit.packs import lines

Decode = Callable[[bytes], model.Message | model.Unreadable]


class RawBroker(MemoryBroker):
    """A broker in memory whose wheel queue has bytes, read at each peek as a broker's edge reads them."""

    def __init__(self, app: Any, decode: Decode) -> None:
        super().__init__(app, lambda headers, reason: None)
        self._decode = decode

    def decode(self, raw: bytes) -> model.Message | model.Unreadable:
        return self._decode(raw)


class Rig:
    """One engine, with a store of its own."""

    def __init__(self, folder: Path, app: Any, decode: Decode) -> None:
        path = folder / "hostile.sqlite3"
        empty = folder / "empty.sqlite3"
        if not empty.exists():
            open_store(f"sqlite:///{empty}", durability="memory").close()
        path.write_bytes(empty.read_bytes())
        self.store: FullStore = open_store(f"sqlite:///{path}", durability="memory")
        self.clock = ManualClock(START_MS)
        self.broker = RawBroker(app, decode)
        renderer = ScheduleRenderer(app, 2**20, decode)
        self.engine = Engine(0, "hostile", self.store, self.broker, self.clock, renderer=renderer)
        self.errors: list[str] = []
        self.rounds = 0
        self.run("tend")

    def run(self, *activities: str) -> bool:
        """Run a round of each; whether one of them had something to do."""
        self.rounds += 1
        ended = {name: run_round(getattr(self.engine, name)()) for name in activities}
        if found := [one for one in self.errors if "defect" in one]:
            raise Broken(f"an error is logged as a defect: {found[0]}")
        if failed := [name for name, how in ended.items() if how is Round.FAILED]:
            raise Broken(f"a round of {failed[0]} failed: {'; '.join(self.errors)}")
        return Round.BUSY in ended.values()

    def run_until_idle(self, *activities: str, most: int) -> None:
        for _ in range(most):
            if not self.run(*activities):
                return
        raise Broken(f"{activities} have something to do after {most} rounds")

    def close(self) -> None:
        self.broker.close()
        self.store.close()
        Channel.queues.clear()


def _add(*args: Any, **kwargs: Any) -> None:
    """Take any arguments: no worker runs it."""


class EngineLayer(Layer):
    def __init__(self, folder: Path, decode: Decode | None = None) -> None:
        super().__init__(folder)
        self.app = Celery("hostile", broker="memory://", set_as_current=False)
        self.app.conf.wheel_store = f"sqlite:///{folder}/unused.sqlite3"
        self.app.task(name="proj.add", shared=False)(_add)
        reader = QueuedMessageReader(destinations_of(self.app), 2**20)
        self.decode = decode or reader.decode
        self.plain = reader.decode

    @contextmanager
    def rig(self) -> Iterator[Rig]:
        rig = Rig(self.folder, self.app, self.decode)
        handler = logging.Handler(logging.ERROR)
        handler.emit = lambda record: rig.errors.append(_text(record))  # type: ignore[method-assign]
        logger = logging.getLogger("celery_wheel")
        logger.addHandler(handler)
        try:
            yield rig
        finally:
            logger.removeHandler(handler)
            rig.close()

    @abstractmethod
    def judge(self, batch: Sequence[bytes]) -> Counter[str]: ...


def _text(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return f"{record.getMessage()[:300]} {error!r:.300}"


class WheelQueue(EngineLayer):
    name: ClassVar[str] = "wheel-queue"

    @property
    def seeds(self) -> list[bytes]:
        return messages.wheel_queue()

    def look(self, data: bytes) -> None:
        found = self.decode(data)
        if isinstance(found, model.Message) and found.task == RUN_ENDED_TASK:
            run_ended(found)

    def prepared(self, data: bytes, number: int) -> bytes:
        return data if number % 8 == 7 else data.replace(SEED_ID.encode(), messages.numbered_id(number).encode())

    def judge(self, batch: Sequence[bytes]) -> Counter[str]:
        good = [wire(id=messages.numbered_id(1_000 + n), task_id=f"good-{n}") for n in range(3)]
        with self.rig() as rig:
            rig.broker.arrivals.extend(map(self.decode, [good[0], *batch, *good[1:]]))
            rig.run_until_idle("ingest", most=20)
            counts = fates(rig.store, map(self._meaning, batch))
            rig.clock.advance(1_000)
            rig.run_until_idle("tend", "ingest", "prefetch", "release_rows", "dispatch", "settle", most=20 * len(batch))
            parts = [row.parts() for row in rig.broker.sent]
            sent = [one.body for one in parts if b'"id": "good-' in one.headers]
            if sent != [GOOD] * 3:
                raise Broken(f"three good messages beside these were to be sent, and were not: {sent}")
        return counts

    def _meaning(self, raw: bytes) -> Meaning:
        read = self.plain(raw)
        meaning = run_ended(read) if isinstance(read, model.Message) and read.task == RUN_ENDED_TASK else read
        return [] if isinstance(meaning, RunEnded) else [(meaning, raw)]


#: The messages of an item, each with its bytes; none, where it is to be acted on.
Meaning = Sequence[tuple[model.Message | model.Unreadable, bytes]]


def fates(store: FullStore, meanings: Iterable[Meaning]) -> Counter[str]:
    """Return what became of each item, by what the store has. Raises Broken."""
    found = list(meanings)
    ids = Counter(read.envelope_id for meaning in found for read, _ in meaning)
    counts = Counter[str]()
    for meaning in found:
        of_item = {_fate(store, read, raw, ids[read.envelope_id] == 1) for read, raw in meaning} or {"acted on"}
        counts[of_item.pop() if len(of_item) == 1 else "in part"] += 1
    return counts


def _fate(store: FullStore, read: model.Message | model.Unreadable, raw: bytes, is_alone: bool) -> str:
    """``is_alone``: no other message has its id, so the store must have this one."""
    task_id = read.of[1] if isinstance(read, model.Unreadable) else read.task_id
    found = store.handover.find(0, _ids(store, read.envelope_id, task_id))
    stored = next((one for one in found if one.message.task_id == task_id), None)
    if stored is None:
        if isinstance(read, model.Unreadable) and not is_alone:
            return "known"  # it may be an accepted message once more, whose key is gone: a requeue would run it twice
        raise Broken("the store has neither the message nor its bytes")
    if isinstance(read, model.Unreadable):
        is_kept = stored.outcome == "rejected" and stored.reason and stored.message.body in (raw, read.raw)
    else:
        body, headers = plainly(raw)
        is_kept = (stored.message.body, stored.message.headers) == (body, json.dumps(headers).encode())
    if not is_kept:
        if not is_alone:
            return "known"
        raise Broken(f"the store has other bytes, or no reason: {stored.outcome}, {stored.reason}")
    return "rejected" if stored.outcome == "rejected" else "accepted"


def _ids(store: FullStore, envelope_id: str, task_id: str) -> list[str]:
    """Return the ids under which a message may be stored."""
    own = store.derived_id(f"wheel queue {envelope_id}") if is_derived(envelope_id) else envelope_id
    return [envelope_id, own, id_beside(own, task_id)]


def plainly(raw: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return body and headers of a message by Python's own JSON and base64, without the envelope and its eta."""
    message = json.loads(raw.decode().strip())
    body, encoding = message["body"], message["properties"].get("body_encoding")
    if isinstance(body, dict):
        encoding, body = {"bytes": None}.get(body["__type__"], body["__type__"]), body["__value__"]
    headers = message["headers"]
    if "own" in headers["wheel"]:
        headers["wheel"] = headers["wheel"]["own"]
    else:
        del headers["wheel"]
    if "eta" in headers:
        headers["eta"] = None
    return b64decode(body) if encoding == "base64" else body.encode(), headers


class Reports(WheelQueue):
    """The ends of runs, as workers send them to the wheel queue."""

    name: ClassVar[str] = "run-reports"

    @property
    def seeds(self) -> list[bytes]:
        return messages.reports()


class Inbox(EngineLayer):
    """Items of the inbox, ``kind payload``. Messages are mutated before they are packed, ``packed`` ones after it."""

    name: ClassVar[str] = "inbox"

    @property
    def seeds(self) -> list[bytes]:
        return messages.inbox()

    def item(self, data: bytes) -> tuple[str, bytes]:
        kind, _, payload = data.partition(b" ")
        if kind == model.MESSAGES.encode():
            payload = zlib.compress(payload, 1)
        name = kind.decode("latin-1")[:40].replace("\0", "")
        return model.MESSAGES if name == "packed" else name, payload

    def look(self, data: bytes) -> None:
        parse(model.InboxItem(1, *self.item(data)), self.decode, _no_id)

    def prepared(self, data: bytes, number: int) -> bytes:
        return data if number % 8 == 7 else data.replace(SEED_ID.encode(), messages.numbered_id(number).encode())

    def judge(self, batch: Sequence[bytes]) -> Counter[str]:
        items = [self.item(data) for data in batch]
        with self.rig() as rig:
            good = [wire(id=messages.numbered_id(1_000 + n), task_id=f"good-{n}") for n in range(2)]
            rig.broker.arrivals.extend(map(self.decode, good))
            commands = [
                (model.CANCEL, {"task_ids": ["good-0"]}),
                (model.MOVE, {"task_ids": ["good-1"], "eta_ms": None}),
            ]
            names = [messages.numbered_id(2_000 + n) for n in range(2)]
            asked = [
                (kind, json.dumps({**fields, "id": name}).encode())
                for name, (kind, fields) in zip(names, commands, strict=True)
            ]
            numbers = rig.store.put_commands([(0, *one) for one in (*items, *asked)])
            self._settle(rig)
            found = [model.InboxItem(number, *item) for number, item in zip(numbers, items, strict=False)]
            counts = fates(rig.store, [self._meaning(rig.store, item) for item in found])
            answers = rig.store.answers(names)
            results = [answers.get(name) for name in names]
            if results != [{"good-0": "done"}, {"good-1": "done"}]:
                raise Broken(f"a good cancel and a good move beside these were to be done, got {results}")
        return counts

    def _settle(self, rig: Rig, rounds: int = 10) -> None:
        """Run until the inbox is empty; an erasure waits until messages on their way are settled."""
        for _ in range(rounds):
            rig.run_until_idle("ingest", most=100)
            if not rig.store.handover.count_inbox():
                return
            rig.clock.advance(500)
            rig.run("tend", "prefetch", "release_rows", "dispatch", "settle")
        raise Broken(f"the inbox has {rig.store.handover.count_inbox()} items that stay")

    def _meaning(self, store: FullStore, item: model.InboxItem) -> Meaning:
        meaning = parse(item, self.plain, store.derived_id)
        if isinstance(meaning, list):
            raws = [template.fill(row) for template, row in lines(item.payload)] if _is_pack(item, meaning) else []
            return list(zip_longest(model.each(meaning), raws, fillvalue=item.payload))
        answer_to = None if isinstance(meaning, RunEnded) else meaning.answer_to
        if answer_to is not None and store.answer(answer_to) is None:
            raise Broken("a command that can be read has no answer")
        return []


def _is_pack(item: model.InboxItem, meaning: Sequence[model.Arrival]) -> bool:
    first = meaning[0] if meaning else None
    return item.kind == model.MESSAGES and not (isinstance(first, model.Unreadable) and first.raw == item.payload)


def _no_id(name: str) -> str:
    return SEED_ID


class Commands(Inbox):
    """Commands of the inbox: each kind, and each change of schedules."""

    name: ClassVar[str] = "commands"

    @property
    def seeds(self) -> list[bytes]:
        return messages.commands()
