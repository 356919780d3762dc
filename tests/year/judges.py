"""The judges of a simulated year: deadlines of tasks, and lines of the log.

::

    task       due ── trouble? ── dispatched     a deadline begins when it is due and all trouble is over
    trouble    an outage, a frozen or dead holder, a wrong clock: from its beginning to its end
    line       (process, logger, template, cause)     twice within a minute is once too often

The cause of a line is what its record says beside its text (``extra``), without numbers that count.
"""

from __future__ import annotations

import heapq
import json
import logging
import re
from collections import Counter, deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any
from zoneinfo import ZoneInfo

from celery_wheel.engine.due_clock import TOLERANCE_MS
from celery_wheel.store.model import SHARD_BITS, Message, Row, Unreadable
from celery_wheel.store.schedule_model import OCCURRENCE, RunReport
from tests.kit.virtual_machine import Host, Machine
from tests.year.beats import Process, Year

#: After the end of an outage: the longest back-off (2 s), and a takeover (a lease of 2 s, and half a second).
RECOVERY_MS = 6_000
#: Without any trouble.
LATE_MS = 600
#: A cancelled task is told to the result backend: the longest back-off of one row is a minute.
TOLD_MS = 70_000
#: Entries of Beat are in the store: the longest back-off of the sources (30 s), and an answer (10 s).
FOLLOWED_MS = 45_000

#: An edit of an entry is live within four seconds, a quarter of which is the sources' own.
EDIT_MS = 4_000
#: The end of a run is in the store: the longest back-off of the reporter (10 s) and of ingest (2 s); after a short
#: outage sooner, since a back-off begins anew.
REPORTED_MS, REPORTED_SOON_MS = 15_000, 6_000
SHORT_MS = 2_000
#: A shard changes hands, and a row is sent again, only so long after trouble.
HANDOVER_MS = 15_000
#: Threads of a process, connections of a process to the store: what a scheduler needs, and a few.
MOST_THREADS, MOST_CONNECTIONS = 16, 3
#: As ``wheel_history_retention``.
RETENTION_MS = 7 * 86_400_000
#: A process that was asked to end has no thread after so many seconds.
STOP_S = 20.0

ZONE = ZoneInfo("Europe/Berlin")


class Violation(AssertionError):
    """A promise is broken."""


