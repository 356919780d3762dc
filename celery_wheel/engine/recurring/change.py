"""Commands on schedules: each is one unit of work, with its revision, its answer and the rows that it withdraws.

::

    create    {name: definition}    a schedule, next_ms after now, or after the instant that the source names
    update    {name: definition}    the occurrences after now are withdrawn; next_ms of the new definition, after now,
                                    or after the instant at which a source has seen the edit, or the last one that
                                    the former definition had since; and a skip of the unmade instants up to it; of a
                                    schedule that has made nothing yet, as for create
    patch     as update, with the values of the definition that change; the others stay as they are
    put       as create where the name is new, and else as update
    rollback  as update, with the definition that an earlier revision had; the asker reads it (``Browse.schedule``)
    pause     every pending occurrence is withdrawn, except requested ones; next_ms = None
    resume    a paused or broken schedule: next_ms after now, and a skip of the instants since
    delete    every pending occurrence is withdrawn, or, where a source deletes, every one after now; the schedule is
              removed, its revisions stay
    restore   {name: {"schedule": {…}, "revisions": [{…}, …]}}: a schedule of another store goes on; no instant before
              ``next_ms`` is made, and those up to now were missed; each field is checked, or a commit would fail

A result "done" has as "too_late" the instants of occurrences to withdraw that may have been published. Only rounds of
ingest change schedules, so a schedule that was read stays as it is until the commit. A schedule that was moved
(``location``) may have pending occurrences in its former shard: they count as too late. A pause and a delete ask that
shard to cancel them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_wheel.engine.intake.inbox import DEFINING, MAX_NAMES, ScheduleCommand
from celery_wheel.engine.recurring.location import conclude, locate
from celery_wheel.engine.recurring.materialise import reason_of, unmade_since
from celery_wheel.engine.recurring.occurrence import read_header
from celery_wheel.engine.recurring.overlap import skips_between
from celery_wheel.engine.recurring.runs import ALL_RUNS
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import Retirement, UnitOfWork
from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.checks import check_type, check_whole, refuse
from celery_wheel.recurring.definition import (
    BROKEN,
    dumped,
    patched,
    read_definition,
    read_document,
    reason_not_run,
)
from celery_wheel.store import schedule_model
from celery_wheel.store.audit_model import PROGRAM
from celery_wheel.store.model import CANCEL, NewItem, Row
from celery_wheel.values import parts
from celery_wheel.values.log import get_logger
from celery_wheel.values.text import END_OF_TIME_MS, text_rule

if TYPE_CHECKING:
    from celery_wheel.recurring import Recurrence

logger = get_logger(__name__)

Result = dict[str, Any]
Pending = Sequence[tuple[schedule_model.Run, Row, int]]

DONE: Result = {"result": "done"}
ALREADY: Result = {"result": "already"}
UNKNOWN: Result = {"result": "unknown"}

#: Changes that create a schedule, and leave one that exists as it is.
KEEPING = ("create", "restore")

#: The source of requests by users, who may change any schedule.
API = "api"

#: The places of entries that the scheduler follows, by their source.
FOLLOWED = {
    schedule_model.BEAT: "beat_schedule or add_periodic_task",
    schedule_model.DJANGO: "the tables of django-celery-beat",
    schedule_model.CODE: "the option wheel_schedule of its task",
}

#: ``Revision.what`` of each change; a put may also create.
_WHAT = {
    "create": "created",
    "restore": "imported",
    "put": "changed",
    "update": "changed",
    "patch": "changed",
    "rollback": "rolled back",
    "pause": "paused",
    "resume": "resumed",
    "delete": "deleted",
}


def change_schedules(ctx: Context, state: ShardState, command: ScheduleCommand) -> Generator[str, None, bool]:
    """Carry out a change; returns False where the command stays in the inbox for another round."""
    with state.active():
        mark = state.mark()
    schedules, elsewhere = locate(ctx, command)
    yield "schedules found"
    pending: dict[int | None, list[tuple[schedule_model.Run, Row, int]]] = {}
    kept = schedules if command.do in KEEPING else {}
    changed = {} if kept else schedules
    work = UnitOfWork(state, ctx.clock.now_ms())
    # A new definition withdraws what was made ahead; most schedules have nothing of that kind.
    withdraws_all = command.do in ("pause", "delete")
    ahead = [one.id for one in changed.values() if withdraws_all or (one.last_ms or 0) > work.now_ms]
    if ahead and command.do != "resume":
        for found in ctx.store.runs_of(ahead, True, ALL_RUNS):
            pending.setdefault(found[0].schedule, []).append(found)
        yield "occurrences found"
    names = [name for name in command.names if name not in elsewhere]
    results = dict.fromkeys(names, UNKNOWN) | dict.fromkeys(kept, ALREADY)
    _warn_of_kept(ctx, command, kept)
    # Before the lock: reading definitions and counting instants take time, and under the lock nothing is dispatched.
    changes = {name: _Alteration(work, command, one, pending.get(one.id, ())) for name, one in changed.items()}
    new = [name for name in names if name not in schedules] if command.do in (*KEEPING, "put") else []
    created = {name: _new(command, name, work.now_ms) for name in new}
    yield "changes prepared"
    with state.active():
        own = (row for found in pending.values() for _, row, shard in found if shard == ctx.shard)
        if state.may_be_diverted(own, mark):
            return False
        results |= {name: one.carry_out() for name, one in changes.items()}
        results |= {name: _create(work, command, one) for name, one in created.items()}
        conclude(work.change, command, results, elsewhere, work.now_ms)
        work.reserve()
    yield "reserved"
    if (yield from work.commit(ctx)):
        for one in changed.values():
            state.failing.forget(one.id)
        state.agenda.reopen()
        ctx.stats.add(cancelled=len(work.rows))
        if items := _cancels(command, changes.values()):
            ctx.store.put_inboxes(items)
    return True


def _cancels(command: ScheduleCommand, changes: Iterable[_Alteration]) -> dict[int, list[NewItem]]:
    """Return the commands that cancel pending occurrences in other shards, by shard. Without them, these occurrences
    are what the answer says: too late."""
    found = defaultdict[int, list[NewItem]](list)
    for change in changes if command.do in ("pause", "delete") else ():
        for shard, task_ids in change.elsewhere.items():
            about = {"actor": command.actor, "reason": change.reason, "audit": {"origin": PROGRAM}}
            for part in parts(task_ids, MAX_NAMES):
                found[shard].append((CANCEL, json.dumps({"task_ids": part, **about}).encode()))
    return found


def _warn_of_kept(ctx: Context, command: ScheduleCommand, kept: Mapping[str, schedule_model.Schedule]) -> None:
    """Log the schedules of a file that another one of their name keeps out, which came after the import had looked."""
    for name, schedule in kept.items():
        if command.do == "restore" and not restores(command.definitions[name], schedule):
            logger.warning(
                "shard %d: schedule %s was not imported: one of that name with another definition came before; it "
                "stays; give one of them another name, and import the file again",
                ctx.shard,
                name,
                extra={"action": "schedule_not_imported", "shard": ctx.shard, "schedule": name},
            )


#: A new schedule without an id, and its revisions before this command.
New = tuple[schedule_model.Schedule, list[schedule_model.Revision]]


def _new(command: ScheduleCommand, name: str, now_ms: int) -> New | Result:
    """Return a new schedule, or the refusal."""
    if rule := text_rule(name):
        return _refused(f"a name must be {rule}, got {name!r:.60}")
    document, after_ms = command.definitions[name], command.after_ms.get(name, now_ms)
    try:
        if command.do == "restore":
            return restored(name, document, now_ms)
        if (reason := reason_not_run(document)) is not None:
            text, is_broken = dumped(document), BROKEN in document
            return schedule_model.Schedule(0, name, text, command.source, 0, None, note=reason, broken=is_broken), []
        text, definition = read_document(document)
        next_ms = definition.recurrence.next_after(after_ms)
    except Exception as error:
        return _unprepared(name, error)
    return schedule_model.Schedule(0, name, text, command.source, 0, next_ms), []


def _create(work: UnitOfWork, command: ScheduleCommand, new: New | Result) -> Result:
    if not isinstance(new, tuple):
        return new
    schedule, earlier = new
    schedule.id = work.state.next_seq()
    work.change.revisions += [replace(one, schedule=schedule.id) for one in earlier]
    work.change.added_schedules.append(_revised(work, command, schedule))
    return DONE


def _refused(reason: str) -> Result:
    return {"result": "refused", "reason": reason}


def _unprepared(name: str, error: Exception) -> Result:
    """Return the refusal of a change; an unexpected error ends neither the round nor the other changes."""
    if not isinstance(error, RecurrenceError):
        logger.error("schedule %s was not changed: the error below is a defect, please report it", name, exc_info=error)
    return _refused(reason_of(error, "an unexpected error"))


def _revised(
    work: UnitOfWork, command: ScheduleCommand, schedule: schedule_model.Schedule, **changes: Any
) -> schedule_model.Schedule:
    """Return a schedule, which is new or stored, with its changes, and add their revision to the unit of work."""
    what = _WHAT["create" if command.do == "put" and not schedule.revision else command.do]
    found, revision = schedule_model.revised(schedule, what, command.actor, command.reason, work.now_ms, **changes)
    work.change.revisions.append(revision)
    return found


class _Alteration:
    """A change of one schedule: prepared without the lock, and carried out under it."""

    def __init__(
        self, work: UnitOfWork, command: ScheduleCommand, schedule: schedule_model.Schedule, pending: Pending
    ) -> None:
        self.work = work
        self.command = command
        self.schedule = schedule
        self.pending = pending
        self._text = schedule.definition  #: the new definition
        self._recurrence: Recurrence | None = None  #: of the new definition; None: the wheel does not run it, for the
        self._why_not: str | None = None  #: reason; and
        self._is_broken = False  #: whether that is an error
        self._refusal: Result | None = None
        self._unmade: list[schedule_model.Skip] = []  #: of the instants up to now, by the former definition
        self._next_ms: int | None = None
        self.elsewhere = defaultdict[int, list[str]](list)  #: shard → ids of tasks to withdraw
        own = [] if command.do == "delete" else [one for one in pending if not one[0].requested]
        #: Instant → the one before it, as its occurrence names it.
        self._before = {run.at_ms: read_header(row).get("previous") for run, row, _ in own}
        try:
            if command.source not in (API, schedule.source):
                raise RecurrenceError(f"{schedule.name} is a schedule of {schedule.source}, not of {command.source}")
            if command.do in DEFINING:
                self._prepare_update()
            elif command.do == "resume":
                self._prepare_resume()
        except Exception as error:
            self._refusal = _unprepared(schedule.name, error)

    def carry_out(self) -> Result:
        """Add the change to the unit of work; the caller holds the lock."""
        if self._refusal is not None:
            return self._refusal
        return {"pause": self.pause, "resume": self.resume, "delete": self.delete}.get(self.command.do, self.update)()

    def _prepare_update(self) -> None:
        schedule, now_ms = self.schedule, self.work.now_ms
        new = self.command.definitions[schedule.name]
        document = patched(schedule.definition, new) if self.command.do == "patch" else new
        self._why_not = reason_not_run(document)
        if self._why_not is not None:
            self._text, self._is_broken = dumped(document), BROKEN in document
        else:
            self._text, definition = read_document(document)
            self._recurrence = definition.recurrence
            self._recurrence.next_after(now_ms, schedule.made)
        since_ms = schedule.since_ms if schedule.next_ms is None else schedule.next_ms - 1
        if since_ms is not None:
            self._unmade = self._skips(since_ms, schedule_model.PAUSED if schedule.paused else schedule_model.MISSED)

    def _prepare_resume(self) -> None:
        schedule, now_ms = self.schedule, self.work.now_ms
        since_ms = now_ms if schedule.since_ms is None else schedule.since_ms
        recurrence = read_definition(schedule.definition).recurrence
        self._next_ms = recurrence.next_after(max(now_ms, since_ms), schedule.made)
        self._unmade = self._skips(since_ms, schedule_model.PAUSED if schedule.paused else schedule_model.MISSED)

    def update(self) -> Result:
        work, schedule = self.work, self.schedule
        if self._text == schedule.definition and not schedule.broken:
            return ALREADY
        ahead = [one for one in self.pending if one[0].at_ms > work.now_ms and not one[0].requested]
        withdrawn, too_late = self._withdraw(ahead)
        made, next_ms = schedule.made - len(withdrawn), None
        if not schedule.paused and self._recurrence is not None:
            after_ms, times = self._published_upto(too_late), self.command
            if made and (edited_ms := times.edited_ms.get(schedule.name)) is not None:
                after_ms = min(after_ms, self._last_instant(edited_ms))
            elif not made:
                after_ms = times.after_ms.get(schedule.name, after_ms)
            next_ms = self._recurrence.next_after(after_ms, made)
            self._unmade = [one for one in self._unmade if one.from_ms <= after_ms]  # the others are made now
        work.change.skips += self._unmade
        state: dict[str, Any] = {"since_ms": max(work.now_ms, schedule.since_ms or 0) if schedule.paused else None}
        if self._why_not is not None:
            state |= {"broken": self._is_broken, "note": self._why_not}
        elif not schedule.paused:
            state |= {"broken": False, "note": ""}
        self._write(definition=self._text, next_ms=next_ms, made=made, last_ms=self._last_made(withdrawn), **state)
        return _done(too_late)

    def pause(self) -> Result:
        work, schedule = self.work, self.schedule
        if schedule.paused:
            return ALREADY
        withdrawn, too_late = self._withdraw([one for one in self.pending if not one[0].requested])
        past = sorted({run.at_ms for run in withdrawn if run.at_ms <= work.now_ms})
        work.change.skips += [
            schedule_model.Skip(schedule.id, at_ms, at_ms, 1, schedule_model.PAUSED, work.now_ms) for at_ms in past
        ]
        since_ms = unmade_since(schedule, work.now_ms)
        if schedule.since_ms is not None and schedule.broken:
            since_ms = min(since_ms, schedule.since_ms)
        self._write(
            paused=True,
            note=self.command.reason,
            next_ms=None,
            made=schedule.made - sum(run.at_ms > work.now_ms for run in withdrawn),
            last_ms=self._last_made(withdrawn),
            since_ms=max(since_ms, self._published_upto(too_late)) if since_ms == work.now_ms else since_ms,
        )
        return _done(too_late)

    def resume(self) -> Result:
        if not self.schedule.paused and not self.schedule.broken:
            return ALREADY
        self.work.change.skips += self._unmade
        self._write(paused=False, broken=False, note="", since_ms=None, next_ms=self._next_ms)
        return DONE

    def delete(self) -> Result:
        # A task that Beat has sent runs even if its entry is removed; here the task may wait behind a pause.
        sent_upto_ms = self.work.now_ms if self.command.source != API else -1
        _, too_late = self._withdraw([one for one in self.pending if one[0].at_ms > sent_upto_ms])
        self.work.change.removed_schedules.append(self.schedule.id)
        _revised(self.work, self.command, self.schedule)
        where = FOLLOWED.get(self.schedule.source) if self.command.source == API else None
        comes_back = "it comes back when a scheduler starts, or its entry changes"
        reason = f"{comes_back}: {where} still has it; remove it there, or pause it"
        return _done(too_late) | ({"reason": reason} if where else {})

    def _withdraw(self, pending: Pending) -> tuple[list[schedule_model.Run], list[int]]:
        """Cancel pending occurrences; returns their runs, and the instants of those that may have been published."""
        why = Retirement("cancelled", self.reason, self.command.actor)
        withdrawn, too_late = [], []
        for run, row, shard in pending:
            if shard == self.work.state.shard and self.work.take_out(row):
                self.work.cancel(row, why)
                if run.at_ms > self.work.now_ms:
                    self.work.change.run_ends.append(schedule_model.RunEnd(run.timer_id, self.work.now_ms))
                withdrawn.append(run)
                continue
            too_late.append(run.at_ms)
            if shard != self.work.state.shard:
                self.elsewhere[shard].append(row.task_id)
        return withdrawn, sorted(too_late)

    def _last_made(self, withdrawn: Sequence[schedule_model.Run]) -> int | None:
        """Return the last instant that was made and is not withdrawn, which the next occurrence names as the one before
        it, as those that are withdrawn did."""
        last_ms, gone = self.schedule.last_ms, {run.at_ms for run in withdrawn}
        while last_ms in gone:
            gone.remove(last_ms)
            last_ms = schedule_model.whole(self._before.get(last_ms))
        return last_ms

    def _published_upto(self, too_late: list[int]) -> int:
        """Return the last instant that may have been published: now, unless due time has gone back."""
        of_instant = [run.at_ms for run, row, _ in self.pending if row.eta_ms == self._due_ms(run)]
        return max([self.work.now_ms, *(one for one in of_instant if one in too_late)])

    def _last_instant(self, since_ms: int) -> int:
        """Return the last instant since one, up to now, that the former definition had; where it had none, that one."""
        of_former = [one.to_ms for one in self._skips(since_ms, schedule_model.MISSED)]
        last_ms = self.schedule.last_ms or 0  # one after now was withdrawn, or is too late
        return max(since_ms, *of_former, last_ms if last_ms <= self.work.now_ms else 0)

    def _due_ms(self, run: schedule_model.Run) -> int:
        try:
            call = read_definition(self.schedule.definition).call
        except RecurrenceError:
            return run.at_ms
        return call.due_ms(self.schedule.id, self.schedule.name, run.at_ms)

    @property
    def reason(self) -> str:
        reason = f"its schedule {self.schedule.name} was {_WHAT[self.command.do]}"
        return f"{reason}: {self.command.reason}" if self.command.reason else reason

    def _skips(self, since_ms: int, reason: str) -> list[schedule_model.Skip]:
        """Return the skips of the instants since one, up to now, by the former definition."""
        if since_ms >= self.work.now_ms:  # as mostly: the next instant is still to come
            return []
        try:
            recurrence = read_definition(self.schedule.definition).recurrence
            return skips_between(self.schedule.id, recurrence, since_ms, self.work.now_ms, reason)
        except RecurrenceError:
            return []  # the instants are unknown

    def _write(self, **changes: Any) -> None:
        self.work.change.schedules.append(_revised(self.work, self.command, self.schedule, **changes))


def _done(too_late: list[int]) -> Result:
    return {"result": "done", "too_late": too_late} if too_late else DONE


#: The largest number of a revision; the column has 32 bits, and changes are still to come.
MAX_NUMBER = 2**30

_DEFAULTS: dict[str, Any] = {
    **{"source": "api", "revision": 0, "next_ms": None, "made": 0, "last_ms": None},
    **{"paused": False, "note": "", "broken": False, "since_ms": None},
}
_REVISION = ("number", "what", "actor", "reason", "at_ms", "before")


def restored(name: str, document: Any, now_ms: int) -> tuple[schedule_model.Schedule, list[schedule_model.Revision]]:
    """Return a schedule and its revisions, both without the schedule's number. Raises RecurrenceError."""
    values = _fields("schedule", _field(document, "schedule"), ("definition", *_DEFAULTS), _DEFAULTS)
    for field in ("definition", "note"):
        _check_text(field, values[field])
    _check_text("source", values["source"], short=True)
    check_whole("revision", values["revision"], 0, MAX_NUMBER)
    check_whole("made", values["made"], 0, 2**62)
    for field in ("next_ms", "last_ms", "since_ms"):
        if values[field] is not None:
            check_whole(field, values[field], -1, END_OF_TIME_MS - 1)
    for field in ("paused", "broken"):
        check_type(field, values[field], bool)
    schedule = schedule_model.Schedule(0, name, **values)
    return _stopped(schedule, now_ms), _revisions(schedule, _field(document, "revisions", []))


