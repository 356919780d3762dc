"""Bulk loads into a simulated world: by jobs whose tasks fail, run twice, continue after they were fenced, or abort.

::

    turn     the current job runs its next transaction: begin, claim, put, commit or abort; or its driver dies, and the
             same job begins again later. Abandoned attempts go on at any time, too
    judge    committed   all messages of the load are in the store         once, as everywhere
             otherwise   none of them is, unless another load has it too
             aborted     no chunk of the load remains

Two loads share some messages: the same job under another name.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.intake.stored_form import FEW
from celery_wheel.errors import LoadEnded
from celery_wheel.store.message_pack import BODY, CREATED_MS, ENVELOPE, ETA_MS, ID, KEY, PackTemplate, pack
from celery_wheel.store.model import ABORTED, COMMITTED, DONE, Message
from tests.simulation.model_store import Disk

PARTS = 2

#: The messages of a queue, in a form by which several of them are accepted as a block.
_TEMPLATES = {
    queue: PackTemplate(
        '{"body": %s, "headers": {"task": "tasks.add", "id": %s, "wheel": {"v": 1, "task": "tasks.add", "id": %s, '
        '"task_id": %s, "eta_ms": %s, "created_ms": %s, "key": %s, "exchange": "", "exchange_type": "direct", '
        f'"routing_key": "{queue}", "queue": "{queue}"}}}}, "properties": {{"body_encoding": "utf-8"}}}}',
        (0, 1, 2, 1, 3, 4, 5),
        (BODY, ID, ENVELOPE, ETA_MS, CREATED_MS, KEY),
    )
    for queue in ("celery", "mail")
}


@dataclass(slots=True)
class Attempt:
    """A task of a job: it writes its part, slice by slice, until another attempt has claimed the part."""

    part: int
    number: int
    slices: list[list[Message]]
    put: int = 0


@dataclass(slots=True)
class Job:
    name: str
    run: int
    attempts: list[Attempt] = field(default_factory=list)
    last: dict[int, Attempt] = field(default_factory=dict)  #: of each part


class Loading:
    def __init__(self, rng: random.Random, disk: Disk, violation: Callable[[str], Exception]) -> None:
        self.counts: Counter[str] = Counter()
        self.committed: dict[str, Message] = {}  #: by envelope, the messages of committed loads
        self._rng = rng
        self._disk = disk
        self._violation = violation
        self._messages: dict[str, Message] = {}
        self._values: dict[str, tuple[PackTemplate, tuple[str, ...]]] = {}
        self._plans: dict[str, list[list[list[Message]]]] = {}
        self._reader = QueuedMessageReader()
        self._job: Job | None = None
        self._given_up: list[Job] = []

    def decode(self, raw: bytes) -> Message:
        found = self._reader.decode(raw)
        assert isinstance(found, Message)
        return found

    def unknown(self) -> list[str]:
        """Return the ids of the tasks that no scheduler has accepted."""
        stored = self._disk.shard(0).envelopes
        return [one.task_id for id_, one in self._messages.items() if id_ not in stored]

    def turn(self, now_ms: int) -> str:
        try:
            if self._given_up and self._rng.random() < 0.3:
                return self._go_on(self._rng.choice(self._given_up))
            if self._job is None:
                return self._begin(now_ms)
            return self._work(self._job)
        except LoadEnded as over:
            self.counts["writers fenced"] += 1
            return f"load: {over}"

    def _begin(self, now_ms: int) -> str:
        names = list(self._plans)
        name = self._rng.choice(names) if names and self._rng.random() < 0.5 else f"load-{len(names)}"
        run = self._disk.loads.begin(name)
        if run is None:
            self.counts["loaded already"] += 1
            return f"{name}: is loaded already"
        if name not in self._plans:
            self._plans[name] = [self._part(now_ms) for _ in range(PARTS)]
        self._job = Job(name, run)
        return f"{name}: run {run} begins"

    def _part(self, now_ms: int) -> list[list[Message]]:
        """Return the messages of one or two slices; those of a large slice are mostly one kind."""
        slices = []
        for size in self._rng.choice(((1,), (1, FEW), (FEW + 1,), (1, 1))):
            queue = self._rng.choice(list(_TEMPLATES))
            slices.append([self._message(now_ms, queue, 0.2 / size) for _ in range(size)])
        return slices

    def _message(self, now_ms: int, queue: str, shared: float) -> Message:
        if self._messages and self._rng.random() < shared:
            return self._rng.choice(list(self._messages.values()))
        number = len(self._messages)
        envelope_id = f"00000000-0000-7000-9000-{number:012d}"
        eta_ms = now_ms + self._rng.choice((-5, 5, 30, 100, 400))
        values = (
            json.dumps("x"),
            json.dumps(f"loaded-{number}"),
            json.dumps(envelope_id),
            str(eta_ms),
            str(now_ms),
            "null",
        )
        message = self.decode(_TEMPLATES[queue].fill(values))
        self._values[envelope_id] = (_TEMPLATES[queue], values)
        self._messages[envelope_id] = message
        return message

    def _work(self, job: Job) -> str:
        dice = self._rng.random()
        if dice < 0.06:
            self._give_up(job)
            return f"{job.name}: its driver dies"
        if dice < 0.12:
            self._give_up(job)
            self._disk.loads.abort(job.name, job.run)
            self.counts["loads aborted"] += 1
            return f"{job.name}: aborted"
        missing = [part for part in range(PARTS) if part not in job.last]
        if missing or dice < 0.2:
            return self._claim(job, self._rng.choice(missing or range(PARTS)))
        if all(one.put == len(one.slices) for one in job.last.values()):
            return self._commit(job)
        return self._go_on(job)

    def _give_up(self, job: Job) -> None:
        self._given_up.append(job)
        self._job = None

    def _claim(self, job: Job, part: int) -> str:
        number = self._disk.loads.claim(job.name, job.run, part)
        job.last[part] = Attempt(part, number, self._plans[job.name][part])
        job.attempts.append(job.last[part])
        return f"{job.name}: attempt {number} at part {part}"

    def _go_on(self, job: Job) -> str:
        unfinished = [one for one in job.attempts if one.put < len(one.slices)]
        if not unfinished:
            return f"{job.name}: rests"
        one = self._rng.choice(unfinished)
        payload = pack([self._values[message.envelope_id] for message in one.slices[one.put]])
        one.put += 1
        self._disk.loads.put(job.name, job.run, one.part, one.number, one.put - 1, {0: payload})
        return f"{job.name}: slice {one.put - 1} of part {one.part} by attempt {one.number}"

    def _commit(self, job: Job) -> str:
        self._job = None
        self._given_up.append(job)
        self._disk.loads.commit(job.name, job.run, {part: one.number for part, one in job.last.items()})
        self.counts["loads committed"] += 1
        self.committed.update({one.envelope_id: one for one in self._of(job.name)})
        return f"{job.name}: committed"

    def _of(self, name: str) -> Iterable[Message]:
        return (message for part in self._plans[name] for slice_ in part for message in slice_)

    def calm(self) -> None:
        for job in [*self._given_up, *([self._job] if self._job else [])]:
            for _ in range(2 * PARTS):
                try:
                    self._go_on(job)
                except LoadEnded:
                    self.counts["writers fenced"] += 1
        if self._job is not None:
            self._disk.loads.abort(self._job.name, self._job.run)

    def is_done(self) -> bool:
        return not self._disk.loads.read(0, 1)

    def judge(self, accepted: set[str]) -> None:
        for name, load in self._disk.loads.loads.items():
            there = {one.envelope_id for one in self._of(name)}
            if load.state in (COMMITTED, DONE):
                if missing := there - accepted:
                    raise self._violation(f"{name} is {load.state}, and {sorted(missing)} never came into the store")
                continue
            if early := there & accepted - self.committed.keys():
                raise self._violation(f"{name} is {load.state}, and {sorted(early)} came into the store")
            if load.state == ABORTED and any(load.parts.values()):
                raise self._violation(f"{name} was aborted, and chunks of it remain")