class Judge:
    def __init__(self, year: Year) -> None:
        self._year = year
        self._due: list[tuple[int, str]] = []
        self._open: dict[str, int] = {}  #: envelope id → eta, not dispatched yet
        self._overdue: dict[str, int] = {}
        self._tasks: dict[str, str] = {}
        self._to_tell: dict[str, int] = {}
        self._cancelled: set[str] = set()
        self._troubles: Counter[str] = Counter()
        self._trouble_ms = 0  #: when the last trouble began
        self._calm_ms = year.machine.now_ms
        self._pushed: set[int] = set()
        self.occurrences: Counter[tuple[str, int]] = Counter()
        self.counts: Counter[str] = Counter()
        self.worst_ms: Counter[str] = Counter()
        self._edit: tuple[int, int] | None = None  #: the minute of the edited entry, and since when
        self._reports: dict[int, int] = {}  #: run → when it was pushed
        self._epochs: list[int] = []
        self._entries = self._instants_of_entries()
        self._noons = self.noons()

    # -- what happens ------------------------------------------------------------------------------------

    def sent(self, envelope_id: str, task_id: str, eta_ms: int) -> None:
        self._open[envelope_id] = eta_ms
        self._tasks[task_id] = envelope_id
        heapq.heappush(self._due, (eta_ms, envelope_id))

    def cancelled(self, task_id: str) -> None:
        envelope_id = self._tasks.pop(task_id)
        if self._open.pop(envelope_id, None) is None:
            return
        self._overdue.pop(envelope_id, None)
        self._cancelled.add(envelope_id)
        self._to_tell[task_id] = self._year.machine.now_ms
        self.counts["cancelled"] += 1

    def has_pushed(self, row_id: int) -> bool:
        return row_id in self._pushed

    def noons(self) -> list[int]:
        return [at_ms for name, at_ms in self._entries if name == "noon"]

    def cancellable(self, now_ms: int) -> list[str]:
        return sorted(task for task, one in self._tasks.items() if self._open.get(one, 0) > now_ms + 3_600_000)

    def pushed(self, row: Row, is_marked: bool) -> None:
        year, now_ms = self._year, self._year.machine.now_ms
        if row.id in self._pushed and is_marked:
            self.counts["marked"] += 1
            if not self._troubles and now_ms > max(self._calm_ms, year.broker.in_doubt_ms) + HANDOVER_MS:
                raise year.violation(f"row {row.id} was sent again, and nothing was in doubt")
            return
        if row.id in self._pushed:
            raise year.violation(f"row {row.id} was pushed twice")
        self._pushed.add(row.id)
        if now_ms + TOLERANCE_MS < row.eta_ms:
            raise year.violation(f"row {row.id} was pushed {row.eta_ms - now_ms} ms early")
        one = self._message(row)
        assert isinstance(one, Message)
        if one.envelope_id in self._cancelled:
            raise year.violation(f"{one.task_id} was cancelled, and pushed")
        self.counts["pushed"] += 1
        header = json.loads(one.headers).get(OCCURRENCE)
        if header is not None:
            self.occurrences[header["schedule"], header["scheduled_for"]] += 1
            self._reports[row.id] = now_ms
            year.worker.spawn(RunReport(row.id))
            self.counts["occurrences"] += 1
        elif self._open.pop(one.envelope_id, None) is not None:
            self._tasks.pop(one.task_id, None)
            self._overdue.pop(one.envelope_id, None)
        self._judge_lateness(row, now_ms)

    def _message(self, row: Row) -> Message | Unreadable:
        return self._year.disk.shard(row.id % 2**SHARD_BITS).rows[row.id].message

    def _judge_lateness(self, row: Row, now_ms: int) -> None:
        one = self._message(row)
        since_ms = max(row.eta_ms, one.created_ms if isinstance(one, Message) else 0)
        calm = self._calm_ms < since_ms - RECOVERY_MS
        late_ms, allowed_ms = now_ms - max(since_ms, self._calm_ms), LATE_MS if calm else RECOVERY_MS
        if self._troubles:
            return
        kind = "late" if calm else "late after trouble"
        self.worst_ms[kind] = max(self.worst_ms[kind], late_ms)
        if late_ms > allowed_ms:
            raise self._year.violation(f"row {row.id} was pushed {late_ms} ms late")

    def edited(self, minute: int) -> None:
        self._edit = minute, self._year.machine.now_ms
        self.counts["entries edited"] += 1

    def trouble(self, what: str) -> None:
        if not self._troubles:
            self._trouble_ms = self._year.machine.now_ms
        self._troubles[what] += 1
        self.counts[what] += 1

    def trouble_over(self, what: str) -> None:
        for name in [one for one in self._troubles if one.startswith(what)]:
            del self._troubles[name]
        self._calm_ms = self._year.machine.now_ms

    def answered(self, asked: dict[str, Host], answers: set[str]) -> None:
        self.counts["nodes asked"] += len(asked)
        # A node listens after the longest back-off (10 s), a connection that hangs, and the second of an answer.
        calm = not self._troubles and self._calm_ms < self._year.machine.now_ms - 20_000
        missing = [name for name, host in asked.items() if name not in answers and not host.is_dead]
        if calm and missing:
            found = self._year.violation(f"{missing} did not answer a revoke")
            self._year.found = self._year.found or found

    def shares_change(self) -> None:
        """A scheduler comes: of several shards some change hands."""
        if len(self._year.shards) > 1:
            self.trouble("scheduler started")
            self.trouble_over("scheduler started")

    # -- judging -----------------------------------------------------------------------------------------

    def is_waiting(self) -> bool:
        """Whether something has still to happen, which no outage prevents."""
        year = self._year
        waits = bool(self._overdue or self._to_tell or self._edit or self._reports)
        waits |= len(year.running) < len(year.beats) * year.processes
        return not self._troubles and (waits or self._year.machine.now_ms < self._calm_ms + HANDOVER_MS)

    def look(self) -> None:
        now_ms = self._year.machine.now_ms
        while self._due and self._due[0][0] <= now_ms:
            eta_ms, envelope_id = heapq.heappop(self._due)
            if envelope_id in self._open:
                self._overdue[envelope_id] = eta_ms
        while self._noons and self._noons[0] <= now_ms:
            self._overdue["noon"] = self._noons.pop(0)  # that before was missed, or ran: ``at_the_end`` looks
        if self.occurrences["noon", self._overdue.get("noon", 0)]:
            del self._overdue["noon"]
        self._look_at_processes(now_ms)
        if not self._troubles:
            self._look_at_the_rest(now_ms)

    def _look_at_the_rest(self, now_ms: int) -> None:
        year = self._year
        for envelope_id, eta_ms in self._overdue.items():
            allowed_ms = LATE_MS if self._calm_ms < eta_ms - RECOVERY_MS else RECOVERY_MS
            if now_ms > max(eta_ms, self._calm_ms) + allowed_ms:
                raise year.violation(
                    f"{envelope_id} is due since {(now_ms - eta_ms) / 1_000} s, and calm is since "
                    f"{(now_ms - self._calm_ms) / 1_000} s"
                )
        for task_id, since_ms in list(self._to_tell.items()):
            if task_id in year.revoked:
                del self._to_tell[task_id]
                self.counts["told"] += 1
            elif now_ms > max(since_ms, self._calm_ms) + TOLD_MS:
                raise year.violation(f"{task_id} was cancelled, and the result backend was not told")
        runs = [one for data in year.shards for one in data.runs.values()] if self._reports else ()
        for run in runs:
            if run.ended_ms is not None and self._reports.pop(run.timer_id, None):
                self.counts["ends of runs"] += 1
        allowed_ms = REPORTED_SOON_MS if self._calm_ms - self._trouble_ms < SHORT_MS else REPORTED_MS
        if late := [one for one, ms in self._reports.items() if now_ms > max(ms, self._calm_ms) + allowed_ms]:
            raise year.violation(f"the end of the run {late[0]} was reported, and is not in the store")
        if self._edit is not None:
            minute, since_ms = self._edit
            schedules = [one for data in year.shards for one in data.schedules.values()]
            found = next((one for one in schedules if one.name == "edited"), None)
            allowed_ms = EDIT_MS if self._calm_ms < since_ms - FOLLOWED_MS else FOLLOWED_MS
            if found is not None and f'"minute": "{minute}"' in found.definition.replace('":"', '": "'):
                self._edit = None
            elif now_ms > max(since_ms, self._calm_ms) + allowed_ms:
                raise year.violation(
                    f"an entry was edited {(now_ms - since_ms) / 1_000} s ago, and is not in the store"
                )

    def _look_at_processes(self, now_ms: int) -> None:
        year, epochs = self._year, [data.epoch for data in self._year.shards]
        if epochs != self._epochs and not self._troubles and now_ms > self._calm_ms + HANDOVER_MS:
            raise year.violation(f"a shard changed hands without a cause: epochs {epochs}")
        self._epochs = epochs
        for beat in year.beats:
            if beat.ended:
                raise year.violation(f"{beat.name} ended: {beat.ended[0]!r}") from beat.ended[0]
        running = year.running
        for one in running:
            host = one.host
            self.worst_ms["threads"] = max(self.worst_ms["threads"], len(host.threads))
            if len(host.threads) > MOST_THREADS + 3 * (len(year.shards) - 1):
                names = Counter(year.machine.name_of(one) for one in host.threads)
                raise year.violation(f"{host.name} has {len(host.threads)} threads: {names}")
        if not self._troubles and now_ms > self._calm_ms + HANDOVER_MS:
            self._look_at_shares(running)
        lines = [one for one in year.store_line.open if not one.is_dead]
        if len(year.disk.bells) > len(running) + len([one for one in year.beats if one.host.is_frozen]):
            raise year.violation(f"{len(year.disk.bells)} bells of the inbox are open")
        for host, n in Counter(lines).items():
            self.worst_ms["connections"] = max(self.worst_ms["connections"], n)
            if n > MOST_CONNECTIONS:
                raise year.violation(f"{host.name} has opened the store {n} times")

    def _look_at_shares(self, running: Sequence[Process]) -> None:
        """Look for processes that are missing, and for shards that are not shared evenly."""
        year = self._year
        if any(one.scheduler is None or one.stopping or one.host.is_frozen for one in year.beats):
            return
        if len(running) != len(year.beats) * year.processes:
            raise year.violation(f"only {[one.host.name for one in running]} run")
        shares = {one.host.name: one.held for one in running}
        counts = sorted(map(len, shares.values()))
        if len(year.shards) > 1 and (counts[-1] - counts[0] > 1 or sum(counts) != len(year.shards)):
            raise year.violation(f"the shards are not shared evenly: {shares}")

    def before_a_leap(self) -> None:
        """Look at the gauges, which show nothing in calm."""
        for beat in self._year.running if not self._troubles else ():
            for engine in beat.engines:
                if engine.clock.disputed_ms and not beat.host.wall_step_ns:
                    raise self._year.violation(f"{beat.host.name} shows a disputed clock, and its clock is right")
                if engine.state is not None and engine.stats.late_ms_max > RECOVERY_MS:
                    raise self._year.violation(f"{beat.host.name} shows a lateness of {engine.stats.late_ms_max} ms")
            monitoring = beat.service and beat.service._monitoring
            if monitoring is not None and (found := monitoring.health.not_live()):
                raise self._year.violation(f"{beat.host.name} is not live: {found}")

    def has_stopped(self, host: Host) -> None:
        if host.threads:
            names = [self._year.machine.name_of(one) for one in host.threads]
            raise self._year.violation(f"{host.name} was asked to end {STOP_S} s ago, and has threads: {names}")

    def history(self) -> None:
        """Look at the store: it forgets what is older than its retention."""
        shards, now_ms = self._year.shards, self._year.machine.now_ms
        oldest_ms = now_ms - RETENTION_MS - 86_400_000
        rows = [one.row for data in shards for one in data.rows.values()]
        if kept := [row for row in rows if row.due_ms < oldest_ms and row.id in self._pushed]:
            raise self._year.violation(f"{len(kept)} rows are kept beyond their retention")
        if answers := [one for data in shards for one in data.answers.values() if one.at_ms < oldest_ms]:
            raise self._year.violation(f"{len(answers)} answers are kept for more than a week")

    def at_the_end(self) -> None:
        shards = self._year.shards
        schedules = {one.name: one.id for data in shards for one in data.schedules.values()}
        for name, at_ms in self._entries:
            skips = [one for data in shards for one in data.skips if one.schedule == schedules.get(name)]
            times = self.occurrences[name, at_ms] + sum(one.from_ms <= at_ms <= one.to_ms for one in skips)
            if times != 1:
                at = datetime.fromtimestamp(at_ms / 1_000, ZONE)
                raise self._year.violation(f"entry {name!r} ran or was skipped {times} times at {at}")

    def _instants_of_entries(self) -> list[tuple[str, int]]:
        """Return the name and the instant of each day's entries whose local time exists, and occurs once."""
        start_ms, found = self._year.start_ms, []
        first = datetime.fromtimestamp(start_ms / 1_000, ZONE).replace(hour=12, minute=0, second=0)
        for noon in (first + timedelta(days=n) for n in range(self._year.days)):
            found.append(("noon", int(noon.timestamp() * 1_000)))
            if (noon.month, noon.day) == (2, 29):
                found.append(("leap day", int(noon.replace(hour=9).timestamp() * 1_000)))
        return [(name, at_ms) for name, at_ms in found if start_ms + 60_000 < at_ms < self._year.end_ms - 60_000]


