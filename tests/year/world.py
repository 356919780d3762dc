"""A year of the whole scheduler process in a minute: its shell in virtual time, and the judges.

::

    script ─► sends, cancels, outages, takeovers, steps of the clock …          one list of instants, from the seed
       │
    Year ──► at full resolution around each of them          every round of every job, every wait, every back-off
       └───► leaps over the rest                              nothing is pending within LEAD_MS, nobody waits for an
                                                              answer, and QUIET_S of the same rounds have gone before

A **leap** moves the calendar (wall clocks, second clocks, leases in the store) and no monotonic clock. It stands for
idle rounds that would all have been the same, so a leap leaves out time, never a kind of event: each job goes on in the
middle of its wait. The first DEEP_S of an outage of DEEP_MS and more run at full resolution, if it is the first one of
its kind, and so does an idle hour now and then: more rounds than any back-off has powers of two. The oracles are
``judges`` and ``growth``.
"""

from __future__ import annotations

import bisect
import itertools
import json
import random
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from celery.schedules import crontab

from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.store.model import STOPPED, Row
from tests.kit.holder import message
from tests.kit.virtual_machine import Host, Machine
from tests.year.beats import Beat, Process, Worker, make_app, servers_instead
from tests.year.growth import Growth
from tests.year.judges import Judge, LogJudge, Violation
from tests.year.mailbox import mailbox, mailboxes
from tests.year.rabbit import Rabbit, links_instead
from tests.year.script import Script
from tests.year.servers import UP, BrokerServer, Server, YearDisk, YearStore

#: A Friday; the year has 29 February 2028, and both changes of Berlin's clocks.
START = datetime(2027, 11, 5, tzinfo=UTC)
DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000

#: Full resolution before a leap, and before the next instant of interest.
QUIET_S = 12.0
LEAD_MS = 4_000

#: The first outage of a kind of at least DEEP_MS runs at full resolution for its first DEEP_S.
DEEP_MS, DEEP_S = HOUR_MS, 2_400.0

#: A year, with its leap day.
DAYS = 366


class BackendAway(Exception):
    """The result backend does not answer."""


