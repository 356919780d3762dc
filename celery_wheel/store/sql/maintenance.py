"""Work on a whole store: another number of shards, offline, in one transaction; its epochs; the marks of an archive.

::

    refuse      a shard that its holder did not give up (its last chunk may be in doubt), inbox items, open loads,
                bulk actions that are not over
    grow        new shards, empty, with numbers after every id of the store
    move        pending rows of another shard now: in order into its main lane, with new seqs; their watches follow
                a row that its shard has already is removed: a restored broker delivered it to the former shard too
    schedules   a schedule to the shard of its name, with its skips and those pending rows that are of no group; its
                definition stays; if it is of a group, it moves on with its next occurrence
    groups      an open run of a group, the group's own limits and its used rate, to the shard of the group
    spread      tombstones and gates to every shard: a message that is still to be accepted may belong to any shard
    shrink      the removed shards go with their history and answers; not with ``archived_only`` and other history.
                Their chains of the audit log stay

Promises: tasks with one key stay in one shard, in their order. No pending task is lost, and none is dispatched earlier.
Non-promises: the wheel queues are not read; the caller must see that those of removed shards are empty.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    not_,
    select,
    tuple_,
    update,
)

from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.store.audit_model import STORE, AuditEntry, Operator, store_entry
from celery_wheel.store.bulk_model import RUNNING, STOPPED
from celery_wheel.store.model import DAY_MS, FIRST_TIME, HOUR_MS, OPEN, SHARD_BITS, TallyKey
from celery_wheel.store.sql.audit import append
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.changes import recount
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.groups import subtract_waiting
from celery_wheel.store.sql.holding import SILENT_MS, live_schedulers
from celery_wheel.store.sql.loads import unfinished_in
from celery_wheel.store.sql.schedules import may_have_slot
from celery_wheel.store.sql.schema import (
    answer,
    bulk,
    gate,
    inbox,
    lane,
    limit,
    line,
    outcome,
    rate,
    route,
    run,
    schedule,
    schedule_skip,
    settlement,
    shard,
    snapshot,
    tally,
    timer,
    tombstone,
    total,
    watch,
)
from celery_wheel.store.sql.upkeep import count_rows_by_route, new_shard, store_row, update_store
from celery_wheel.store.store_model import ARCHIVE, EPOCH_LEAP, Archivable, Resharded, ShardOf, Unarchived
from celery_wheel.values.ids import id_beside

#: Rows moved at a time.
ROWS_AT_ONCE = 5_000

_KEY = (timer.c.due_ms, timer.c.seq)
_OFFSET = tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
_WATERMARK = tuple_(lane.c.watermark_due_ms, lane.c.watermark_seq)

#: Tables whose rows every shard gets: (table, the columns that name a row, the column that says which is the latest).
SPREAD: tuple[tuple[Table, tuple[str, ...], str], ...] = (
    (tombstone, ("task_id",), "until_ms"),
    (gate, ("scope", "name"), "at_ms"),
)

#: The tables in which a removed shard has rows, with its own row, beside those of its timers and their runs.
OF_SHARD = (
    *(watch, answer, tombstone, gate, outcome, settlement, tally, total),
    *(schedule_skip, line, limit, rate, lane, snapshot, shard),
)


class _Resharding:
    def __init__(
        self,
        connection: Connection,
        database: Database,
        catalogue: Catalogue,
        shards: int,
        shard_of: ShardOf,
        now_ms: int,
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._name = database.name
        self._statements = database.statements
        self._catalogue = catalogue
        self._shard_of = shard_of
        self._now_ms = now_ms
        before: int = self._execute(store_row("shards")).scalar_one()
        self._done = Resharded(before, shards, added=[*range(before, shards)], removed=[*range(shards, before)])
        self._counters: dict[int, int] = {}
        #: Shard → earliest due time of a row that is moved to it: an earlier one would be before its watermark.
        self._floors: dict[int, int] = {}

    def run(self, *, archived_only: bool) -> Resharded:
        # Locks every row, and fences every holder. A shard gets rows of others, packed by any dictionary.
        self._execute(update(shard).values(epoch=shard.c.epoch + 1, packing=0))
        self._check()
        if archived_only:
            self._check_archived()
        self._grow()
        self._move()
        self._move_schedules()
        self._move_groups()
        self._spread()
        self._shrink()
        self._count_routes()
        self._execute(update_store(shards=self._done.after))
        return self._done

    def _check(self) -> None:
        if names := live_schedulers(self._connection, self._statements, self._now_ms - SILENT_MS):
            self._refuse(f"a scheduler is at work ({', '.join(names)})", "stop all schedulers (SIGTERM)")
        for number, holder in self._execute(select(shard.c.shard, shard.c.holder).where(shard.c.holder.is_not(None))):
            self._refuse(
                f"shard {number} was not given up by its last holder, {holder}, so some of its tasks may have been "
                "dispatched without the store knowing",
                "start a scheduler, wait until it holds all shards, and stop it (SIGTERM)",
            )
        in_doubt = select(lane.c.shard).where(lane.c.shard.in_(self._done.removed), _OFFSET < _WATERMARK)
        for number in self._execute(in_doubt).scalars():
            self._refuse(
                f"some tasks of shard {number} are in doubt: they may have been dispatched",
                "start a scheduler while the broker is reachable, and stop it",
            )
        again = and_(timer.c.line.is_not(None), timer.c.line.bitwise_and(FIRST_TIME) == 0)
        for number in self._execute(select(timer.c.shard).where(again).distinct()).scalars():
            self._refuse(
                f"some tasks of shard {number} that wait for their group may have been dispatched before",
                "start a scheduler, and stop it once they are dispatched",
            )
        if self._execute(select(inbox.c.id).limit(1)).first():
            self._refuse("its inbox has items", "start a scheduler, which empties it, and stop the scheduler")
        unended = select(bulk.c.action).where(bulk.c.state.in_((RUNNING, STOPPED))).limit(1)
        if (action := self._connection.scalar(unended)) is not None:
            self._refuse(f"the bulk action {action} is not over", "let a scheduler finish it, or discard it")
        for one in unfinished_in(self._connection):
            remedy = "end it" if one.state == OPEN else "start a scheduler, which accepts it, and stop the scheduler"
            self._refuse(f"the load {one.name!r} is {one.state}", remedy)

    def _check_archived(self) -> None:
        for table in (settlement, outcome):
            unarchived = and_(shard.c.shard == table.c.shard, table.c.id > shard.c.archived)
            found = select(table.c.shard).join(shard, unarchived).where(table.c.shard.in_(self._done.removed))
            for number in self._execute(found.limit(1)).scalars():
                self._refuse(f"shard {number} has history that is not archived and would be removed", ARCHIVE)
        # Again, after a rollback of the broker.
        is_pending = tuple_(settlement.c.to_due_ms, settlement.c.to_seq) > _OFFSET
        rolled_back = (
            select(settlement.c.shard)
            .join(lane, and_(lane.c.shard == settlement.c.shard, lane.c.lane == settlement.c.lane, is_pending))
            .join(shard, and_(shard.c.shard == settlement.c.shard, settlement.c.id > shard.c.archived))
        )
        for number in self._execute(rolled_back.limit(1)).scalars():
            self._refuse(
                f"tasks of shard {number} were dispatched and are pending again, and their dispatch is not archived",
                ARCHIVE,
            )

    def _refuse(self, reason: str, remedy: str) -> None:
        raise StoreUnusable(f"the store {self._name} cannot be resharded: {reason}; nothing was changed; {remedy}")

    def _grow(self) -> None:
        highest = max(self._connection.scalar(select(func.max(one))) or 0 for one in (shard.c.seq, timer.c.id))
        for number in self._done.added:
            # The store may have had a shard of this number, whose ids and epochs must not be used again. A clock is
            # ahead of every epoch that was counted up.
            seq = (highest >> SHARD_BITS) + 1 << SHARD_BITS | number
            # The shard has no history up to its seq, and a mark is never lowered.
            for statement in new_shard(number, epoch=self._now_ms, seq=seq, archived=seq):
                self._execute(statement)

    def _move(self) -> None:
        seqs = self._execute(select(shard.c.shard, shard.c.seq))
        self._counters = {number: seq >> SHARD_BITS for number, seq in seqs}
        main = select(lane.c.shard, lane.c.watermark_due_ms).where(lane.c.lane == 0)
        self._floors = {row.shard: row.watermark_due_ms for row in self._execute(main)}
        for number in range(self._done.before):
            for rows in self._pending(number):
                self._place(number, rows)
        for number, count in self._counters.items():
            self._set_seq(number, count << SHARD_BITS | number)

    def _pending(self, number: int) -> Iterator[Sequence[Any]]:
        """Yield a shard's rows after the watermarks, in order, a page at a time; moved rows have left the shard."""
        place, after = tuple_(*_KEY), (-1, -1)
        is_unpublished = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane, place > _WATERMARK)
        found = (
            select(timer.c.id, *_KEY, timer.c.key, timer.c.task_id, timer.c.envelope_id, route.c.target, route.c.task)
            .add_columns(timer.c.line, timer.c.group, schedule.c.name.label("schedule"))  # that of an occurrence
            .select_from(timer)
            .join(route, route.c.id == timer.c.route)
            .join(lane, is_unpublished)
            .outerjoin(run, run.c.timer_id == timer.c.id)
            .outerjoin(schedule, schedule.c.id == run.c.schedule)
            .order_by(*_KEY)
            .limit(ROWS_AT_ONCE)
        )
        while rows := self._execute(found.where(timer.c.shard == number, place > tuple_(*after))).all():
            after = rows[-1].due_ms, rows[-1].seq
            yield rows

    def _place(self, number: int, rows: Sequence[Any]) -> None:
        moves, counts = list[dict[str, int]](), defaultdict[int, Counter[TallyKey]](Counter)
        leaving = defaultdict[int, list[Any]](list)
        for row in rows:
            to = self._shard_of(row.group or row.schedule or row.key, row.task_id, self._done.after)
            if to != number:
                leaving[to].append(row)
        for to, row in self._once_each(number, leaving, counts):
            self._counters[to] += 1
            due_ms = max(row.due_ms, self._floors[to])
            moves.append({"moved": row.id, "to": to, "due": due_ms, "new": self._counters[to] << SHARD_BITS | to})
            counts[number][TallyKey(row.due_ms // HOUR_MS, row.target, row.task)] -= 1
            counts[to][TallyKey(due_ms // HOUR_MS, row.target, row.task)] += 1
        if moves:
            here = {"shard": bindparam("to"), "lane": 0, "due_ms": bindparam("due"), "seq": bindparam("new")}
            here["line"] = None
            self._execute(update(timer).where(timer.c.id == bindparam("moved")).values(**here), moves)
            # A unique key holds within a shard, and the tasks of a key share one: watches follow their timers.
            self._follow(watch, watch.c.timer_id, moves)
            self._follow(run, run.c.timer_id, moves)
        subtract_waiting(self._connection, number, [row.line for rows in leaving.values() for row in rows])
        for at, more in counts.items():
            recount(self._connection, self._statements, self._catalogue, at, more)
        self._done.moved += len(moves)

    def _follow(self, table: Table, column: ColumnElement[int], moves: Sequence[Mapping[str, int]]) -> None:
        """Move rows of a table to the shards of their timers or schedules."""
        values = [{"moved": move["moved"], "to": move["to"]} for move in moves]
        self._execute(update(table).where(column == bindparam("moved")).values(shard=bindparam("to")), values)

    def _once_each(
        self, number: int, leaving: Mapping[int, list[Any]], counts: Mapping[int, Counter[TallyKey]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (shard to move to, row); remove the rows that are in that shard already."""
        for to, rows in leaving.items():
            doubled = self._present(to, {row.envelope_id: row for row in rows})
            if doubled:
                ids = [{"removed": row.id} for row in doubled]
                for column in (watch.c.timer_id, run.c.timer_id, timer.c.id):
                    self._execute(delete(column.table).where(column == bindparam("removed")), ids)
                counts[number].subtract(TallyKey(row.due_ms // HOUR_MS, row.target, row.task) for row in doubled)
                self._done.doubled += len(doubled)
            removed = {row.id for row in doubled}
            yield from ((to, row) for row in rows if row.id not in removed)

    def _present(self, to: int, rows: Mapping[str, Any]) -> list[Any]:
        """Return the rows that a shard has already; rows whose id another task has there get ids of their own.
        ``rows`` are by the envelope ids with which they would move."""
        present = select(timer.c.envelope_id, timer.c.task_id)
        here = present.where(timer.c.shard == to, timer.c.envelope_id.in_(list(rows)))
        found = dict(self._execute(here).all())
        doubled = [rows[id_] for id_, task_id in found.items() if rows[id_].task_id == task_id]
        others = {id_beside(id_, rows[id_].task_id): rows[id_] for id_ in found if rows[id_].task_id != found[id_]}
        if others:
            own_id = update(timer).where(timer.c.id == bindparam("renamed")).values(envelope_id=bindparam("own"))
            self._execute(own_id, [{"renamed": row.id, "own": own} for own, row in others.items()])
            doubled += self._present(to, others)
        return doubled

    def _move_schedules(self) -> None:
        named = select(schedule.c.id, schedule.c.name).order_by(schedule.c.id).limit(ROWS_AT_ONCE)
        for number in range(self._done.before):
            after = -1
            while rows := self._execute(named.where(schedule.c.shard == number, schedule.c.id > after)).all():
                after = rows[-1].id
                to = [(row.id, self._shard_of(row.name, "", self._done.after)) for row in rows]
                moves = [{"moved": id_, "to": shard} for id_, shard in to if shard != number]
                if moves:
                    self._follow(schedule, schedule.c.id, moves)
                    self._follow(schedule_skip, schedule_skip.c.schedule, moves)

    def _move_groups(self) -> None:
        """Give the open runs of each group, its limits and its used rate to its shard, whose holder counts the runs;
        their rows are history, and stay."""
        for table, of_table in ((run, may_have_slot()), (limit, ())):
            groups = self._execute(select(table.c.group).where(*of_table).distinct()).scalars().all()
            to = update(table).where(*of_table, table.c.group == bindparam("of")).values(shard=bindparam("to"))
            if groups:
                shards = [{"of": one, "to": self._shard_of(one, "", self._done.after)} for one in groups]
                self._execute(to, shards)
        # Rows of occurrences and other rows of one group may have been in several shards.
        used = self._execute(select(rate.c.group, func.max(rate.c.empty_ms)).group_by(rate.c.group)).all()
        self._execute(delete(rate))
        if used:
            of = [(self._shard_of(name, "", self._done.after), name, at_ms) for name, at_ms in used]
            self._execute(insert(rate), [{"shard": to, "group": name, "empty_ms": at_ms} for to, name, at_ms in of])

    def _spread(self) -> None:
        """Copy each tombstone and gate to the shards that do not have it; of several, the latest is copied."""
        for table, names, latest in SPREAD:
            columns = [column for column in table.c if column.name not in ("id", "shard")]
            found = select(table.c.shard, *columns).order_by(table.c[latest], table.c.id)
            rows = self._execute(found).mappings().all()
            last = {tuple(row[name] for name in names): dict(row) for row in rows}
            present = {(row["shard"], *(row[name] for name in names)) for row in rows}
            wanted = product(last.items(), range(self._done.after))
            missing = [{**row, "shard": to} for (place, row), to in wanted if (to, *place) not in present]
            if missing:
                self._execute(insert(table), missing)

    def _shrink(self) -> None:
        for number in self._done.removed:
            timers = select(timer.c.id).where(timer.c.shard == number)
            self._execute(delete(run).where(run.c.timer_id.in_(timers), not_(and_(*may_have_slot()))))
            self._done.forgotten += self._execute(delete(timer).where(timer.c.shard == number)).rowcount
            for table in OF_SHARD:
                self._execute(delete(table).where(table.c.shard == number))
        if self._done.removed:  # ``_grow`` starts at the highest number of the store, which must not sink
            self._set_seq(0, max(self._counters.values()) << SHARD_BITS)

    def _count_routes(self) -> None:
        """Count the rows of each shard by their routes anew: they have moved, and doubled ones are removed."""
        self._execute(delete(total).where(total.c.kind == "route"))
        rows = select(timer.c.shard, literal("route"), timer.c.route, func.count()).group_by(
            timer.c.shard, timer.c.route
        )
        self._execute(insert(total).from_select(["shard", "kind", "number", "pending"], rows))
        for number in range(self._done.after):
            self._execute(count_rows_by_route(number))

    def _set_seq(self, number: int, highest: int) -> None:
        self._execute(update(shard).where(shard.c.shard == number).values(seq=highest))


#: Events are settlements and outcomes: (table, instant, number of events).
_EVENTS = (
    (settlement, settlement.c.dispatched_ms, func.sum(settlement.c.count)),
    (outcome, outcome.c.at_ms, func.count()),
)

_MARKS = select(shard.c.shard, shard.c.seq, shard.c.forgotten, shard.c.archived).order_by(shard.c.shard)


class SqlMaintenance:
    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database, self._catalogue = database, catalogue

    def reshard(
        self, shards: int, shard_of: ShardOf, now_ms: int, *, archived_only: bool = False, by: Operator | None = None
    ) -> Resharded:
        """Give the store ``shards`` shards, in one transaction. Raises StoreUnusable, with the remedy, where that is
        impossible now; with ``archived_only`` also where history would be removed that is not archived.

        ``by``: the person for the audit log; None: this process.
        """
        if not 1 <= shards <= 2**SHARD_BITS:
            raise SettingError(f"wheel_shards must be from 1 to {2**SHARD_BITS}, got {shards}")
        with self._database.writing() as connection:
            resharding = _Resharding(connection, self._database, self._catalogue, shards, shard_of, now_ms)
            done = resharding.run(archived_only=archived_only)
            counts = {"moved": done.moved, "doubled": done.doubled, "forgotten": done.forgotten}
            shards_of = {"before": done.before, "after": done.after}
            entry = store_entry("reshard", by, now_ms, {"store": {"result": "done", **counts}}, shards_of)
            append(connection, self._database.statements, STORE, [entry])
        return done

    def leap(self, entry: AuditEntry) -> None:
        """Raise every shard's epoch by EPOCH_LEAP, durably: the store goes on at a new place."""
        with self._database.writing(durable=True) as connection:
            connection.execute(update(shard).values(epoch=shard.c.epoch + EPOCH_LEAP))
            append(connection, self._database.statements, STORE, [entry])

    def record(self, entry: AuditEntry) -> None:
        """Append an act on the whole store to the audit log, durably."""
        with self._database.writing(durable=True) as connection:
            append(connection, self._database.statements, STORE, [entry])

    def rewrite(self) -> None:
        """Write the whole database anew, so that it has no bytes of deleted rows. It takes about a second for each 100
        MB; schedulers cannot write meanwhile, and go on afterwards."""
        self._database.rewrite()

    def note_archived(self, marks: Mapping[int, int]) -> None:
        """Raise each shard's mark to the number up to which an archive has all history; never lower it.

        Durable, since an archive recognises a restored store by a mark that is lower than its own.
        """
        with self._database.writing(durable=True) as connection:
            for number, mark in sorted(marks.items()):
                is_lower = and_(shard.c.shard == number, shard.c.archived < mark)
                connection.execute(update(shard).where(is_lower).values(archived=mark))

    def unarchived(self) -> list[Unarchived]:
        """Return the oldest event after its mark for each shard that has one."""
        found = []
        with self._database.snapshot() as connection:
            for row in connection.execute(_MARKS).all():
                at_ms = _first_after(connection, row.shard, row.archived)
                if at_ms is not None:
                    found.append(Unarchived(row.shard, row.archived, at_ms))
        return found

    def archivable(self, after: Mapping[int, int]) -> list[Archivable]:
        """Return all shards in order, at one moment. ``after``: shard → number after which events are counted, or 0."""
        with self._database.snapshot() as connection:
            found = []
            for row in connection.execute(_MARKS).all():  # in the order of the fields
                days = _days(connection, row.shard, after.get(row.shard, 0), row.seq)
                found.append(Archivable(*row, _first_after(connection, row.shard, row.forgotten), days))
        return found


def _first_after(connection: Connection, shard: int, after: int) -> int | None:
    """Return the instant of a shard's first event after the number; None where it has none."""
    found = [
        select(at_ms).where(table.c.shard == shard, table.c.id > after).order_by(table.c.id).limit(1)
        for table, at_ms, _ in _EVENTS
    ]
    return min((at_ms for at_ms in map(connection.scalar, found) if at_ms is not None), default=None)


def _days(connection: Connection, shard: int, after: int, upto: int) -> dict[int, int]:
    """Return the events with numbers in (after, upto] by day."""
    found = Counter[int]()
    for table, at_ms, count in _EVENTS:
        days = select(at_ms.op("/")(DAY_MS).label("day"), count).group_by("day")
        here = (table.c.shard == shard, table.c.id > after, table.c.id <= upto)
        for day, events in connection.execute(days.where(*here)):
            found[day] += int(events)
    return dict(found)
