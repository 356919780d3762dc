"""Commands on schedules: each is one unit of work, with its revision, its answer and the rows that it withdraws.

::

    create    {name: definition}    a schedule, next_ms after now
    update    {name: definition}    the occurrences after now are withdrawn; next_ms of the new definition, after now
    rollback  as update, with the definition that an earlier revision had; the asker reads it (``Browse.schedule``)
    pause     every pending occurrence is withdrawn, but those that users asked for; next_ms = None
    resume    a paused or broken schedule: next_ms after now, and a skip of the instants since
    delete    every pending occurrence is withdrawn, also those; the schedule is removed, its revisions stay

    {"result": "done", "too_late": [instants]}   too_late, where there are any: occurrences to withdraw that may
                                                 have been published
    {"result": "already"}                        create: the name exists; update: the definition is the same;
                                                 pause, resume: the schedule is so
    {"result": "unknown"}                        there is no schedule of that name
    {"result": "refused", "reason": text}        the definition, with the path of the field, or the name

``trigger`` and ``backfill`` change no schedule: see ``materialise``.

Only the ingest thread changes schedules, so a schedule that was read stays as it is until the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from celery_wheel.engine.commands.cancel_move import commit_command
from celery_wheel.engine.intake.inbox import DEFINING, ScheduleCommand
from celery_wheel.engine.recurring.definition import read_definition, to_text
from celery_wheel.engine.recurring.instants import skips_between
from celery_wheel.engine.recurring.materialise import unmade_since
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import Retirement, UnitOfWork
from celery_wheel.errors import RecurrenceError
from celery_wheel.store.model import TaskRow
from celery_wheel.store.schedule_model import MISSED, PAUSED, Revision, Run, Schedule, Skip
from celery_wheel.values.text import text_rule

Result = dict[str, Any]
Pending = Sequence[tuple[Run, TaskRow]]

DONE: Result = {"result": "done"}
ALREADY: Result = {"result": "already"}
UNKNOWN: Result = {"result": "unknown"}

#: The word of a revision for each change.
_WHAT = {
    "create": "created",
    "update": "changed",
    "rollback": "rolled back",
    "pause": "paused",
    "resume": "resumed",
    "delete": "deleted",
}


def change_schedules(ctx: Context, state: ShardState, command: ScheduleCommand) -> Generator[str, None, bool]:
    """Carry out a change; returns False where it has to stay in the inbox for another round."""
    with state.active():
        diversions = state.diversions
    schedules = {one.name: one for one in ctx.store.schedules_named(ctx.shard, command.names)}
    yield "schedules found"
    pending: dict[int, list[tuple[Run, TaskRow]]] = {}
    if schedules and command.do not in ("create", "resume"):
        for found in ctx.store.runs_of(ctx.shard, [one.id for one in schedules.values()], True, ALL):
            pending.setdefault(found[0].schedule, []).append(found)
        yield "occurrences found"
    with state.active():
        if state.may_be_diverted((row for found in pending.values() for _, (_, row) in found), diversions):
            return False
        work = UnitOfWork(state, ctx.clock.now_ms())
        results = {name: _change(work, command, name, schedules.get(name), pending) for name in command.names}
        work.answer(command.item_id, command.answer_to, results)
        work.reserve()
    yield "reserved"
    if (yield from commit_command(ctx, work, command.item_id)):
        state.agenda.reopen()
        ctx.stats.add(cancelled=len(work.rows))
    return True


#: Occurrences are made shortly before their instants, so there are few pending ones, unless their queue is paused.
ALL = 2**31 - 1


def _change(
    work: UnitOfWork,
    command: ScheduleCommand,
    name: str,
    schedule: Schedule | None,
    pending: Mapping[int, Pending],
) -> Result:
    if command.do == "create":
        return _create(work, command, name) if schedule is None else ALREADY
    if schedule is None:
        return UNKNOWN
    change = _Alteration(work, command, schedule, pending.get(schedule.id, ()))
    doing: Mapping[str, Callable[[], Result]] = {
        **dict.fromkeys(DEFINING, change.update),
        "pause": change.pause,
        "resume": change.resume,
        "delete": change.delete,
    }
    return doing[command.do]()


def _create(work: UnitOfWork, command: ScheduleCommand, name: str) -> Result:
    if rule := text_rule(name):
        return _refused(f"a name must be {rule}, got {name!r:.60}")
    try:
        text = to_text(command.definitions[name])
        next_ms = read_definition(text).recurrence.next_after(work.now_ms)
    except RecurrenceError as error:
        return _refused(str(error))
    schedule = Schedule(work.state.next_seq(), name, text, command.source, 1, next_ms)
    work.change.schedules.append(schedule)
    _add_revision(work, command, schedule, "")
    return DONE


def _refused(reason: str) -> Result:
    return {"result": "refused", "reason": reason}


def _add_revision(work: UnitOfWork, command: ScheduleCommand, schedule: Schedule, before: str) -> None:
    number, what = schedule.revision, _WHAT[command.do]
    work.change.revisions.append(
        Revision(schedule.id, number, schedule.name, what, command.actor, command.reason, work.now_ms, before)
    )


@dataclass(slots=True)
class _Alteration:
    """A change of one schedule."""

    work: UnitOfWork
    command: ScheduleCommand
    schedule: Schedule
    pending: Pending

    def update(self) -> Result:
        work, schedule, document = self.work, self.schedule, self.command.definitions[self.schedule.name]
        try:
            text = to_text(document)
            recurrence = read_definition(text).recurrence
            if text == schedule.definition and not schedule.broken:
                return ALREADY
            recurrence.next_after(work.now_ms, schedule.made)
        except RecurrenceError as error:
            return _refused(str(error))
        withdrawn, too_late = self._withdraw([one for one in self.pending if one[0].instant_ms > work.now_ms])
        made, after_ms = schedule.made - len(withdrawn), self._published_upto(too_late)
        work.change.skips += self._unmade(unmade_since(schedule, work.now_ms), MISSED)
        next_ms = None
        if not schedule.paused:
            next_ms = recurrence.next_after(after_ms, made)
        repaired: dict[str, Any] = {} if schedule.paused else {"broken": False, "note": "", "since_ms": None}
        self._write(definition=text, next_ms=next_ms, made=made, **repaired)
        return _done(too_late)

    def pause(self) -> Result:
        work, schedule = self.work, self.schedule
        if schedule.paused:
            return ALREADY
        withdrawn, too_late = self._withdraw([one for one in self.pending if not one[0].requested])
        past = sorted({run.instant_ms for run in withdrawn if run.instant_ms <= work.now_ms})
        work.change.skips += [Skip(schedule.id, at_ms, at_ms, 1, PAUSED, work.now_ms) for at_ms in past]
        since_ms = unmade_since(schedule, work.now_ms) if schedule.since_ms is None else schedule.since_ms
        self._write(
            paused=True,
            note=self.command.reason,
            next_ms=None,
            made=schedule.made - sum(run.instant_ms > work.now_ms for run in withdrawn),
            since_ms=max(since_ms, self._published_upto(too_late)) if since_ms == work.now_ms else since_ms,
        )
        return _done(too_late)

    def resume(self) -> Result:
        work, schedule = self.work, self.schedule
        if not schedule.paused and not schedule.broken:
            return ALREADY
        since_ms = work.now_ms if schedule.since_ms is None else schedule.since_ms
        try:
            recurrence = read_definition(schedule.definition).recurrence
            next_ms = recurrence.next_after(max(work.now_ms, since_ms), schedule.made)
        except RecurrenceError as error:
            return _refused(str(error))
        work.change.skips += self._unmade(since_ms, PAUSED if schedule.paused else MISSED)
        self._write(paused=False, broken=False, note="", since_ms=None, next_ms=next_ms)
        return DONE

    def delete(self) -> Result:
        _, too_late = self._withdraw(self.pending)
        self.work.change.removed_schedules.append(self.schedule.id)
        _add_revision(
            self.work, self.command, replace(self.schedule, revision=self.schedule.revision + 1), self._before()
        )
        return _done(too_late)

    def _withdraw(self, pending: Pending) -> tuple[list[Run], list[int]]:
        """Cancel pending occurrences; returns their runs, and the instants of those that may have been published."""
        why = Retirement("cancelled", self._reason(), self.command.actor)
        withdrawn, too_late = [], []
        for run, (_, row) in pending:
            if self.work.take_out(row):
                self.work.cancel(row, why)
                withdrawn.append(run)
            else:
                too_late.append(run.instant_ms)
        return withdrawn, sorted(too_late)

    def _published_upto(self, too_late: list[int]) -> int:
        """Return the last instant that may have been published: now, unless due time has gone back.

        A row that a user has moved was published for the user, and not for its instant.
        """
        of_instant = [run.instant_ms for run, (_, row) in self.pending if row.eta_ms == run.instant_ms]
        return max([self.work.now_ms, *(one for one in of_instant if one in too_late)])

    def _reason(self) -> str:
        reason = f"its schedule {self.schedule.name} was {_WHAT[self.command.do]}"
        return f"{reason}: {self.command.reason}" if self.command.reason else reason

    def _unmade(self, since_ms: int, reason: str) -> list[Skip]:
        """Return the skips of the instants since one, up to now, of the definition as it was."""
        try:
            recurrence = read_definition(self.schedule.definition).recurrence
            return skips_between(self.schedule.id, recurrence, since_ms, self.work.now_ms, reason)
        except RecurrenceError:
            return []  # it cannot be told which instants they were

    def _write(self, **changes: Any) -> None:
        changed = replace(self.schedule, revision=self.schedule.revision + 1, **changes)
        self.work.change.schedules.append(changed)
        _add_revision(self.work, self.command, changed, self._before())

    def _before(self) -> str:
        return json.dumps(asdict(self.schedule))


def _done(too_late: list[int]) -> Result:
    return {"result": "done", "too_late": too_late} if too_late else DONE
