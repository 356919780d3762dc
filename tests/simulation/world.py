"""The oracles of a simulated installation (``happenings``): the promises hold, whatever happens.

::

    on every push       not early; on a Redis that lost nothing: once, never a cancelled one, in order
    on every trim       each message that is removed from the wheel queue is in the store
    at the end          every accepted message was in its queue; the tally is zero; the guard never tripped

``World(seed).run()`` raises ``Violation`` with the seed and the last steps; the same seed gives the same run.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields

from celery_wheel.engine.due_clock import TOLERANCE_MS
from celery_wheel.engine.round import Round
from celery_wheel.engine.state.lane import MAIN
from celery_wheel.store.model import STOPPED, UNANNOUNCED, Message, Outcome, Position, Row, Unreadable
from tests.simulation.happenings import START_MS, Happenings, Scheduler, Violation

#: Rounds of an activity without a pause, in the part in which everything calms down.
ROUNDS_AT_ONCE = 20


class World(Happenings):
    def run(self) -> World:
        try:
            for _ in range(self.steps):
                self._happen()
            self._calm_down()
            self._judge()
        except Violation:
            raise
        except Exception as error:
            raise self._violation(f"{type(error).__name__}: {error}") from error
        return self

    def happened(self) -> Counter[str]:
        """Count the events of this run: a test checks that each oracle had events to judge."""
        found: Counter[str] = Counter()
        for scheduler in self.schedulers:
            stats = scheduler.engine.stats
            found.update({field.name: getattr(stats, field.name) for field in fields(stats)})
        found["lanes beside the main one"] = len(self.disk.shard(0).lanes) - 1
        found["lost by redis"] = len(self.excused)
        found["told"] = len(self.told)
        found["told twice"] = sum(n > 1 for n in self.told.values())
        found["withdrawn"] = len(self.asking.withdrawn)
        found.update(self.claiming.counts)
        found.update(self.collapsing.counts)
        found.update(self.recalling.counts)
        found.update(verdict for one in self.asking.questions.values() for verdict in one.verdicts.values())
        found.update(self.loading.counts)
        found.update(self.counts)
        return found

    def _calm_down(self) -> None:
        self.quiet = True
        self.spoil(mend=True)
        while self.to_send:
            self._send()
        self.loading.calm()
        self.sent.update(self.loading.committed)
        for gate in self.gating.gates if self.gates else ():
            self.gating.ask("resume", gate)
        for scheduler in self.schedulers:
            scheduler.frozen_until_ms = 0
            scheduler.engine.wanted = True
            scheduler.clock.step(self.clock_ms - scheduler.clock.now_ms())
        left: float = math.inf
        for n in itertools.count():
            if n >= 400 and n % 100 == 0:  # a window for one row has one published in each turn
                before, left = left, len(self._missing())
                if left >= before:
                    break
            for scheduler in self.schedulers:
                self._work_on(scheduler)
            self.asking.collect(self.disk.shard(0))
            self.recalling.collect(self.disk.shard(0))
            # Within the lease: a holder looks whether the broker lost anything only while it is one for certain.
            self._pass_time(min(10, self.limits.lease_ms // 2) if n < 10 else 5_000)
            if n % 5 == 4 and self._is_done():
                return
        raise self._violation("pending messages are left: " + ", ".join(self._missing()))

    def _work_on(self, scheduler: Scheduler) -> None:
        """Run each activity as its job does: again at once after work; one that holds no shard tries to get it."""
        for activity in (*self.activities, "listen") if self.listens else self.activities:
            if activity != "tend" and scheduler.engine.state is None and activity not in scheduler.rounds:
                continue
            for _ in range(ROUNDS_AT_ONCE):
                if scheduler.finish(activity) is not Round.BUSY:
                    break

    def _is_done(self) -> bool:
        data = self.disk.shard(0)
        settled = all(
            not self.disk.shard(0).order.get(lane.lane, []) or data.order[lane.lane][-1][:2] <= lane.offset
            for lane in data.lanes.values()
        )
        untold = any(one.kind == UNANNOUNCED for one in data.watches)
        return settled and not self.wheel() and not data.inbox and not untold and self.loading.is_done()

    def _missing(self) -> list[str]:
        data = self.disk.shard(0)
        return [
            stored.message.envelope_id
            for stored in data.rows.values()
            if stored.row.lane != STOPPED and stored.row.position > data.lanes[stored.row.lane].offset
        ] + [arrival.envelope_id for arrival in self.wheel()]

    def tell(self, rows: Sequence[Row]) -> set[int]:
        """Announce cancelled rows, with a result backend that does not always answer."""
        data = self.disk.shard(0)
        ever = (*data.outcomes, *data.forgotten_outcomes)
        cancelled = {outcome.timer_id for outcome in ever if outcome.kind == "cancelled"}
        # The engine logs an error of this call and goes on, so ``_judge`` raises the violation.
        self.wrongly_told.update(one.id for one in rows if one.id not in cancelled)
        seen_to = {one.id for one in rows if self.quiet or self.rng.random() < 0.7}
        self.told.update(seen_to)
        return seen_to

    def stepped(self, scheduler: Scheduler, activity: str, step: str | Round | None) -> None: ...

    def pushed(self, row: Row, now_ms: int) -> None:
        self.gating.pushed(row)
        self.collapsing.pushed(self.disk.shard(0), row, self.clock_ms)
        self.pushes[row.id] = self.pushes.get(row.id, 0) + 1
        self.log.append(f"redis: push of row {row.id} at {row.due_ms - START_MS}, lane {row.lane}")
        if now_ms < row.eta_ms and not self.clock_steps:  # the clock may be set back between take and publish
            raise self._violation(f"row {row.id} was pushed {row.eta_ms - now_ms} ms early")
        if self.clock_ms + (TOLERANCE_MS if self.clock_steps else 0) < row.eta_ms:
            raise self._violation(f"row {row.id} was pushed early by the true time")
        if not self.quiet:
            waited = self.disk.shard(0).rows[row.id].accepted_ms < row.eta_ms
            self.counts["pushed while busy, after a wait" if waited else "pushed while busy"] += 1
        if self.loses:
            return
        self._once(row)
        if not self.clock_steps:
            self._in_order_of_eta(row)

    def _once(self, row: Row) -> None:
        if self.pushes[row.id] > self.recalling.times(self.disk.shard(0), row.id):
            raise self._violation(f"row {row.id} was pushed once too often, and Redis had lost nothing")
        if self.disk.shard(0).rows[row.id].row.lane == STOPPED:
            raise self._violation(f"row {row.id} was pushed although it was retired")
        if row.position <= self.last.get(row.lane, Position(0, 0)):
            raise self._violation(f"row {row.id} was overtaken")
        self.last[row.lane] = row.position

    def is_apart(self, row: Row) -> bool:
        """Whether the row is of a herd of schedules or of a full batch: such rows have an order of their own."""
        data = self.disk.shard(0)
        return (row.lane != MAIN and row.id in data.runs) or self.collapsing.was_full(data.rows[row.id])

    def _in_order_of_eta(self, row: Row) -> None:
        """Check that no task that was accepted in time, and is due earlier, is still pending."""
        rows = self.disk.shard(0).rows
        self.asking.collect(self.disk.shard(0))
        if rows[row.id].accepted_ms >= row.eta_ms or row.id in self.asking.moved or self.is_apart(row):
            return
        for other in rows.values():
            earlier = (other.row.eta_ms, other.row.id) < (row.eta_ms, row.id) and not self.is_apart(other.row)
            waits = other.row.lane != STOPPED and other.row.id not in self.pushes
            waits &= other.row.id not in self.asking.moved and other.accepted_ms < other.row.eta_ms
            if earlier and waits and not self.may_pass(row, other.row):
                raise self._violation(f"row {row.id} overtook row {other.row.id} on the way to {row.route.target}")

    def may_pass(self, row: Row, other: Row) -> bool:
        apart = other.route.target != row.route.target and (self.gating.used or self.limits.rates)
        return bool(apart) or self.takes_nothing(other)

    def trimmed(self, arrivals: Sequence[Message | Unreadable]) -> None:
        data = self.disk.shard(0)
        forgotten = {row.message.envelope_id for row in data.forgotten.values()}
        for arrival in arrivals:
            if arrival.envelope_id not in data.envelopes and arrival.envelope_id not in forgotten:
                raise self._violation(f"{arrival.envelope_id} went from the wheel queue and is not in the store")

    def _judge(self) -> None:
        data = self.disk.shard(0)
        if self.wrongly_told:
            raise self._violation(f"rows {sorted(self.wrongly_told)} were announced as cancelled, and were not")
        ever = {**data.forgotten, **data.rows}
        accepted = {stored.message.envelope_id for stored in ever.values()}
        for envelope_id in self.sent:
            if envelope_id not in accepted and envelope_id not in self.excused:
                raise self._violation(f"{envelope_id} was never accepted")
        in_queue = {row_id for ids in self.queues().values() for row_id in ids}
        recalled = self.recalling.recalled(data)  # these rows were requeued and retired again
        ends = defaultdict[int, list[Outcome]](list)
        for one in data.outcomes:
            if one.kind != "moved":
                ends[one.timer_id].append(one)
        for row_id, stored in ever.items():
            if stored.row.lane == STOPPED:
                if not recalled[row_id]:
                    self._judge_resting(row_id, ends[row_id])
            elif row_id not in in_queue and row_id not in self.executed:
                raise self._violation(f"row {row_id} was accepted and never reached its queue")
        self.asking.judge(data, self.pushes, {self.sent[one].task_id for one in self.excused}, self.loses)
        self.claiming.judge()
        self.loading.judge(accepted)
        self.recalling.judge(data, self.pushes, exactly=not self.loses)
        if any(data.tally.values()):
            raise self._violation(f"the tally is {data.tally} when nothing is pending")
        for scheduler in self.schedulers:
            if scheduler.engine.stats.guard_trips:
                raise self._violation("the guard tripped")
            if scheduler.engine.stats.rollbacks and not self.loses:
                raise self._violation("a rollback was seen, and Redis had lost nothing")

    def _judge_resting(self, row_id: int, outcomes: Sequence[Outcome]) -> None:
        outcome = outcomes[0].kind if outcomes else None
        if (
            row_id in self.pushes and not self.loses
        ):  # a row that Redis lost may be refused or cancelled at its next dispatch
            raise self._violation(f"row {row_id} is retired ({outcome}) and was pushed")
        if outcome == "cancelled" and not self.told[row_id] and self._ends_with(row_id):
            raise self._violation(f"row {row_id} was cancelled, and was not announced")
        if outcome == "rejected" and outcomes[0].actor == "broker" and row_id not in self.refused:
            raise self._violation(f"row {row_id} is rejected, and Redis never refused it")

    def _ends_with(self, row_id: int) -> bool:
        rows = self.disk.shard(0).rows
        ids = {row: one.message.task_id for row, one in rows.items() if isinstance(one.message, Message)}
        return row_id in ids and not any(row > row_id and task_id == ids[row_id] for row, task_id in ids.items())
