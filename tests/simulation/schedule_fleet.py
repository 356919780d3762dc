"""Schedules of groups in a fleet of several shards: users change their groups, schedulers come and go, commits fail.

::

    on every push    a group has at most ``concurrency`` in flight, occurrences and calls together
                     an instant is pushed once; with "skip" and "queue_one" no earlier run of the schedule goes on
    at the end       every instant between the creation and the deletion of a schedule was pushed, or has a skip, or
                     was cancelled by a pause or a deletion
                     every command has one answer with all its names, or was withdrawn and has none
                     every requested occurrence was pushed, or cancelled

A user edits the group of a schedule, and no other part of it: the instants are the multiples of its interval.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from typing import Any

from celery_wheel.broker import shard_of
from celery_wheel.engine.round import Limits
from celery_wheel.engine.state.groups import Limit
from celery_wheel.errors import StoreError
from celery_wheel.store.model import Row
from celery_wheel.store.schedule_model import RUN_ENDED_TASK, SCHEDULE, Revision, Schedule
from celery_wheel.values import json_object
from tests.kit.holder import message
from tests.simulation.fleet import ACTIVITIES, START_MS, WEIGHTS, Fleet, Violation
from tests.simulation.model_history import ShardData
from tests.simulation.model_store import ModelStore
from tests.simulation.recurring_world import Renderer

#: The interval and the overlap policy of each schedule.
SCHEDULES = {"hourly": (300, "allow"), "daily": (700, "skip"), "weekly": (1_100, "queue_one")}
GROUPS = (None, "tenant:1", "tenant:2", "tenant:3", "other:1")
COMMANDS = ("create", "create", "update", "update", "update", "pause", "resume", "delete", "trigger")


class ScheduleFleet(Fleet):
    activities = (*ACTIVITIES, "release_rows")
    weights = (*WEIGHTS, 4)
    steps = (0, 0, 10, 30)
    works = 250

    def __init__(self, seed: int) -> None:
        self.own_rng = rng = random.Random(seed + 11_000_003)
        self.concurrency = rng.choice((1, 2))
        self.limits = Limits(
            lease_ms=1_000,
            window_ms=5_000,
            retention_ms=10**10,
            look_ahead_ms=rng.choice((0, 100, 2_000)),
            late_ms=10**9,  # nothing is missed
            groups={"tenant": Limit(concurrency=self.concurrency, max_runtime_ms=10**9)},
        )
        self.renderer = Renderer()
        self.counts: Counter[str] = Counter()
        self.running: dict[int, tuple[Row, int]] = {}  #: row id → the row, and when its run ends
        self.instants: set[tuple[int, int]] = set()  #: schedule and instant that were pushed
        self.occurrences: set[int] = set()  #: rows that were pushed
        self.task_ids: set[str] = set()  #: of these rows
        self.asked: dict[str, list[str]] = {}
        self.withdrawn: set[str] = set()
        self.last: tuple[str, int, tuple[int, str, bytes]] | None = None
        self.reports = 0
        self.is_quiet = False
        super().__init__(seed)
        self.asker = ModelStore(self.disk)
        self._ask("create", list(SCHEDULES))

    def engine_options(self) -> dict[str, Any]:
        return {"renderer": self.renderer, "shard_of": self._home}

    def _home(self, name: str) -> int:
        return shard_of(name, "", len(self.servers))

    def fault(self, point: str) -> None:
        """Fail now and then, but not while a shard is acquired or given up: this world is about schedules."""
        if not self.is_quiet and self.own_rng.random() < 0.002 and self.acting not in ("tend", "release"):
            self.counts["faults"] += 1
            raise StoreError("simulated")

    # -- users and workers ---------------------------------------------------------------------------

    def _happen(self) -> None:
        dice, rng = self.own_rng.random(), self.own_rng
        if dice < 0.02:
            self._ask(rng.choice(COMMANDS), rng.sample([*SCHEDULES], rng.choice((1, 1, 3))))
        elif dice < 0.023 and self.last is not None:
            number, item, command = self.last
            if self.asker.withdraw(item, command):
                self.withdrawn.add(number)
        else:
            for _ in range(3):
                super()._happen()
        self._end_runs()

    def _calm_down(self, n: int) -> None:
        self.is_quiet = True
        if n in (0, 100):
            self._ask("delete" if n else "resume", [*SCHEDULES])
        self._end_runs()

    def _ask(self, do: str, names: list[str]) -> None:
        """Put a command into the inboxes of its names, as a request does."""
        group = self.own_rng.choice(GROUPS)
        for shard in sorted({self._home(name) for name in names}):
            part = [name for name in names if self._home(name) == shard]
            number = str(uuid.UUID(int=len(self.asked) + 1))
            content: dict[str, Any] = {"names": part}
            if do in ("create", "update"):
                content = {"definitions": {name: _definition(name, group) for name in part}}
            payload = json.dumps({"do": do, "id": number, "actor": "", "reason": "", **content}).encode()
            self.asked[number] = part
            self.last = number, self.asker.put_command(shard, SCHEDULE, payload), (shard, SCHEDULE, payload)

    def _send(self) -> None:
        self.sent += 1
        group, name = self.own_rng.choice(GROUPS[1:]), f"00000000-0000-7000-8000-{self.sent:012d}"
        sent = message(envelope_id=name, task_id=name, eta_ms=self.clock_ms, created_ms=self.clock_ms, group=group)
        self.servers[self._home(str(group))].keys.wheel.append(sent)

    def _end_runs(self) -> None:
        for row_id, (_, end_ms) in list(self.running.items()):
            if end_ms <= self.clock_ms:
                del self.running[row_id]
                for kind in ("slot", "run"):
                    self._report(row_id, kind)

    def _report(self, row_id: int, kind: str) -> None:
        self.reports += 1
        parts = {"task": RUN_ENDED_TASK, "task_id": str(row_id), "body": json.dumps({kind: row_id}).encode()}
        times = {"eta_ms": self.clock_ms, "created_ms": self.clock_ms}
        report = message(envelope_id=f"00000000-0000-7000-9000-{self.reports:012d}", **parts, **times)
        self.servers[row_id & 0xFF].keys.wheel.append(report)

    # -- oracles -------------------------------------------------------------------------------------

    def pushed(self, row: Row, now_ms: int) -> None:
        data = self.disk.shard(row.id & 0xFF)
        run = data.runs.get(row.id)
        if run is None or run.schedule is None:
            super().pushed(row, now_ms)
        else:
            place = run.schedule, run.at_ms
            if row.id in self.occurrences or (not run.requested and place in self.instants):
                raise Violation(f"seed {self.seed}: instant {run.at_ms - START_MS} of {run.schedule} was pushed twice")
            if not run.requested:
                self.instants.add(place)
                self._alone(row, run.schedule)
            self.occurrences.add(row.id)
            self.task_ids.add(_task_id(data, row.id))
            self.counts["occurrences of groups"] += row.group is not None
        self.running[row.id] = row, self.clock_ms + self.own_rng.choice((0, 50, 400, 1_500))
        flying = [id_ for id_, (other, _) in self.running.items() if other.group == row.group]
        if (row.group or "").startswith("tenant:") and len(flying) > self.concurrency:
            raise Violation(
                f"seed {self.seed}: group {row.group} has {flying} in flight, its limit is {self.concurrency}"
            )

    def _alone(self, row: Row, schedule: int) -> None:
        """Check that no earlier run of the schedule goes on, unless its policy allows it."""
        others = []
        for id_ in self.running:
            run = self.disk.shard(id_ & 0xFF).runs.get(id_)
            if run is not None and run.schedule == schedule and not run.requested:
                others.append(id_)
        name = _task_id(self.disk.shard(row.id & 0xFF), row.id).split()[0]
        if others and SCHEDULES[name][1] != "allow":
            raise Violation(f"seed {self.seed}: row {row.id} of {name} was pushed beside its runs {others}")

    def happened(self) -> Counter[str]:
        return self.counts + Counter({"withdrawn": len(self.withdrawn)})

    def _judge(self, before: dict[str, list[int]]) -> None:
        super()._judge(before)
        answers = self.asker.answers(list(self.asked))
        for number, names in self.asked.items():
            if number in self.withdrawn:
                if number in answers:
                    raise Violation(f"seed {self.seed}: a command was withdrawn, and carried out: {answers[number]}")
            elif set(answers.get(number, ())) != set(names):
                raise Violation(f"seed {self.seed}: the command on {names} has the answer {answers.get(number)}")
        requested = {id_ for one in answers.values() for each in one.values() for id_ in each.get("task_ids", ())}
        self.counts["requested"] += len(requested)
        cancelled = {_task_id(data, one.timer_id): one.reason for data in self._data() for one in data.outcomes}
        if lost := requested - self.task_ids - cancelled.keys():
            raise Violation(f"seed {self.seed}: requested occurrences are lost: {sorted(lost)}")
        revisions = [one for data in self._data() for one in data.revisions]
        for created in revisions:
            if created.what == "created":
                self._judge_schedule(created, [one for one in revisions if one.schedule == created.schedule])

    def _judge_schedule(self, created: Revision, revisions: list[Revision]) -> None:
        [deleted] = [one for one in revisions if one.what == "deleted"]
        last, every_ms = Schedule(**json_object(deleted.before)), SCHEDULES[created.name][0]
        upto_ms = min(deleted.at_ms, (last.since_ms or 0) if last.next_ms is None else last.next_ms - 1)
        covered = {at_ms for id_, at_ms in self.instants if id_ == created.schedule}
        self.counts["changes"] += sum(one.what == "changed" for one in revisions)
        self.counts["shards of a schedule"] += len(self._shards_of(created.schedule)) > 1
        for data in self._data():
            for skip in data.skips:
                if skip.schedule == created.schedule:
                    covered |= {*range(skip.from_ms, skip.to_ms + 1, every_ms)}
            ends = {one.timer_id for one in data.outcomes if "was paused" in one.reason or "was deleted" in one.reason}
            covered |= {run.at_ms for id_, run in data.runs.items() if id_ in ends and run.schedule == created.schedule}
        first = created.at_ms + every_ms - (created.at_ms - START_MS) % every_ms
        if missing := [at_ms - START_MS for at_ms in range(first, upto_ms + 1, every_ms) if at_ms not in covered]:
            raise Violation(f"seed {self.seed}: schedule {created.schedule}, {created.name}, has no {missing}")

    def _shards_of(self, schedule: int) -> set[int]:
        return {id_ & 0xFF for data in self._data() for id_, run in data.runs.items() if run.schedule == schedule}

    def _data(self) -> list[ShardData]:
        return list(self.disk.shards.values())


def _definition(name: str, group: str | None) -> dict[str, Any]:
    every_ms, overlap = SCHEDULES[name]
    spec = {"kind": "interval", "every_ms": every_ms, "anchor_ms": START_MS}
    found = {"recurrence": {"kind": "recurrence", "spec": spec}, "task": "app.report", "overlap": overlap}
    return found if group is None else {**found, "options": {"wheel": {"group": group}}}


def _task_id(data: ShardData, row_id: int) -> str:
    return str(getattr(data.rows[row_id].message, "task_id", ""))
