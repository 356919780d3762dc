"""Groups in a simulated installation: limits, fair shares, workers that take time, and reports that come late or never.

::

    on every push    a group has at most ``concurrency`` runs in flight: pushed, not over, and within max_runtime;
                     where users change it, the highest counts that was in force since the row got its slot
                     no time of the length of a rate has more first publications of a group than the rate allows
                     a queue has no more messages than its depth
                     no row overtakes an earlier row of its group on the way to the same queue
    on every look    a line's number of waiting rows is exact (see ``model_history.apply_groups``)
    at the end       every row was in its queue: nobody waits for ever; no slot is left

Users set and clear limits of single groups. A former limit is in force until the holder's round of ``ingest`` is over;
runs that are pushed while a group has no limit do not count, also not under a later one. Users also pause and resume
single groups: no row of a paused group is pushed (see ``gating``).

A worker is killed now and then: its report never comes, and the slot ends by max_runtime.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from celery_wheel.engine.round import Round
from celery_wheel.engine.state.depths import depths_of
from celery_wheel.engine.state.gates import Rate
from celery_wheel.engine.state.groups import Limit, class_of
from celery_wheel.store.model import LIMIT, WAITING, Message, Row, Unreadable
from celery_wheel.store.schedule_model import RUN_ENDED_TASK
from tests.kit.holder import message
from tests.simulation.gating import Gating
from tests.simulation.happenings import ACTIVITIES, WEIGHTS, Scheduler
from tests.simulation.model_store import ModelStore
from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.world import World

GROUPS = (None, "tenant:1", "tenant:1", "tenant:2", "other:1")
LIMITED = ("tenant:1", "tenant:2", "other:1")


class Limiting:
    """Users who set and clear limits of single groups, and the limits of concurrency that were in force when."""

    def __init__(self, rng: random.Random, store: ModelStore, classes: dict[str, float], max_runtime_ms: int) -> None:
        self._rng = rng
        self._store = store
        self._classes = classes  #: concurrency by class
        self._max_runtime_ms = max_runtime_ms
        self._last = (0, b"")
        self._in_store: dict[str, float] = {}
        self._former: dict[str, list[float]] = {group: [] for group in LIMITED}  #: perhaps still in force
        self._ended: dict[str, list[tuple[int, float]]] = {group: [] for group in LIMITED}  #: with their last steps
        self.decided: dict[int, int] = {}  #: row id → the step in which it got its slot
        self._chosen: dict[str, int] = {}  #: scheduler → the step of its last choice of rows to release
        self.counts: Counter[str] = Counter()

    def turn(self) -> str:
        if self._rng.random() < 0.2:
            item, payload = self._last
            self.counts["limits withdrawn"] += (done := self._store.withdraw(item, (0, LIMIT, payload)))
            return f"withdraw the limit in item {item}: {done}"
        return self.ask(self._rng.choice(LIMITED), clear=self._rng.random() < 0.3)

    def ask(self, group: str, *, clear: bool) -> str:
        choices: list[dict[str, int]] = [{"concurrency": one} for one in (1, 2, 5)]
        choices += [{"weight": 3}, {"rate_count": 1, "rate_per_ms": 10, "concurrency": 3}]
        limits = None if clear else {**self._rng.choice(choices), "max_runtime_ms": self._max_runtime_ms}
        payload = json.dumps({"groups": [group], "limits": limits}).encode()
        self._last = self._store.put_command(0, LIMIT, payload), payload
        return f"limit {group}: {limits}"

    def stepped(self, scheduler: Scheduler, activity: str, step: str | Round | None, now: int) -> set[str]:
        """Note the limits in force after a step; returns the groups whose runs in flight no limit counts any more."""
        data, state, unlimited = self._store.disk.shard(0), scheduler.engine.state, set[str]()
        for group in LIMITED:
            own = data.limits.get(group)
            limit = self._classes[group] if own is None or own.concurrency is None else own.concurrency
            before = self._in_store.get(group, self._classes[group])
            if limit != before:
                self._former[group].append(before)
                self._in_store[group] = limit
                self.counts["limits lowered" if limit < before else "limits raised"] += 1
            if limit == math.inf:
                unlimited.add(group)
        if state is None or state.epoch != data.epoch:
            return unlimited
        if activity == "ingest" and (step is None or isinstance(step, Round)):
            for group, limits in self._former.items():
                self._ended[group] += [(now, limit) for limit in limits]
                limits.clear()
        if step == "chosen":
            self._chosen[scheduler.name] = now
        slots = state.groups._slots
        for row_id in slots.keys() - self.decided.keys():
            self.decided[row_id] = now if slots[row_id].line is None else self._chosen.get(scheduler.name, 0)
        return unlimited

    def highest(self, group: str, since: int) -> float:
        """Return the highest limit of a group that has been in force since a step."""
        ended = [limit for last, limit in self._ended[group] if last >= since]
        return max(self._in_store.get(group, self._classes[group]), *self._former[group], *ended, 0)


class GroupGating(Gating):
    """Users who pause and resume single groups."""

    gates = tuple(f"group:{group}" for group in LIMITED)
    variant = "b000"

    def turn(self) -> str:
        """Ask for one pause at a time: before a later request is answered, a pause proves nothing."""
        return "waits for an answer" if self._asked else super().turn()

    def gates_of(self, row: Row) -> Sequence[str]:
        return (f"group:{row.group}",)


class GroupWorld(World):
    counts_ready = True  #: a reading of a depth is exact
    is_ordered = True  #: rows of a group on the way to one queue are taken in the order of their due times
    activities = (*ACTIVITIES, "release_rows")
    weights = (*WEIGHTS, 4)
    groups: tuple[str | None, ...] = GROUPS
    #: Parts of the steps in which a user sets a limit, or pauses or resumes a group: a world takes one of each.
    limit_shares = pause_shares = (0, 0, 0.02, 0.1)

    def __init__(self, seed: int) -> None:
        self.group_rng = rng = random.Random(seed + 7_000_003)
        self.running: dict[int, int] = {}  #: row id → when its run ends
        self.in_flight: dict[int, tuple[str, int]] = {}  #: row id → group, and until when it counts at most
        self.reports = 0
        self.reported: set[int] = set()
        super().__init__(seed)
        self.recalls = False  # a replay publishes rows of its own accord
        self.max_runtime_ms = rng.choice((200, 5_000)) if self.dense else rng.choice((2_000, 100_000))
        classes = {
            "tenant": Limit(concurrency=rng.choice((1, 2, 5)), weight=2, max_runtime_ms=self.max_runtime_ms),
            "other": Limit(rate=self._rate(seed)) if rng.random() < 0.5 else Limit(weight=1),
        }
        depths = {"mail": rng.choice((1, 3))} if rng.random() < 0.5 else {}
        self.limits = replace(self.limits, groups=classes, depths=depths)
        for scheduler in self.schedulers:
            scheduler.engine.ctx.limits, scheduler.engine.ctx.depths = self.limits, depths_of(depths)
        self.limit_rng = random.Random(seed + 8_000_003)
        self.limit_share = self.limit_rng.choice(self.limit_shares)
        classes = {name: self.limits.groups[name.partition(":")[0]].concurrency or math.inf for name in LIMITED}
        self.limiting = Limiting(self.limit_rng, ModelStore(self.disk), classes, self.max_runtime_ms)
        self.pause_rng = random.Random(seed + 10_000_003)
        self.pause_share = self.pause_rng.choice(self.pause_shares)
        self.group_gating = GroupGating(self.pause_rng, ModelStore(self.disk), self._violation)
        self.passed = defaultdict[str, list[int]](list)  #: group → when its rows were pushed for the first time

    def _rate(self, seed: int) -> Rate:
        slow = (Rate(1, 300), Rate(4, 1_000)) if self.dense else (Rate(1, 5_000), Rate(4, 20_000))
        return random.Random(seed + 9_000_003).choice((Rate(1, 10), Rate(20, 100), *slow))

    def stepped(self, scheduler: Scheduler, activity: str, step: str | Round | None) -> None:
        state = scheduler.engine.state
        self.group_gating.stepped(step, state.lanes if state else (), self.disk.shard(0))
        for group in self.limiting.stepped(scheduler, activity, step, self.gating.step):
            for row_id in [id_ for id_, (of, _) in self.in_flight.items() if of == group]:
                del self.in_flight[row_id]

    def _message(self, n: int) -> Message:
        return replace(super()._message(n), group=self.group_rng.choice(self.groups))

    def happened(self) -> Counter[str]:
        found = super().happened()
        found["reports"] = self.reports
        found["groups paused"] = self.group_gating.counts["paused"]
        found.update(self.limiting.counts)
        return found

    # -- workers -----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Workers take messages, and run them for some time."""
        for ids in self.queues().values():
            for row_id in ids:
                self.executed.add(row_id)
                self.running[row_id] = self.clock_ms + self.group_rng.choice((0, 5, 50, 300))
            if ids:
                self.wrote()
                ids.clear()
        self._end_runs()

    def _end_runs(self) -> None:
        for row_id in [row_id for row_id, end_ms in self.running.items() if end_ms <= self.clock_ms]:
            del self.running[row_id]
            self.in_flight.pop(row_id, None)
            if self.group_rng.random() < 0.1:
                self.counts["workers killed"] += 1
                continue
            for _ in range(1 + (self.group_rng.random() < 0.1)):
                self._report(row_id)

    def _report(self, row_id: int) -> None:
        self.reports += 1
        self.reported.add(row_id)
        body = json.dumps({"slot": row_id}).encode()
        report = message(
            envelope_id=f"00000000-0000-7000-9000-{self.reports:012d}",
            task=RUN_ENDED_TASK,
            task_id=str(row_id),
            eta_ms=self.clock_ms,
            created_ms=self.clock_ms,
            body=body,
        )
        self.wrote()
        self.wheel().append(report)
        self.log.append(f"worker: row {row_id} is over")

    def _lose(self) -> None:
        super()._lose()
        self.excused.intersection_update(self.sent)  # a lost report is as one of a killed worker

    # -- oracles -----------------------------------------------------------------------------------

    def trimmed(self, arrivals: Sequence[Message | Unreadable]) -> None:
        super().trimmed([one for one in arrivals if isinstance(one, Unreadable) or one.task != RUN_ENDED_TASK])

    def pushed(self, row: Row, now_ms: int) -> None:
        super().pushed(row, now_ms)
        self.group_gating.pushed(row)
        self.counts["pushed after a wait for its group"] += row.id in self.disk.shard(0).waited
        self._in_order(row)
        self._within_rate(row)
        self._within_depth(row)
        if row.group is None or self.loses or self.clock_steps:
            return
        taken = self.gating.taken[row.id][1] if row.id in self.gating.taken else 0
        limit = self.limiting.highest(row.group, self.limiting.decided.get(row.id, taken))
        if limit == math.inf:
            return
        first_until_ms = self.in_flight.get(row.id, ("", self.clock_ms + self.max_runtime_ms))[1]
        if row.id in self.executed and row.id not in self.running:
            return  # a second copy of a run that is over
        self.in_flight[row.id] = row.group, first_until_ms
        flying = [id_ for id_, (group, until_ms) in self.in_flight.items() if group == row.group and until_ms > now_ms]
        self.counts["most in flight"] = max(self.counts["most in flight"], len(flying))
        if len(flying) > limit:
            raise self._violation(f"group {row.group} has {len(flying)} in flight: {flying}, its limit is {limit}")

    def _within_rate(self, row: Row) -> None:
        """Check the last time of the length of a rate, unless a user may have changed the rate of the group."""
        rate = None if row.group is None else self.limits.groups[class_of(row.group)].rate
        if row.group is None or rate is None or self.loses or self.clock_steps or self.pushes[row.id] > 1:
            return
        times = self.passed[row.group]
        times.append(self.clock_ms)
        last = [at_ms for at_ms in times if at_ms > self.clock_ms - rate.per_ms]
        self.counts["pushed by a rate"] += 1
        if len(last) > rate.count and self.limit_share == 0:
            raise self._violation(f"group {row.group} has {len(last)} in {rate.per_ms} ms: {last}; its rate is {rate}")

    def _within_depth(self, row: Row) -> None:
        depth = self.limits.depths.get(row.route.target)
        if depth is None or self.loses or not self.counts_ready:
            return
        ready = len(self.queues()[row.route.target])
        self.counts["pushed by a depth"] += 1
        if ready > depth:
            raise self._violation(f"queue {row.route.target} has {ready} messages, its depth is {depth}")

    def _in_order(self, row: Row) -> None:
        """Check that no earlier row of the same line waits, beside a row that has not waited."""
        data, moved = self.disk.shard(0), self.asking.moved
        rows = data.rows
        if row.id in data.waited | moved or self.gates or self.clock_steps or self.loses or not self.is_ordered:
            return
        own = rows[row.id]
        for *_, row_id in data.order.get(WAITING, []):
            other = rows[row_id]
            is_before = other.accepted_ms < own.accepted_ms and other.row.eta_ms < row.eta_ms
            same = other.row.group == row.group and other.row.route.target == row.route.target
            if same and is_before and row_id not in moved | data.released:
                raise self._violation(f"row {row.id} overtook row {row_id}, which waits for its group")

    def _happen(self) -> None:
        super()._happen()
        self._end_runs()
        if self.limit_share and self.limit_rng.random() < self.limit_share:
            self.log.append(f"user: {self.limiting.turn()}")
        if self.pause_share and self.pause_rng.random() < self.pause_share:
            self.log.append(f"user: {self.group_gating.turn()}")

    def may_pass(self, row: Row, other: Row) -> bool:
        if row.group != other.group or row.route.target != other.route.target:
            return True
        data = self.disk.shard(0)
        if other.id in data.returned:  # its limit became lower before it was dispatched
            return True
        if row.id in data.released and data.lanes[row.lane].redelivered:  # it may be in its queue already
            return True
        # After a takeover a released row is behind all that is overdue, and so behind rows that found a slot free.
        if other.id in data.released and other.due_ms > row.due_ms and row.id not in data.released:
            return True
        return super().may_pass(row, other)

    def _in_order_of_eta(self, row: Row) -> None:
        if not self.gates:  # a row that has waited for a gate comes behind rows that wait for their group
            super()._in_order_of_eta(row)

    def _is_done(self) -> bool:
        self._work()
        return super()._is_done() and not self.running

    def _calm_down(self) -> None:
        for gate in self.group_gating.gates if self.pause_share else ():
            self.group_gating.ask("resume", gate)
        super()._calm_down()
        for scheduler in self.schedulers:
            state = scheduler.engine.state
            found = [] if state is None else state.groups.groups()
            if waits := [(one.name, one.waiting, one.in_flight) for one in found if one.waiting]:
                raise self._violation(f"groups have rows waiting, and no row waits: {waits}")
        if any(line.waiting for line in self.disk.shard(0).lines.values()):
            raise self._violation(f"lines are left: {self.disk.shard(0).lines}")

    def _judge(self) -> None:
        super()._judge()
        for row_id in self.reported & self.disk.shard(0).rows.keys() if not self.loses else ():
            run = self.disk.shard(0).runs.get(row_id)
            goes_on = run is not None and run.ended_ms is None and (run.until_ms or 0) > self.clock_ms
            if goes_on and run.group is not None:
                raise self._violation(f"the end of row {row_id} was reported, and is not in the store")


class GroupRabbitWorld(GroupWorld, RabbitWorld):
    """The same on RabbitMQ, where rows in doubt are published again, and full queues keep earlier rows."""

    is_ordered = counts_ready = False