#: Fields that every record has, and extra ones that count, or name one of many that the same cause concerns.
PLAIN = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}
PLAIN |= {"times", "count", "kept", "refused", "waiting", "task_id"}


class LogJudge(logging.Handler):
    def __init__(self, machine: Machine) -> None:
        super().__init__(logging.INFO)
        self._machine = machine
        self.last: deque[str] = deque(maxlen=80)
        self.lines: Counter[str] = Counter()
        self._at_s: dict[tuple[Any, ...], float] = {}
        self._found: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        host = self._machine.host
        if host.is_dead:
            return
        extra = {name: value for name, value in record.__dict__.items() if name not in PLAIN}
        at = datetime.fromtimestamp(self._machine.now_ms / 1_000, UTC)
        line = f"{at:%m-%d %H:%M:%S} {host.name} {record.levelname} {record.getMessage()}"
        if record.exc_info and record.exc_info[1]:
            line += f" ({record.exc_info[1]!r})"
        self.last.append(line)
        self.lines[record.msg[:60]] += 1
        template = record.msg.partition(" (%d more times")[0]
        self._once_a_minute(line, record.name, template, json.dumps(extra, sort_keys=True, default=repr))
        if record.levelno == logging.WARNING:  # also of another shard or another job of the process
            self._once_a_minute(line, re.sub(r" \(\d+ more times .*", "", record.getMessage()))

    def _once_a_minute(self, line: str, *cause: str) -> None:
        cause, now_s = (self._machine.host.name, *cause), self._machine.now_ms / 1_000  # in a leap, too, time passes
        before_s = self._at_s.get(cause)
        self._at_s[cause] = now_s
        if before_s is not None and now_s - before_s < 59.9:  # a minute, less the rounding of clocks
            self._found = self._found or f"a line comes again after {now_s - before_s:.1f} s: {line}"

    def check(self) -> None:
        if self._found is not None:
            found, self._found = self._found, None
            raise Violation(found + "\n  " + "\n  ".join(self.last))

    def __enter__(self) -> LogJudge:
        self._logger = logging.getLogger("celery_wheel")
        self._before = self._logger.level, self._logger.propagate
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._logger.removeHandler(self)
        self._logger.level, self._logger.propagate = self._before
