"""Users who create, edit, pause, resume, delete and trigger schedules; an oracle: each instant runs once or has a skip.

::

    ask      one command on one to three names; now and then the end of a run
    look     after every event: an answer ends one phase of a schedule's life and begins the next
                 create ─ active ─ update ─ active ─ pause ─ paused ─ resume ─ active ─ delete
             and a run that begins: with "skip" and "queue_one" every earlier run is over
    pushed   a queued instant of a backfill is pushed when the run before it is over
    judge    every instant of an active phase has one row, or one skip; of a paused phase one skip
             no row is of another instant; each row has its run, and is due within the
             jitter after its instant
             nothing of a schedule is pushed after its delete was answered, but rows that the answer names

The instants are multiples of the interval, computed here. A row that a user has moved may stand for its instant or not.
The last instants before a delete may be missing: they were withdrawn, or not made yet.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_wheel.engine.recurring.header import read_header
from celery_wheel.recurring.definition import BACKFILL_OVERLAPS, QUEUE_ALL
from celery_wheel.store.model import STOPPED, Message, Row
from celery_wheel.store.schedule_model import Run
from tests.simulation.model_history import StoredRow
from tests.simulation.model_store import ModelStore, ShardData

NAMES = ("hourly", "daily", "weekly")
COMMANDS = ("create", "create", "update", "update", "pause", "resume", "resume", "delete", "trigger", "backfill")
ACTOR = "scheduler's user"


@dataclass(slots=True)
class Phase:
    from_ms: int
    every_ms: int
    overlap: str
    max_runtime_ms: int
    jitter_ms: int
    paused: bool = False
    upto_ms: int | None = None

    def instants(self) -> list[int]:
        assert self.upto_ms is not None
        first = self.from_ms // self.every_ms + 1
        return [n * self.every_ms for n in range(first, self.upto_ms // self.every_ms + 1)]


@dataclass(slots=True)
class Life:
    """One schedule, from its creation to its deletion."""

    id: int
    phases: list[Phase]
    deleted: bool = False
    too_late: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Asked:
    do: str
    names: list[str]
    every_ms: int
    overlap: str
    max_runtime_ms: int
    jitter_ms: int = 0


class Scheduling:
    def __init__(
        self, rng: random.Random, store: ModelStore, dense: bool, violation: Callable[[str], Exception]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.lives: dict[int, Life] = {}
        self.requested: set[str] = set()  #: ids of tasks that a trigger or a backfill made
        self._rng = rng
        self._store = store
        self._dense = dense
        self._violation = violation
        self._asked: dict[str, Asked] = {}
        self._answered: set[str] = set()
        self._paused: set[str] = set()  #: names, by the commands that were asked
        self._current: dict[str, Life] = {}
        self._created: Counter[str] = Counter()
        self._seen_runs: set[int] = set()

    # -- commands ------------------------------------------------------------------------------------

    def ask(self, now_ms: int) -> str:
        rng = self._rng
        do = rng.choice(COMMANDS)
        names = rng.sample(NAMES, rng.choice((1, 1, 1, 3)))
        if do == "update":
            names = [name for name in names if name not in self._paused] or [NAMES[0]]
            do = "resume" if names[0] in self._paused else do
        every_ms = rng.choice((7, 20, 50, 300) if self._dense else (100, 700, 3_000))
        overlap = rng.choice(("allow", "allow", "skip", "queue_one", "cancel_running"))
        max_runtime_ms, jitter_ms = rng.choice(((30, 3), (500, 0), (10_000, 40)))
        return self._put(Asked(do, names, every_ms, overlap, max_runtime_ms, jitter_ms), now_ms)

    def calm(self, now_ms: int) -> None:
        self._put(Asked("delete", list(NAMES), 1, "allow", 1), now_ms)

    def _put(self, asked: Asked, now_ms: int) -> str:
        self._paused = self._paused | set(asked.names) if asked.do == "pause" else self._paused
        self._paused = self._paused - set(asked.names) if asked.do in ("resume", "delete") else self._paused
        number = f"00000000-0000-4000-c000-{len(self._asked):012d}"
        self._asked[number] = asked
        fields: dict[str, Any] = {"do": asked.do, "id": number, "actor": ACTOR, "reason": "", "names": asked.names}
        if asked.do in ("create", "update"):
            spec = {"kind": "interval", "every_ms": asked.every_ms}
            document = {"recurrence": {"kind": "recurrence", "spec": spec}, "task": "tasks.recurring"}
            document |= {"catch_up": "latest", "overlap": asked.overlap, "max_runtime_ms": asked.max_runtime_ms}
            document |= {"jitter_ms": asked.jitter_ms, "jitter_by": ("run", "name")[asked.every_ms % 2]}
            fields["definitions"] = dict.fromkeys(asked.names, document)
        if asked.do == "backfill":
            overlap = (QUEUE_ALL, None, QUEUE_ALL, *BACKFILL_OVERLAPS)[len(self._asked) % 8]
            fields |= {"from_ms": now_ms - 3 * asked.every_ms, "upto_ms": now_ms, "overlap": overlap}
        self._store.put_inbox(0, [("schedule", json.dumps(fields).encode())])
        return f"{asked.do} {', '.join(asked.names)} {asked.every_ms} {asked.overlap}"

    def end_a_run(self, data: ShardData, pushes: Mapping[int, int]) -> str:
        pushed = [run for run in data.runs.values() if run.ended_ms is None and run.timer_id in pushes]
        if not pushed:
            return "no run to end"
        run = self._rng.choice(pushed[-5:])
        item = {"schedule": run.schedule, "instant_ms": run.instant_ms}
        self._store.put_inbox(0, [("run_ended", json.dumps(item).encode())])
        return f"run {run.timer_id} ends"

    # -- oracles -------------------------------------------------------------------------------------

    def look(self, data: ShardData, now_ms: int) -> None:
        for number in [one for one in data.answers if one in self._asked and one not in self._answered]:
            self._answered.add(number)
            answer = data.answers[number]
            for name, result in answer.results.items():
                self.counts[f"{self._asked[number].do}: {result['result']}"] += 1
                if result["result"] == "done":
                    self._done(data, self._asked[number], name, result, answer.at_ms)
        for row_id in data.runs.keys() - self._seen_runs:
            self._seen_runs.add(row_id)
            self._began(data, row_id, now_ms)

    def _done(self, data: ShardData, asked: Asked, name: str, result: dict[str, Any], at_ms: int) -> None:
        if asked.do in ("trigger", "backfill"):
            self.requested.update(result["task_ids"])
            return
        if asked.do == "create":
            created = [one.schedule for one in data.revisions if one.name == name and one.number == 1]
            life = Life(created[self._created[name]], [])
            self._created[name] += 1
            self._current[name] = self.lives[life.id] = life
        life = self._current[name]
        life.too_late.update(result.get("too_late", ()))
        self.counts["too late for a change"] += bool(result.get("too_late"))
        policies = asked.every_ms, asked.overlap, asked.max_runtime_ms, asked.jitter_ms
        if life.phases:
            last = life.phases[-1]
            last.upto_ms = at_ms
            policies = (
                policies
                if asked.do == "update"
                else (
                    last.every_ms,
                    last.overlap,
                    last.max_runtime_ms,
                    last.jitter_ms,
                )
            )
        if asked.do == "delete":
            life.deleted = True
        else:
            life.phases.append(Phase(at_ms, *policies, paused=asked.do == "pause"))

    def _began(self, data: ShardData, row_id: int, now_ms: int) -> None:
        run = data.runs[row_id]
        life, stored = self.lives.get(run.schedule), data.rows.get(row_id)
        if life is None or life.deleted or stored is None or self._task_id(stored) in self.requested:
            return
        phases = [one for one in life.phases if one.overlap in ("skip", "queue_one")]
        if len(phases) < len(life.phases):
            return
        self.counts["guarded runs"] += 1
        longest_ms = min(one.max_runtime_ms for one in phases)
        for other in data.runs.values():
            if other.schedule != run.schedule or other.timer_id >= row_id or other.timer_id not in data.rows:
                continue
            row = data.rows[other.timer_id].row
            if other.ended_ms is None and row.lane != STOPPED and row.due_ms + longest_ms > now_ms:
                raise self._violation(f"run {row_id} began while run {other.timer_id} was not over")

    def pushed(self, data: ShardData, row: Row, now_ms: int) -> None:
        run = data.runs.get(row.id)
        if run is not None:
            self._check_queue(data, run, row, now_ms)
        life = None if run is None else self.lives.get(run.schedule)
        if run is not None and life is not None and life.deleted and run.instant_ms not in life.too_late:
            raise self._violation(f"row {row.id} was pushed after its schedule was deleted")

    def _check_queue(self, data: ShardData, run: Run, row: Row, now_ms: int) -> None:
        """A queued instant of a backfill is pushed when the run before it is over."""
        queued = read_header(row).get("queued")
        if queued is None or queued["after"] is None or row.id in self._moved_by_users(data):
            return
        self.counts["queued instants"] += 1
        earlier = [one for one in data.runs.values() if one.timer_id < row.id and one.requested]
        before = max(
            (one for one in earlier if (one.schedule, one.instant_ms) == (run.schedule, queued["after"])),
            key=lambda one: one.timer_id,
        )
        stored = data.rows.get(before.timer_id)
        if before.ended_ms is not None:
            self.counts["queued instants after the end of a run"] += 1
        elif stored is None or stored.row.lane == STOPPED or before.timer_id in self._moved_by_users(data):
            return
        elif stored.row.due_ms + queued["max_runtime_ms"] > now_ms:
            raise self._violation(f"queued row {row.id} was pushed while run {before.timer_id} was not over")

    @staticmethod
    def _moved_by_users(data: ShardData) -> set[int]:
        every = (*data.outcomes, *data.forgotten_outcomes)
        return {one.timer_id for one in every if one.kind == "moved" and one.actor != "wheel"}

    def judge(self, data: ShardData) -> None:
        if self._asked.keys() - self._answered:
            raise self._violation(f"{sorted(self._asked.keys() - self._answered)} were not answered")
        if data.schedules:
            raise self._violation(f"{list(data.schedules.values())} are left")
        moved = {one.timer_id for one in (*data.outcomes, *data.forgotten_outcomes) if one.kind == "moved"}
        withdrawn = {
            one.timer_id: one.reason for one in (*data.outcomes, *data.forgotten_outcomes) if one.actor == ACTOR
        }
        rows: dict[int, list[StoredRow]] = {}
        for row_id, stored in self._ever(data).items():
            if isinstance(stored.message, Message) and stored.message.task == "tasks.recurring":
                if row_id not in data.runs:
                    raise self._violation(f"row {row_id} is an occurrence without a run")
                if stored.message.task_id not in self.requested:
                    rows.setdefault(data.runs[row_id].schedule, []).append(stored)
        for life in self.lives.values():
            self._judge_life(data, life, rows.get(life.id, []), moved, withdrawn)

    def _judge_life(
        self, data: ShardData, life: Life, rows: list[StoredRow], moved: set[int], withdrawn: Mapping[int, str]
    ) -> None:
        active = {at_ms for phase in life.phases if not phase.paused for at_ms in phase.instants()}
        resumed = {at_ms for phase in life.phases[:-1] if phase.paused for at_ms in phase.instants()}
        made, any_number = Counter[int](), set[int]()
        for stored in rows:
            instant_ms = data.runs[stored.row.id].instant_ms
            assert isinstance(stored.message, Message)
            late_ms = stored.message.eta_ms - instant_ms
            if not 0 <= late_ms <= max(one.jitter_ms for one in life.phases):
                raise self._violation(f"row {stored.row.id} is due {late_ms} ms after its instant")
            self.counts["runs with jitter"] += late_ms > 0
            if stored.row.id in moved or withdrawn.get(stored.row.id, "").endswith("deleted"):
                any_number.add(instant_ms)
            elif stored.row.id not in withdrawn:
                made[instant_ms] += 1
        if strange := made.keys() - active - life.too_late:
            raise self._violation(f"schedule {life.id} ran at {sorted(strange)}, which are none of its instants")
        skips = [one for one in data.skips if one.schedule == life.id]
        self.counts.update(f"skipped, {one.reason}" for one in skips)
        accounted = max([0, *made, *(one.to_ms for one in skips)])
        for at_ms in sorted(active | resumed):
            times = made[at_ms] + sum(one.from_ms <= at_ms <= one.to_ms for one in skips)
            if times > 1 and at_ms not in any_number and at_ms not in active & resumed:
                raise self._violation(f"schedule {life.id}: instant {at_ms} was made or skipped {times} times")
            if times == 0 and at_ms not in any_number and at_ms < accounted:
                raise self._violation(f"schedule {life.id}: instant {at_ms} neither ran nor was skipped")
        self.counts["instants made"] += sum(made.values())

    @staticmethod
    def _ever(data: ShardData) -> dict[int, StoredRow]:
        return {**data.forgotten, **data.rows}

    @staticmethod
    def _task_id(stored: StoredRow) -> str:
        return stored.message.task_id if isinstance(stored.message, Message) else ""
