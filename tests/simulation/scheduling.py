"""Users who create, edit, pause, resume, delete, trigger and move schedules; each instant runs once, or has a skip.

::

    ask      one command on one to three names; now and then the end of a run
    move     schedules are drained into a file under an epoch of the drain's own, and imported later, now and then twice
    look     after every event: an answer ends one phase of a schedule's life and begins the next
                 create ─ active ─ update ─ active ─ pause ─ paused ─ resume ─ active ─ delete
             a run that begins: with "skip" and "queue_one" every earlier run is over, with "cancel_running" it is over
             or cancelled. Decisions: ``policies``; backfills and queued instants: ``backfilling``
    judge    every instant of an active phase has one row, or one skip; of a paused phase one skip
             each row has its run, is of one of the instants, and due within the jitter after it
             nothing is pushed after a delete was answered, but rows that the answer names; a move changes none of this

The instants are multiples of the interval, computed here. A row that a user has moved may stand for its instant or not.
The last instants before a delete may be missing: they were withdrawn, or not made yet. Where clocks step, instants are
only counted: none has two rows.
"""

import json
import random
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from celery_wheel.operations.drain.file import schedule_line_of, schedule_of
from celery_wheel.recurring.definition import BACKFILL_OVERLAPS, QUEUE_ALL
from celery_wheel.store.model import STOPPED, Change, Message, Row
from celery_wheel.store.schedule_model import RUN_ENDED, Revision, Run, RunReport, Schedule
from celery_wheel.store.store_model import HandoverSchedule
from tests.simulation.backfilling import Backfills, moved_by_users
from tests.simulation.model_history import StoredRow
from tests.simulation.model_store import ModelStore, ShardData
from tests.simulation.policies import Life, Phase, Policies, Policy, end_of


def drain(store: ModelStore, names: Collection[str], now_ms: int) -> tuple[list[Schedule], dict[str, Any]]:
    """Remove schedules, after all schedulers were stopped; returns them, and the documents of the command restore."""
    data = store.disk.shard(0)
    data.holder, data.owner, data.lease_until_ms = None, None, 0
    epoch = store.acquire(0, "drain", now_ms, 1)
    assert epoch is not None
    found = [one for _, one in store.schedules_named(list(names))]
    revisions = {one.id: [change for change in data.revisions if change.schedule == one.id] for one in found}
    lines = [schedule_line_of(HandoverSchedule(0, one, revisions[one.id])) for one in found]
    removed = [
        Revision(one.id, one.revision + 1, one.name, "deleted", "drain", "", now_ms, json.dumps(asdict(one)))
        for one in found
    ]
    store.apply(0, epoch, Change(removed_schedules=[one.id for one in found], revisions=removed))
    store.release(0, epoch)
    drained = [schedule_of(line, same_store=True) for line in lines]
    return found, {one.schedule.name: one.document for one in drained}


NAMES = ("hourly", "daily", "weekly")
COMMANDS = ("create", "create", "update", "update", "pause", "resume", "resume", "delete", "trigger", "backfill")
ACTOR = "scheduler's user"
#: The engine looks at so many latest runs of a schedule.
LATEST_RUNS = 20


@dataclass(slots=True)
class Asked:
    do: str
    names: list[str]
    policy: Policy
    from_ms: int = 0
    upto_ms: int = 0
    overlap: str | None = None  #: of a backfill
    moved: dict[str, tuple[Life, Schedule]] = field(default_factory=dict)