def restores(document: Any, schedule: schedule_model.Schedule) -> bool:
    """Whether a document has the definition of a schedule that exists; False for one that cannot be read."""
    of_schedule = document.get("schedule") if isinstance(document, Mapping) else None
    definition = of_schedule.get("definition") if isinstance(of_schedule, Mapping) else None
    return isinstance(definition, str) and schedule_model.is_same_definition(definition, schedule.definition)


def _stopped(schedule: schedule_model.Schedule, now_ms: int) -> schedule_model.Schedule:
    """Return the schedule; where it is paused or broken, without a next instant, and with ``since_ms``."""
    with suppress(ValueError, RecursionError):
        if reason_not_run(json.loads(schedule.definition)) is not None:
            return replace(schedule, next_ms=None)
    try:
        read_definition(schedule.definition)
    except RecurrenceError as error:
        schedule = replace(schedule, broken=True, note=schedule.note or str(error)[:1_000])
    if not schedule.paused and not schedule.broken:
        return replace(schedule, since_ms=None)
    since_ms = schedule.decided_upto(now_ms) if schedule.since_ms is None else schedule.since_ms
    return replace(schedule, next_ms=None, since_ms=since_ms)


def _revisions(schedule: schedule_model.Schedule, documents: Any) -> list[schedule_model.Revision]:
    if not isinstance(documents, list):
        refuse("revisions", "a list", documents)
    found = [_revision(schedule.name, one) for one in documents]
    numbers = [one.number for one in found]
    if numbers != sorted(set(numbers)) or max(numbers, default=0) > schedule.revision:
        refuse("revisions", f"in the order of their numbers, each once, up to {schedule.revision}", numbers)
    return found


def _revision(name: str, document: Any) -> schedule_model.Revision:
    values = _fields("revision", document, _REVISION, {})
    for field in ("what", "actor", "reason", "before"):
        _check_text(f"revision.{field}", values[field])
    check_whole("revision.number", values["number"], 1, MAX_NUMBER)
    check_whole("revision.at_ms", values["at_ms"], 0, END_OF_TIME_MS - 1)
    return schedule_model.Revision(0, name=name, **values)


def _field(document: Any, name: str, default: Any = None) -> Any:
    if not isinstance(document, Mapping):
        refuse("the definition", 'an object like {"schedule": …, "revisions": […]}', document)
    return document.get(name, default)


def _fields(what: str, document: Any, names: tuple[str, ...], defaults: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(document, Mapping) or not set(names) - set(defaults) <= set(document) <= set(names):
        refuse(what, f"an object with the fields {', '.join(names)}", document)
    return {**defaults, **document}


def _check_text(field: str, value: Any, *, short: bool = False) -> None:
    if rule := text_rule(value, 1 if short else 0, any_length=not short):
        refuse(field, rule, value)
