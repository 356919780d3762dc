"""Work on a whole store: another number of shards, offline, in one transaction; its epochs; the marks of an archive.

::

    refuse      a shard that its holder did not give up (its last chunk may be in doubt), inbox items, open loads
    grow        new shards, empty, with numbers after every id of the store
    move        pending rows of another shard now: in order into its main lane, with new seqs; their watches follow
                a row that its shard has already is removed: a broker that was restored from before a resharding
                delivered the message to its former shard once more; one whose id another task has there gets an id
                of its own
    schedules   a schedule to the shard of its name, with its skips and its pending rows; its definition stays
    spread      tombstones and gates to every shard: a message that is still to be accepted may belong to any shard
    shrink      the removed shards go with their history and their answers
                with ``archived_only`` it is refused to remove history, or to move a task with history, that is not
                archived

Promises: tasks with one key stay in one shard, in their order. No pending task is lost, and none is dispatched earlier.
Dispatched rows stay in their shard, with their numbers and its mark: pending tasks do not concern an archive.
Non-promises: the wheel queues are not read; the caller must see that those of removed shards are empty.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    tuple_,
    union_all,
    update,
)

from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.store.model import DAY_MS, HOUR_MS, OPEN, SHARD_BITS, TallyKey
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.changes import recount
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.holding import SILENT_MS, live_schedulers
from celery_wheel.store.sql.loads import unfinished_in
from celery_wheel.store.sql.schema import (
    answer,
    audit,
    batch,
    gate,
    inbox,
    lane,
    outcome,
    route,
    schedule,
    schedule_run,
    schedule_skip,
    shard,
    snapshot,
    tally,
    timer,
    tombstone,
    total,
    watch,
)
from celery_wheel.store.sql.upkeep import new_shard, store_row, update_store
from celery_wheel.store.store_model import ARCHIVE, EPOCH_LEAP, Archivable, Resharded, ShardOf, Unarchived
from celery_wheel.values.ids import id_beside

#: Rows moved at a time.
ROWS_AT_ONCE = 5_000

_NUMBER: Any = bindparam("number")
_SHARDS: Any = bindparam("shards", expanding=True)
_OFFSET = tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
_WATERMARK = tuple_(lane.c.watermark_due_ms, lane.c.watermark_seq)

# -- may the store be resharded? --------------------------------------------------------------------

#: Locks every shard's row, and fences every holder.
FENCE_ALL = update(shard).values(epoch=shard.c.epoch + 1)
HOLDERS = select(shard.c.shard, shard.c.holder).where(shard.c.holder.is_not(None))
LANES_IN_DOUBT = select(lane.c.shard).where(lane.c.shard.in_(_SHARDS), _OFFSET < _WATERMARK)
ANY_INBOX_ITEM = select(inbox.c.id).limit(1)

#: One of the shards with a settlement, or with an outcome, that is not archived.
UNARCHIVED = [
    select(table.c.shard)
    .join(shard, and_(shard.c.shard == table.c.shard, table.c.id > shard.c.archived))
    .where(table.c.shard.in_(_SHARDS))
    .limit(1)
    for table in (batch, outcome)
]

_END = tuple_(batch.c.to_due_ms, batch.c.to_seq)
#: A shard with a settlement that is not archived and whose rows are pending again, after a rollback.
UNARCHIVED_ROLLBACK = (
    select(batch.c.shard)
    .join(lane, and_(lane.c.shard == batch.c.shard, lane.c.lane == batch.c.lane, _END > _OFFSET))
    .join(shard, and_(shard.c.shard == batch.c.shard, batch.c.id > shard.c.archived))
    .limit(1)
)

# -- move -------------------------------------------------------------------------------------------

HIGHEST_NUMBERS = union_all(select(func.max(shard.c.seq)), select(func.max(timer.c.id)))
SEQS = select(shard.c.shard, shard.c.seq)
SET_SEQ = update(shard).where(shard.c.shard == _NUMBER).values(seq=bindparam("highest"))
MAIN_WATERMARKS = select(lane.c.shard, lane.c.watermark_due_ms).where(lane.c.lane == 0)

_KEY = (timer.c.due_ms, timer.c.seq)
_PLACE = tuple_(*_KEY)
_IS_UNPUBLISHED = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane, _PLACE > _WATERMARK)
#: A shard's rows after the watermarks of their lanes, in order of position; an occurrence with its schedule's name.
ROWS_TO_MOVE = (
    select(timer.c.id, *_KEY, timer.c.key, timer.c.task_id, timer.c.envelope_id, route.c.target, route.c.task)
    .add_columns(schedule.c.name.label("schedule"))
    .select_from(timer)
    .join(route, route.c.id == timer.c.route)
    .join(lane, _IS_UNPUBLISHED)
    .outerjoin(schedule_run, schedule_run.c.timer_id == timer.c.id)
    .outerjoin(schedule, schedule.c.id == schedule_run.c.schedule)
    .where(timer.c.shard == _NUMBER, tuple_(bindparam("after_due_ms"), bindparam("after_seq")) < _PLACE)
    .order_by(*_KEY)
    .limit(bindparam("limit"))
)

_PLACE_IN_SHARD = {"shard": bindparam("to"), "lane": 0, "due_ms": bindparam("due"), "seq": bindparam("new")}
MOVE_ROW = update(timer).where(timer.c.id == bindparam("moved")).values(**_PLACE_IN_SHARD)
MOVE_WATCHES = update(watch).where(watch.c.timer_id == bindparam("moved")).values(shard=bindparam("to"))

_ENVELOPES: Any = bindparam("envelopes", expanding=True)
#: The envelope ids of messages that the shard ``to`` has already, with their tasks' ids.
PRESENT = select(timer.c.envelope_id, timer.c.task_id).where(
    timer.c.shard == bindparam("to"), timer.c.envelope_id.in_(_ENVELOPES)
)
RENAME_ROW = update(timer).where(timer.c.id == bindparam("renamed")).values(envelope_id=bindparam("own"))
_REMOVED: Any = bindparam("removed")
REMOVE_DOUBLED = [
    delete(table).where(column == _REMOVED)
    for table, column in ((watch, watch.c.timer_id), (schedule_run, schedule_run.c.timer_id), (timer, timer.c.id))
]

#: A shard's schedules in the order of their ids.
SCHEDULES_TO_MOVE = (
    select(schedule.c.id, schedule.c.name)
    .where(schedule.c.shard == _NUMBER, schedule.c.id > bindparam("after"))
    .order_by(schedule.c.id)
    .limit(bindparam("limit"))
)
MOVE_SCHEDULE = update(schedule).where(schedule.c.id == bindparam("moved")).values(shard=bindparam("to"))
MOVE_SKIPS = update(schedule_skip).where(schedule_skip.c.schedule == bindparam("moved")).values(shard=bindparam("to"))

#: Tables whose rows every shard gets: (table, the columns that name a row, the column that says which is the latest).
SPREAD: tuple[tuple[Table, tuple[str, ...], str], ...] = (
    (tombstone, ("task_id",), "until_ms"),
    (gate, ("scope", "name"), "at_ms"),
)


def spread_rows(table: Table, latest: str) -> Select[Any]:
    columns = [column for column in table.c if column.name not in ("id", "shard")]
    return select(table.c.shard, *columns).order_by(table.c[latest], table.c.id)


# -- shrink -----------------------------------------------------------------------------------------

#: The audit log stays: the first shard forgets the entries of a removed one.
KEEP_AUDIT = update(audit).where(audit.c.shard == _NUMBER).values(shard=0)
_TIMERS = select(timer.c.id).where(timer.c.shard == _NUMBER)
REMOVE_RUNS = delete(schedule_run).where(schedule_run.c.timer_id.in_(_TIMERS))
REMOVE_TIMERS = delete(timer).where(timer.c.shard == _NUMBER)
#: A shard's rows in every other table, and its own row.
REMOVE_OTHERS = [
    delete(table).where(table.c.shard == _NUMBER)
    for table in (watch, answer, tombstone, gate, outcome, batch, tally, total, schedule_skip, lane, snapshot, shard)
]


class _Resharding:
    def __init__(self, connection: Connection, database: Database, shards: int, shard_of: ShardOf, now_ms: int) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._name = database.name
        self._statements = database.statements
        self._catalogue = Catalogue(database)
        self._shard_of = shard_of
        self._now_ms = now_ms
        before: int = self._execute(store_row("shards")).scalar_one()
        self._done = Resharded(before, shards, added=[*range(before, shards)], removed=[*range(shards, before)])
        self._counters: dict[int, int] = {}
        #: Shard → earliest due time of a row that is moved to it: an earlier one would be before its watermark.
        self._floors: dict[int, int] = {}

    def run(self, *, archived_only: bool) -> Resharded:
        self._execute(FENCE_ALL)
        self._check()
        if archived_only:
            self._check_archived()
        self._grow()
        self._move()
        self._move_schedules()
        self._spread()
        self._shrink()
        self._execute(update_store(shards=self._done.after))
        return self._done

    # -- refuse ------------------------------------------------------------------------------------

    def _check(self) -> None:
        if names := live_schedulers(self._connection, self._statements, self._now_ms - SILENT_MS):
            self._refuse(f"a scheduler is at work ({', '.join(names)})", "stop all schedulers (SIGTERM)")
        for number, holder in self._execute(HOLDERS).all():
            self._refuse(
                f"shard {number} was not given up by its last holder, {holder}, so some of its tasks may have been "
                "dispatched without the store knowing",
                "start a scheduler, wait until it holds all shards, and stop it (SIGTERM)",
            )
        for number in self._execute(LANES_IN_DOUBT, {"shards": self._done.removed}).scalars():
            self._refuse(
                f"some tasks of shard {number} are in doubt: they may have been dispatched",
                "start a scheduler while the broker is reachable, and stop it",
            )
        if self._execute(ANY_INBOX_ITEM).first():
            self._refuse("its inbox has items", "start a scheduler, which empties it, and stop the scheduler")
        for one in unfinished_in(self._connection):
            remedy = "end it" if one.state == OPEN else "start a scheduler, which accepts it, and stop the scheduler"
            self._refuse(f"the load {one.name!r} is {one.state}", remedy)

    def _check_archived(self) -> None:
        for query in UNARCHIVED:
            for number in self._execute(query, {"shards": self._done.removed}).scalars():
                self._refuse(f"shard {number} has history that is not archived and would be removed", ARCHIVE)
        for number in self._execute(UNARCHIVED_ROLLBACK).scalars():
            self._refuse(
                f"tasks of shard {number} were dispatched and are pending again, and their dispatch is not archived",
                ARCHIVE,
            )

    def _refuse(self, reason: str, remedy: str) -> None:
        raise StoreUnusable(f"the store {self._name} cannot be resharded: {reason}; nothing was changed; {remedy}")

    # -- grow --------------------------------------------------------------------------------------

    def _grow(self) -> None:
        highest = max(number or 0 for number in self._execute(HIGHEST_NUMBERS).scalars())
        for number in self._done.added:
            # The store may have had a shard of this number, whose ids and epochs must not be used again. A clock is
            # ahead of every epoch that was counted up.
            seq = (highest >> SHARD_BITS) + 1 << SHARD_BITS | number
            # The shard has no history up to its seq, and a mark is never lowered.
            for statement in new_shard(number, epoch=self._now_ms, seq=seq, archived=seq):
                self._execute(statement)

    # -- move --------------------------------------------------------------------------------------

    def _move(self) -> None:
        self._counters = {number: seq >> SHARD_BITS for number, seq in self._execute(SEQS)}
        self._floors = {row.shard: row.watermark_due_ms for row in self._execute(MAIN_WATERMARKS)}
        for number in range(self._done.before):
            for rows in self._pending(number):
                self._place(number, rows)
        for number, count in self._counters.items():
            self._execute(SET_SEQ, {"number": number, "highest": count << SHARD_BITS | number})

    def _pending(self, number: int) -> Iterator[Sequence[Any]]:
        """Yield a shard's rows after the watermarks, in order, a page at a time; moved rows have left the shard."""
        values = {"number": number, "after_due_ms": -1, "after_seq": -1, "limit": ROWS_AT_ONCE}
        while rows := self._execute(ROWS_TO_MOVE, values).all():
            values |= {"after_due_ms": rows[-1].due_ms, "after_seq": rows[-1].seq}
            yield rows

    def _place(self, number: int, rows: Sequence[Any]) -> None:
        moves, counts = list[dict[str, int]](), defaultdict[int, Counter[TallyKey]](Counter)
        leaving = defaultdict[int, list[Any]](list)
        for row in rows:
            to = self._shard_of(row.schedule or row.key, row.task_id, self._done.after)
            if to != number:
                leaving[to].append(row)
        for to, row in self._once_each(number, leaving, counts):
            self._counters[to] += 1
            due_ms = max(row.due_ms, self._floors[to])
            moves.append({"moved": row.id, "to": to, "due": due_ms, "new": self._counters[to] << SHARD_BITS | to})
            counts[number][TallyKey(row.due_ms // HOUR_MS, row.target, row.task)] -= 1
            counts[to][TallyKey(due_ms // HOUR_MS, row.target, row.task)] += 1
        if moves:
            self._execute(MOVE_ROW, moves)
            # A unique key holds within a shard, and the tasks of a key share one: watches follow their timers.
            self._execute(MOVE_WATCHES, [{"moved": move["moved"], "to": move["to"]} for move in moves])
        for at, more in counts.items():
            recount(self._connection, self._statements, self._catalogue, at, more)
        self._done.moved += len(moves)

    def _once_each(
        self, number: int, leaving: Mapping[int, list[Any]], counts: Mapping[int, Counter[TallyKey]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (shard to move to, row); remove the rows that are in that shard already."""
        for to, rows in leaving.items():
            doubled = self._present(to, {row.envelope_id: row for row in rows})
            if doubled:
                ids = [{"removed": row.id} for row in doubled]
                for query in REMOVE_DOUBLED:
                    self._execute(query, ids)
                counts[number].subtract(TallyKey(row.due_ms // HOUR_MS, row.target, row.task) for row in doubled)
                self._done.doubled += len(doubled)
            removed = {row.id for row in doubled}
            yield from ((to, row) for row in rows if row.id not in removed)

    def _present(self, to: int, rows: Mapping[str, Any]) -> list[Any]:
        """Return the rows that a shard has already; rows whose id another task has there get ids of their own.

        Args:
            rows: by the envelope ids with which they would move.
        """
        found = dict(self._execute(PRESENT, {"to": to, "envelopes": list(rows)}).all())
        doubled = [rows[id_] for id_, task_id in found.items() if rows[id_].task_id == task_id]
        others = {id_beside(id_, rows[id_].task_id): rows[id_] for id_ in found if rows[id_].task_id != found[id_]}
        if others:
            self._execute(RENAME_ROW, [{"renamed": row.id, "own": own} for own, row in others.items()])
            doubled += self._present(to, others)
        return doubled

    def _move_schedules(self) -> None:
        for number in range(self._done.before):
            values = {"number": number, "after": -1, "limit": ROWS_AT_ONCE}
            while rows := self._execute(SCHEDULES_TO_MOVE, values).all():
                values |= {"after": rows[-1].id}
                to = [(row.id, self._shard_of(row.name, "", self._done.after)) for row in rows]
                moves = [{"moved": id_, "to": shard} for id_, shard in to if shard != number]
                if moves:
                    self._execute(MOVE_SCHEDULE, moves)
                    self._execute(MOVE_SKIPS, moves)

    # -- spread, shrink ----------------------------------------------------------------------------

    def _spread(self) -> None:
        """Copy each tombstone and gate to the shards that do not have it; of several, the latest is copied."""
        for table, names, latest in SPREAD:
            rows = self._execute(spread_rows(table, latest)).mappings().all()
            last = {tuple(row[name] for name in names): dict(row) for row in rows}
            present = {(row["shard"], *(row[name] for name in names)) for row in rows}
            missing = [
                {**row, "shard": shard}
                for place, row in last.items()
                for shard in range(self._done.after)
                if (shard, *place) not in present
            ]
            if missing:
                self._execute(insert(table), missing)

    def _shrink(self) -> None:
        for number in self._done.removed:
            self._execute(KEEP_AUDIT, {"number": number})
            self._execute(REMOVE_RUNS, {"number": number})
            self._done.forgotten += self._execute(REMOVE_TIMERS, {"number": number}).rowcount
            for query in REMOVE_OTHERS:
                self._execute(query, {"number": number})
        if self._done.removed:  # ``_grow`` starts at the highest number of the store, which must not sink
            self._execute(SET_SEQ, {"number": 0, "highest": max(self._counters.values()) << SHARD_BITS})


# -- an archive: an event is a settlement or an outcome -------------------------------------------------------

_EVENTS = ((batch, batch.c.dispatched_ms, func.sum(batch.c.count)), (outcome, outcome.c.at_ms, func.count()))

MARKS = select(shard.c.shard, shard.c.seq, shard.c.forgotten, shard.c.archived).order_by(shard.c.shard)

#: Raises the mark of ``number``; a lower mark changes nothing.
RAISE_MARK = (
    update(shard)
    .where(and_(shard.c.shard == bindparam("number"), shard.c.archived < bindparam("mark")))
    .values(archived=bindparam("mark"))
)

#: The instant of a shard's first settlement, and of its first outcome, after a number.
FIRST_EVENTS = [
    select(at_ms)
    .where(table.c.shard == bindparam("number"), table.c.id > bindparam("after"))
    .order_by(table.c.id)
    .limit(1)
    for table, at_ms, _ in _EVENTS
]

#: (day, events) of a shard's settlements, and of its outcomes, with numbers in (after, upto].
EVENTS_BY_DAY = [
    select(at_ms.op("/")(DAY_MS).label("day"), count)
    .where(table.c.shard == bindparam("number"), table.c.id > bindparam("after"), table.c.id <= bindparam("upto"))
    .group_by("day")
    for table, at_ms, count in _EVENTS
]


class SqlMaintenance:
    def __init__(self, database: Database) -> None:
        self._database = database

    def reshard(self, shards: int, shard_of: ShardOf, now_ms: int, *, archived_only: bool = False) -> Resharded:
        """Give the store ``shards`` shards, in one transaction.

        Raises StoreUnusable, with the remedy, where that is impossible now.

        Args:
            archived_only: refuse where history would be removed that is not archived.
        """
        if not 1 <= shards <= 2**SHARD_BITS:
            raise SettingError(f"wheel_shards must be from 1 to {2**SHARD_BITS}, got {shards}")
        with self._database.writing() as connection:
            resharding = _Resharding(connection, self._database, shards, shard_of, now_ms)
            return resharding.run(archived_only=archived_only)

    def leap(self) -> None:
        """Raise every shard's epoch by EPOCH_LEAP, durably: the store goes on at a new place."""
        with self._database.writing(durable=True) as connection:
            connection.execute(update(shard).values(epoch=shard.c.epoch + EPOCH_LEAP))

    def note_archived(self, marks: Mapping[int, int]) -> None:
        """Raise each shard's mark to the number up to which an archive has all history; never lower it.

        Durable, since an archive recognises a restored store by a mark that is lower than its own.
        """
        with self._database.writing(durable=True) as connection:
            for number, mark in sorted(marks.items()):
                connection.execute(RAISE_MARK, {"number": number, "mark": mark})

    def unarchived(self) -> list[Unarchived]:
        """Return the oldest event after its mark for each shard that has one."""
        found = []
        with self._database.snapshot() as connection:
            for row in connection.execute(MARKS).all():
                at_ms = _first_after(connection, row.shard, row.archived)
                if at_ms is not None:
                    found.append(Unarchived(row.shard, row.archived, at_ms))
        return found

    def archivable(self, after: Mapping[int, int]) -> list[Archivable]:
        """Return all shards in order, at one moment.

        Args:
            after: shard → number after which events are counted; a missing shard counts from 0.
        """
        with self._database.snapshot() as connection:
            return [
                Archivable(
                    shard=row.shard,
                    seq=row.seq,
                    forgotten=row.forgotten,
                    archived=row.archived,
                    first_ms=_first_after(connection, row.shard, row.forgotten),
                    days=_days(connection, row.shard, after.get(row.shard, 0), row.seq),
                )
                for row in connection.execute(MARKS).all()
            ]


def _first_after(connection: Connection, shard: int, number: int) -> int | None:
    """Return the instant of a shard's first event after the number; None where it has none."""
    instants = [connection.scalar(query, {"number": shard, "after": number}) for query in FIRST_EVENTS]
    return min((at_ms for at_ms in instants if at_ms is not None), default=None)


def _days(connection: Connection, shard: int, after: int, upto: int) -> dict[int, int]:
    found = Counter[int]()
    for query in EVENTS_BY_DAY:
        for day, events in connection.execute(query, {"number": shard, "after": after, "upto": upto}):
            found[day] += int(events)
    return dict(found)