class Year:
    """A year, or a part of one; with several shards, two schedulers share them.

    ``month`` is the number of days between two measurements of all containers; ``also`` has outages beside those of the
    seed: the day, seconds, server, mode.
    """

    def __init__(
        self,
        seed: int,
        days: int = DAYS,
        *,
        start: datetime = START,
        deep_s: float = DEEP_S,
        month: int = 30,
        also: Sequence[tuple[float, float, str, str]] = (),
        shards: int = 1,
        processes: int = 1,
        broker: Callable[[Machine, Server, int], BrokerServer | Rabbit] = BrokerServer,
    ) -> None:
        self.also, self.processes = also, processes
        self.found: Violation | None = None
        self.seed, self.days, self.deep_s, self.month = seed, days, deep_s, month
        self.rng = random.Random(seed)
        self.start_ms = int(start.timestamp() * 1_000)
        self.machine = machine = Machine(self.start_ms)
        self.end_ms = self.start_ms + days * DAY_MS
        self.store_line, self.broker_line = Server(machine, "store", StoreError), Server(machine, "broker", BrokerError)
        self.backend_line = Server(machine, "result backend", BackendAway)
        self.disk = YearDisk(machine)
        self.shards = [self.disk.shard(n) for n in range(shards)]
        for data in self.shards:  # both pass 32 bits on the way
            data.seq, data.epoch = 2**31 - 2_000, 2**31 - 20
        self.broker = broker(machine, self.broker_line, shards)
        self.overlapped: list[str] = []
        self.revoked: set[str] = set()
        self.tokens, self.pids = itertools.count(1), itertools.count(1)
        self.mailbox = mailbox(self)
        self.app = make_app(self, ENTRIES, processes)
        self.forks_until_s = -1.0  #: until then no process can be started, or it ends at once: monotonic
        self.forks = 0
        self.log = LogJudge(machine)
        self.judge = Judge(self)
        self.growth = Growth()
        self.beats: list[Beat] = []
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []  #: monotonic instants of the world's own
        self._serial = itertools.count()
        self._busy_s = 0.0  #: monotonic: the last event
        self.deep_until_s = 0.0
        self._deep: set[tuple[str, str]] = set()  #: server and mode of outages that were followed
        self.leaps = self.leapt_ms = 0
        self.sent = 0

    # -- running -----------------------------------------------------------------------------------------

    def run(self) -> Year:
        with ExitStack() as stack:
            stack.enter_context(self.log)
            stack.enter_context(servers_instead(self))
            stack.enter_context(mailboxes(self))
            stack.enter_context(links_instead())
            stack.enter_context(self.machine.installed())
            self.worker = Worker(self)
            self.beats = [Beat(self, "a"), Beat(self, "b")]
            self.advance(10)
            for at_ms, _, act in Script(self).events():
                self.go_to(at_ms)
                act()
                self.touched()
            self.go_to(self.end_ms)
            self.judge.at_the_end()
        return self

    def touched(self) -> None:
        """Something has happened: the next seconds run at full resolution."""
        self._busy_s = self.machine.now_s

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        at_ns = self.machine.now_ns + round(seconds * 1e9)
        bisect.insort(self._agenda, (at_ns, next(self._serial), act))

    def after_death(self, host: Host) -> None:
        """Remove what the servers keep for a process: its connections are closed by the kernel."""
        self.disk.bells[:] = [one for one in self.disk.bells if one.host is not host]
        self.store_line.open[:] = [one for one in self.store_line.open if one is not host]
        self.broker.after_death(host)
        self.mailbox.Channel.forget(host)

    def advance(self, seconds: float) -> None:
        until_ns = self.machine.now_ns + round(seconds * 1e9)
        while self.machine.now_ns < until_ns:
            step_ns = min(until_ns, self.machine.now_ns + 1_000_000_000)
            if self._agenda and self._agenda[0][0] <= step_ns:
                at_ns, _, act = self._agenda.pop(0)
                self.machine.run_until(at_ns)
                act()
                self.touched()
                continue
            self.machine.run_until(step_ns)
            if self.found is not None:
                raise self.found
            if self.machine.failures:
                raise self.violation(f"a thread died: {self.machine.failures[0]!r}") from self.machine.failures[0]
            self.broker.look()
            self.judge.look()
            self.log.check()

    def go_to(self, at_ms: int) -> None:
        while (left_ms := at_ms - self.machine.now_ms) > 0:
            if self.machine.now_s - self._busy_s >= QUIET_S and self.machine.now_s >= self.deep_until_s:
                self._leap(at_ms)
                left_ms = at_ms - self.machine.now_ms
            self.advance(min(1.0, max(0.001, left_ms / 1_000)))

    def _leap(self, at_ms: int) -> None:
        now_ms = self.machine.now_ms
        if self._agenda or self.judge.is_waiting() or (self.is_up and self._has_due(now_ms)):
            return
        self.judge.before_a_leap()
        ms = min(at_ms, *self._interesting(now_ms)) - LEAD_MS - now_ms
        if ms < 20_000:
            return
        self.machine.leap(ms)
        self.leaps, self.leapt_ms = self.leaps + 1, self.leapt_ms + ms
        for data in self.shards:
            if data.lease_until_ms > now_ms:
                data.lease_until_ms += ms
        for name in self.disk.schedulers:
            self.disk.schedulers[name] += ms
        for one in self.running:
            for engine in one.engines:
                engine.clock._offset_ms += ms
                if engine.clock._readings is not None:
                    engine.clock._readings._last = None

    def _has_due(self, now_ms: int) -> bool:
        for data in self.shards:
            for lane, order in data.order.items():
                n = bisect.bisect_right(order, (now_ms, 2**63, 0))
                if lane != STOPPED and n and not self.judge.has_pushed(order[n - 1][2]):
                    return True
        return False

    def _interesting(self, now_ms: int) -> list[int]:
        found = [self.end_ms]
        for data in self.shards:
            for lane, order in data.order.items():
                if lane == STOPPED:
                    continue
                n = bisect.bisect_right(order, (now_ms, 2**63, 0))
                found += [due_ms for due_ms, *_ in order[n : n + 1]]
            found += [
                one.next_ms for one in data.schedules.values() if one.next_ms is not None and one.next_ms > now_ms
            ]
        return found

    def violation(self, what: str) -> Violation:
        at = datetime.fromtimestamp(self.machine.now_ms / 1_000, UTC)
        return Violation(f"seed {self.seed}, {at:%Y-%m-%d %H:%M:%S}: {what}\n  " + "\n  ".join(self.log.last))

    # -- users -------------------------------------------------------------------------------------------

    def send(self, in_ms: int, **parts: Any) -> str:
        self.sent += 1
        now_ms = self.machine.now_ms
        id_ = str(uuid.UUID(int=self.sent << 80 | self.seed << 64 | 7 << 76))  # it decides the shard
        task = {"envelope_id": id_, "task_id": f"task-{id_}", "eta_ms": now_ms + in_ms, "created_ms": now_ms}
        one = message(**task, **parts)
        self.judge.sent(one.envelope_id, one.task_id, one.eta_ms)
        self.broker.send(one)
        return one.task_id

    def cancel(self, task_id: str) -> None:
        number = str(uuid.UUID(int=self.rng.getrandbits(128)))
        command = {"task_ids": [task_id], "id": number, "reason": "", "actor": "a user"}
        item = "cancel", json.dumps(command).encode()
        YearStore(self.disk).put_inboxes({shard: [item] for shard in range(len(self.shards))})
        self.judge.cancelled(task_id)

    def revoke(self, task_id: str) -> None:
        """Revoke a task by a broadcast, as ``AsyncResult.revoke`` of plain Celery does; every node answers."""
        nodes = {
            one.engines[0].ctx.on_cancelled._node: one.host
            for one in self.running
            if not one.host.is_frozen and one.engines
        }
        self.judge.cancelled(task_id)

        def ask() -> None:
            options = {"arguments": {"task_id": task_id}, "reply": True, "timeout": 2.0}
            found = self.app.control.broadcast("revoke", **options)
            self.judge.answered(nodes, {name for one in found for name in one})

        self.machine.spawn(ask, self.worker.host)

    def edit(self, minute: int) -> None:
        """Edit an entry of Beat in the process that follows them, and for those to come."""
        holder = self.holder()
        if holder is None:
            return
        entry = {"task": "app.edited", "schedule": crontab(minute=minute, hour=1, day_of_month=31, month_of_year=12)}
        self.app.conf.beat_schedule = {**self.app.conf.beat_schedule, "edited": entry}
        holder.scheduler.schedule["edited"] = holder.scheduler._maybe_entry("edited", dict(entry))
        self.judge.edited(minute)

    def pushed(self, row: Row, is_marked: bool) -> None:
        """A row is in its queue, perhaps marked as one that may have been there before."""
        self.touched()
        try:
            self.judge.pushed(row, is_marked)
        except Violation as found:  # in a thread of the product, which catches it
            self.found = self.found or found

    # -- faults ------------------------------------------------------------------------------------------

    def cut(self, server: Server, mode: str, for_ms: int) -> None:
        server.mode = mode
        self.judge.trouble(f"{server.name} {mode}")
        self.broker.outage()
        if for_ms >= DEEP_MS and (server.name, mode) not in self._deep:
            self._deep.add((server.name, mode))
            self.deep_until_s = self.machine.now_s + self.deep_s

    def mend(self, server: Server) -> None:
        server.mode = UP
        self.broker.outage()
        self.judge.trouble_over(server.name)

    @property
    def is_up(self) -> bool:
        return all(one.mode == UP for one in (self.store_line, self.broker_line))

    def holder(self) -> Beat | None:
        """Return the process that holds shard 0, with the entries."""
        return next((beat for beat in self.beats if beat.holds and not beat.host.is_frozen), None)

    @property
    def running(self) -> list[Process]:
        """Return the processes that have a service, children included."""
        found = [one for beat in self.beats for one in (beat, *beat.children)]
        return [one for one in found if one.service is not None and not one.host.is_dead]


#: Periodic entries of Beat.
ENTRIES: dict[str, Any] = {
    "noon": {"task": "app.noon", "schedule": crontab(hour=12, minute=0)},
    "leap day": {"task": "app.leap", "schedule": crontab(hour=9, minute=0, day_of_month=29, month_of_year=2)},
    "night": {"task": "app.night", "schedule": crontab(hour=2, minute=30)},
}