class Scheduling:
    def __init__(
        self,
        rng: random.Random,
        store: ModelStore,
        dense: bool,
        policies: Policies,
        violation: Callable[[str], Exception],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.lives: list[Life] = []
        self.requested: set[str] = set()  #: ids of tasks that a trigger or a backfill made
        self._rng = rng
        self._store = store
        self._dense = dense
        self._policies = policies
        self._violation = violation
        self._asked: dict[str, Asked] = {}
        self._answered: set[str] = set()
        self._order: dict[str, deque[str]] = {name: deque() for name in NAMES}  #: commands without an answer
        self._file: tuple[dict[str, tuple[Life, Schedule]], dict[str, Any]] | None = None
        self._by_id: dict[int, Life] = {}
        self._current: dict[str, Life] = {}
        self._seen_runs: set[int] = set()
        self._pushed_ms: dict[int, int] = {}
        self._reported: dict[int, int] = {}  #: by item of the inbox, the run that ended
        self._backfills = Backfills(self.counts, self._pushed_ms, violation)
        self._ended: set[int] = set()  #: runs whose end was reported

    # -- commands ------------------------------------------------------------------------------------

    def ask(self, now_ms: int, do: str = "") -> str:
        rng = self._rng
        do = do or rng.choice(COMMANDS)
        names = rng.sample(NAMES, rng.choice((1, 1, 1, 3)))
        known = [name for name, life in self._current.items() if not life.deleted]
        if do != "create" and known and rng.random() < 0.6:
            names = [rng.choice(known)]
        every_ms = rng.choice((7, 20, 50, 301) if self._dense else (100, 700, 3_000))
        own_overlap = rng.choice(("allow", "allow", "skip", "queue_one", "cancel_running"))
        max_runtime_ms, jitter_ms = rng.choice(((30, 3), (500, 0), (10_000, 40)))
        catch_up = rng.choice(("latest", "latest", "all", "none"))
        policy = Policy(every_ms, own_overlap, max_runtime_ms, jitter_ms, catch_up, rng.choice((50, 300)))
        if do == "update" and names[0] in known and rng.random() < 0.25:
            policy = self._current[names[0]].phases[-1].policy
        overlap = (QUEUE_ALL, None, QUEUE_ALL, *BACKFILL_OVERLAPS)[len(self._asked) % 8]
        return self._put(Asked(do, names, policy, now_ms - 3 * every_ms, now_ms, overlap))

    def move(self, data: ShardData, now_ms: int) -> str:
        if self._file is not None:
            return self._import()
        pending = {run.timer_id for run in data.runs.values() if self._is_pending(data, run.timer_id)}
        names = self.may_be_drained(data, now_ms)
        names = self._rng.sample(names, self._rng.choice((1, len(names))))
        found, documents = drain(self._store, names, now_ms)
        for one in found:
            life = self._by_id[one.id]
            runs = (run for run in data.runs.values() if run.schedule == one.id and run.timer_id in pending)
            life.carried.update(dict.fromkeys((run.instant_ms for run in runs), len(life.phases)))
        self._file = {one.name: (self._by_id[one.id], one) for one in found}, documents
        return f"drain {', '.join(documents)}"

    def _import(self) -> str:
        assert self._file is not None
        moved, documents = self._file
        self._file = None
        for _ in range(self._rng.choice((1, 1, 2))):
            self._put(Asked("restore", list(documents), NO_POLICY, moved=moved), documents)
        return f"import {', '.join(documents)}"

    @staticmethod
    def _is_stopped(data: ShardData, row_id: int) -> bool:
        return row_id in data.rows and data.rows[row_id].row.lane == STOPPED

    @staticmethod
    def _is_pending(data: ShardData, row_id: int) -> bool:
        """Whether a row may be pushed, or pushed again."""
        stored = data.rows.get(row_id)
        return (
            stored is not None
            and stored.row.lane != STOPPED
            and stored.row.position > data.lanes[stored.row.lane].offset
        )

    def calm(self) -> None:
        if self._file is not None:
            self._import()
        self._put(Asked("delete", list(NAMES), NO_POLICY))

    def _put(self, asked: Asked, documents: dict[str, Any] | None = None) -> str:
        number = f"00000000-0000-4000-c000-{len(self._asked):012d}"
        self._asked[number] = asked
        for name in asked.names:
            self._order[name].append(number)
        fields: dict[str, Any] = {"do": asked.do, "id": number, "actor": ACTOR, "reason": "", "names": asked.names}
        if asked.do in ("create", "update"):
            fields["definitions"] = dict.fromkeys(asked.names, asked.policy.document())
        if asked.do == "restore":
            fields["definitions"] = documents
        if asked.do == "backfill":
            fields |= {"from_ms": asked.from_ms, "upto_ms": asked.upto_ms, "overlap": asked.overlap}
        self._store.put_inbox(0, [("schedule", json.dumps(fields).encode())])
        return f"{asked.do} {', '.join(asked.names)} {asked.policy}"

    def end_a_run(self, data: ShardData, pushes: Mapping[int, int]) -> str:
        of_schedules = [run for run in data.runs.values() if run.schedule is not None]
        pushed = [run for run in of_schedules if run.ended_ms is None and run.timer_id in pushes]
        if not pushed:
            return "no run to end"
        run = self._rng.choice(pushed[-5:])
        self._reported[self._store.put_command(0, RUN_ENDED, RunReport(run.timer_id).payload)] = run.timer_id
        return f"run {run.timer_id} ends"

    # -- oracles -------------------------------------------------------------------------------------

    def look(self, data: ShardData, now_ms: int) -> None:
        for number in [one for one in data.answers if one in self._asked and one not in self._answered]:
            self._answered.add(number)
            asked, answer = self._asked[number], data.answers[number]
            for name, result in answer.results.items():
                self._in_order(number, name)
                self.counts[f"{asked.do}: {result['result']}"] += 1
                if result["result"] == "done":
                    self._done(data, asked, name, result, answer.at_ms)
                elif asked.do == "restore" and name in asked.moved:
                    self._stays_there(*asked.moved.pop(name))
        self._look_at_ends(data, now_ms)
        for row_id in data.runs.keys() - self._seen_runs:
            self._seen_runs.add(row_id)
            self._began(data, row_id, now_ms)

    def _in_order(self, number: str, name: str) -> None:
        first = self._order[name].popleft()
        if first != number:
            raise self._violation(f"{self._asked[number].do} of {name} was answered before {self._asked[first].do}")

    def _done(self, data: ShardData, asked: Asked, name: str, result: dict[str, Any], at_ms: int) -> None:
        if asked.do in ("trigger", "backfill"):
            self.requested.update(result["task_ids"])
            if asked.do == "backfill":
                self._backfilled(data, asked, name, result, at_ms)
            return
        if asked.do in ("create", "restore"):
            self._born(data, asked, name)
        if asked.do == "restore":
            return
        life = self._current[name]
        life.too_late.update(result.get("too_late", ()))
        self.counts["too late for a change"] += bool(result.get("too_late"))
        policy, paused = asked.policy, asked.do == "pause"
        if life.phases:
            last = life.phases[-1]
            last.upto_ms = at_ms
            if asked.do == "update":
                paused = last.paused
            else:
                policy = last.policy
        if asked.do == "delete":
            life.deleted = True
        else:
            life.phases.append(Phase(at_ms, policy, paused=paused))

    def _born(self, data: ShardData, asked: Asked, name: str) -> None:
        """Find the number of a schedule that was created or imported: the numbers come in the order of the commands."""
        numbers = dict.fromkeys(one.schedule for one in data.revisions if one.name == name)
        number = next(one for one in numbers if one not in self._by_id)
        if asked.do == "restore":
            life, _ = asked.moved.pop(name)
            life.ids.append(number)
        else:
            life = Life([number])
            self.lives.append(life)
        self._by_id[number] = self._current[name] = life

    @staticmethod
    def _stays_there(life: Life, drained: Schedule) -> None:
        """Another schedule has the name by now: the life is over with the instants that were made before the drain."""
        if drained.next_ms is not None:
            life.phases[-1].upto_ms = drained.next_ms - 1
        else:
            life.phases[-1].upto_ms = life.phases[-1].from_ms

    def _backfilled(self, data: ShardData, asked: Asked, name: str, result: dict[str, Any], at_ms: int) -> None:
        life = self._current[name]
        phase = life.phases[-1]
        wanted = phase.policy.instants(asked.from_ms, min(asked.upto_ms, at_ms))
        seen = [data.runs[row_id] for row_id in self._seen_runs if data.runs[row_id].schedule in life.ids]
        of_it = set(result["task_ids"])
        known = {one: stored for one, stored in {**data.forgotten, **data.rows}.items() if one in data.runs}
        own = [one for one, stored in known.items() if self._task_id(stored) in of_it]
        # The clock of the holder before may have been ahead: where the backfill has rows, their numbers tell the order.
        made_by_then = [
            one
            for one, stored in known.items()
            if one not in own and (one < min(own) if own else stored.accepted_ms <= at_ms)
        ]
        runs = self._latest(data, life.ids[-1], made_by_then)
        count = self._backfills.answered(data, phase.policy, asked.overlap, wanted, result, runs, at_ms)
        rest = set(wanted[count:])
        if rest and phase.paused:
            raise self._violation(f"a backfill of a paused schedule left out {sorted(rest)}")
        # A pause withdraws the others, and a trigger may come at an instant of the schedule.
        stand = [run for run in seen if not run.requested and not self._is_stopped(data, run.timer_id)]
        if twice := rest & ({run.instant_ms for run in stand} - life.carried.keys()):
            raise self._violation(f"the backfill left out {sorted(twice)}, which had rows")
        life.backfilled.update(dict.fromkeys(wanted[:count], max(self._seen_runs, default=0)))

    def _look_at_ends(self, data: ShardData, now_ms: int) -> None:
        for item in [one for one in self._reported if one not in data.inbox]:
            run = data.runs[self._reported.pop(item)]
            if run.ended_ms is None and run.timer_id in data.rows:
                raise self._violation(f"the end of run {run.timer_id} is not in the store")
            if run.timer_id not in self._ended and not self._policies.clock_steps:
                self._backfills.ended(data, run, now_ms)
            self._ended.add(run.timer_id)
            self.counts["ends of runs"] += 1

    def _began(self, data: ShardData, row_id: int, now_ms: int) -> None:
        run = data.runs[row_id]
        life, stored = self._by_id.get(run.schedule), data.rows.get(row_id)
        if life is None or life.deleted or stored is None or not isinstance(stored.message, Message):
            return
        if stored.message.task_id in self.requested:
            return
        if stored.row.eta_ms == stored.message.eta_ms:  # no user has moved it in the same round
            self._policies.began(life, stored.row, stored.message.task_id, run.instant_ms)
        if {one.overlap for one in life.policies} <= {"skip", "queue_one"}:
            self._guarded(data, life, row_id, now_ms, "was not over")
        elif {one.overlap for one in life.policies} == {"cancel_running"}:
            self._guarded(data, life, row_id, now_ms, "was not cancelled")

    def _guarded(self, data: ShardData, life: Life, row_id: int, now_ms: int, violation: str) -> None:
        self.counts["guarded runs"] += 1
        longest_ms = min(one.max_runtime_ms for one in life.policies)
        for other in self._latest(data, data.runs[row_id].schedule):
            row = data.rows[other.timer_id].row
            goes_on = other.ended_ms is None and row.lane != STOPPED and row.due_ms + longest_ms > now_ms
            if goes_on and other.timer_id < row_id:
                raise self._violation(f"run {row_id} began while run {other.timer_id} {violation}")

    @staticmethod
    def _latest(data: ShardData, schedule: int, among: Collection[int] | None = None) -> list[Run]:
        of = data.runs.keys() & data.rows.keys() if among is None else among
        runs = [data.runs[id_] for id_ in of if data.runs[id_].schedule == schedule]
        return sorted(runs, key=lambda one: (one.instant_ms, one.timer_id))[-LATEST_RUNS:]

    def pushed(self, data: ShardData, row: Row, now_ms: int, loses: bool) -> None:
        self._pushed_ms.setdefault(row.id, now_ms)
        run = data.runs.get(row.id)
        if run is None or loses:
            return
        message, life = data.rows[row.id].message, self._by_id.get(run.schedule)
        if isinstance(message, Message):
            latest = {one.timer_id for one in self._latest(data, run.schedule)}
            self._backfills.pushed(data, run, row, message.task_id, now_ms, latest)
        if life is None or not life.deleted:
            return
        if run.instant_ms not in life.too_late and run.instant_ms not in life.carried:
            raise self._violation(f"row {row.id} was pushed after its schedule was deleted")

    def judge(self, data: ShardData, overlapped: Collection[str]) -> None:
        if self._asked.keys() - self._answered:
            raise self._violation(f"{sorted(self._asked.keys() - self._answered)} were not answered")
        if data.schedules:
            raise self._violation(f"{list(data.schedules.values())} are left")
        outcomes = (*data.outcomes, *data.forgotten_outcomes)
        withdrawn = {one.timer_id: one.reason for one in outcomes if one.actor == ACTOR}
        moved = {one.timer_id for one in outcomes if one.kind == "moved"}
        rows, task_ids = dict[int, list[StoredRow]](), set[str]()
        for row_id, stored in {**data.forgotten, **data.rows}.items():
            if isinstance(stored.message, Message) and stored.message.task == "tasks.recurring":
                if row_id not in data.runs:
                    raise self._violation(f"row {row_id} is an occurrence without a run")
                task_ids.add(stored.message.task_id)
                run = data.runs[row_id]
                is_over = row_id in self._ended or stored.message.task_id in overlapped
                if run.ended_ms is not None and not is_over and (row_id not in withdrawn or run.ended_ms >= run.at_ms):
                    raise self._violation(
                        f"run {row_id} counts as over, and was neither ended, nor cancelled, nor withdrawn ahead"
                    )
                if stored.message.task_id not in self.requested:
                    rows.setdefault(data.runs[row_id].schedule, []).append(stored)
        if missing := self.requested - task_ids:
            raise self._violation(f"{sorted(missing)} were asked for, and have no row")
        for life in self.lives:
            of_life = [stored for number in life.ids for stored in rows.get(number, [])]
            if self._policies.clock_steps:
                self._judge_count(data, life, of_life, withdrawn.keys() | moved)
            else:
                self._judge_life(data, life, of_life, moved, withdrawn)

    def _judge_count(self, data: ShardData, life: Life, rows: list[StoredRow], moved: Collection[int]) -> None:
        made = Counter(data.runs[stored.row.id].instant_ms for stored in rows if stored.row.id not in moved)
        if twice := [at_ms for at_ms, n in made.items() if n > 1 and not life.is_of_former_definition(at_ms)]:
            raise self._violation(f"schedule {life.ids}: {twice} were made twice")

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
            if not 0 <= late_ms <= max(one.jitter_ms for one in life.policies):
                raise self._violation(f"row {stored.row.id} is due {late_ms} ms after its instant")
            if stored.row.id > life.backfilled.get(instant_ms, stored.row.id):
                raise self._violation(f"row {stored.row.id} is of {instant_ms}, which a backfill had made")
            self.counts["runs with jitter"] += late_ms > 0
            self.counts["runs of a herd"] += stored.row.lane > 0
            if stored.row.id in moved or withdrawn.get(stored.row.id, "").endswith("deleted"):
                any_number.add(instant_ms)
            elif stored.row.id not in withdrawn:
                made[instant_ms] += 1
        any_number |= {at_ms for at_ms in life.carried if life.is_of_former_definition(at_ms)}
        if strange := made.keys() - active - life.too_late - life.carried.keys():
            raise self._violation(f"schedule {life.ids} ran at {sorted(strange)}, which are none of its instants")
        skips = [one for one in data.skips if one.schedule in life.ids]
        self.counts.update(f"skipped, {one.reason}" for one in skips)
        accounted = max([0, *made, *(one.to_ms for one in skips)])
        begins, ends_ms = sorted(one.from_ms for one in skips), sorted(one.to_ms for one in skips)
        for at_ms in sorted(active | resumed):
            times = made[at_ms] + bisect_right(begins, at_ms) - bisect_left(ends_ms, at_ms)
            if times > 1 and at_ms not in any_number and at_ms not in active & resumed:
                raise self._violation(f"schedule {life.ids}: instant {at_ms} was made or skipped {times} times")
            if times == 0 and at_ms not in any_number and at_ms < accounted:
                raise self._violation(f"schedule {life.ids}: instant {at_ms} neither ran nor was skipped")
        self.counts["instants made"] += sum(made.values())
        self.counts["instants made after a move"] += sum(made.values()) if len(life.ids) > 1 else 0
        pend_again = moved_by_users(data) | self._policies.rolled_back
        ends = {
            row_id: end_of(life, run, self._row(data, row_id), self._pushed_ms.get(row_id), row_id in pend_again)
            for row_id, run in data.runs.items()
            if run.schedule in life.ids
        }
        self._policies.judge(data, life, rows, skips, ends)

    @staticmethod
    def _task_id(stored: StoredRow) -> str:
        return stored.message.task_id if isinstance(stored.message, Message) else ""

    @staticmethod
    def _row(data: ShardData, row_id: int) -> Row:
        return (data.rows.get(row_id) or data.forgotten[row_id]).row

    @property
    def is_away(self) -> bool:
        """Whether schedules are in a drain's file."""
        return self._file is not None

    def may_be_drained(self, data: ShardData, now_ms: int) -> list[str]:
        """Return the names without a command in the inbox: a drain begins with these commands."""
        self.look(data, now_ms)
        return [one.name for one in data.schedules.values() if not self._order[one.name]]


#: The policy of commands without a definition.
NO_POLICY = Policy(1, "allow", 1, 0, "latest", 0)
