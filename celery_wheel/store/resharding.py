"""``reshard``: another number of shards, offline, in one transaction: all of it happens, or nothing.

::

    refuse      a shard that was not given up in order (its last chunk may have left unsettled), a full inbox
    grow        new shards, empty, beginning behind every id that was ever given
    move        pending rows whose shard is another one now: by lane's order into lane 0 of theirs, with new seqs
    control     watches go with their tasks; tombstones and gates are those of every shard
    shrink      the history of shards that are no more is forgotten, and they go
                with ``archived_only`` history that would go, or that a task which moves would take along, and that is
                not archived refuses it

Promises: tasks with one key were in one shard and are in one shard, in the order they had. Nothing pending is lost,
and none of it leaves earlier.
What has left stays in its shard, with its numbers and its mark: how far a shard is archived is no matter of what waits.
Non-promises: messages in a wheel queue are not looked at; the caller sees to it that those of removed shards are empty.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select, tuple_, update

from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.store import reshard_control
from celery_wheel.store.changes import add_tally
from celery_wheel.store.database import Database
from celery_wheel.store.loads import unfinished_in
from celery_wheel.store.model import HOUR_MS, OPEN, ORIGIN, SHARD_BITS, TallyKey
from celery_wheel.store.ports.maintenance import ARCHIVE, Resharded, ShardOf
from celery_wheel.store.schema import (
    NO_HISTORY,
    batch,
    inbox,
    lane,
    meta,
    outcome,
    payload,
    scheduler,
    shard,
    tally,
    timer,
)

ROWS_AT_ONCE = 5_000

#: A scheduler says twice a second that it is there.
SILENT_MS = 5_000


def reshard(
    database: Database, shards: int, shard_of: ShardOf, now_ms: int, *, archived_only: bool = False
) -> Resharded:
    """Give the store ``shards`` shards. Raises StoreUnusable, with what to do, where that cannot be done now.

    ``archived_only``: no history may go of which an archive has not everything.
    """
    if not 1 <= shards <= 2**SHARD_BITS:
        raise SettingError(f"wheel_shards must be from 1 to {2**SHARD_BITS}, got {shards}")
    with database.writing() as connection:
        resharding = _Resharding(connection, database, shards, shard_of, now_ms)
        return resharding.run(archived_only=archived_only)


class _Resharding:
    def __init__(self, connection: Connection, database: Database, shards: int, shard_of: ShardOf, now_ms: int) -> None:
        self._connection = connection
        self._name = database.name
        self._statements = database.statements
        self._shard_of = shard_of
        self._now_ms = now_ms
        before: int = connection.execute(select(meta.c.shards)).scalar_one()
        self._done = Resharded(before, shards, added=[*range(before, shards)], removed=[*range(shards, before)])
        self._counters: dict[int, int] = {}
        #: Shard → no row may be due before it, or it would lie behind the offset.
        self._floors: dict[int, int] = {}

    def run(self, *, archived_only: bool) -> Resharded:
        # First of all the lock, which also fences whoever may think that it holds a shard.
        self._connection.execute(update(shard).values(epoch=shard.c.epoch + 1))
        self._check()
        if archived_only:
            self._check_archived()
        self._grow()
        self._move()
        reshard_control.spread(self._connection, self._done.after)
        self._shrink()
        self._connection.execute(update(meta).values(shards=self._done.after))
        return self._done

    # -- may it be done? ---------------------------------------------------------------------------

    def _check(self) -> None:
        heard = select(scheduler.c.name).where(scheduler.c.seen_ms > self._now_ms - SILENT_MS)
        if names := self._connection.execute(heard).scalars().all():
            self._refuse(f"a scheduler is at work ({', '.join(names)})", "stop all schedulers (SIGTERM)")
        held = self._connection.execute(select(shard.c.shard, shard.c.holder).where(shard.c.holder.is_not(None))).all()
        for number, holder in held:
            self._refuse(
                f"shard {number} was not given up by its last holder, {holder}, so some of its tasks may have left "
                "without the store knowing",
                "start a scheduler, wait until it holds all shards, and stop it (SIGTERM)",
            )
        doubt = select(lane.c.shard).where(
            lane.c.shard.in_(self._done.removed),
            tuple_(lane.c.offset_due_ms, lane.c.offset_seq) < tuple_(lane.c.watermark_due_ms, lane.c.watermark_seq),
        )
        for number in self._connection.execute(doubt).scalars():
            self._refuse(
                f"some tasks of shard {number} may have left or not", "start a scheduler while the broker is there"
            )
        if self._connection.execute(select(inbox.c.id).limit(1)).first():
            self._refuse("its inbox has something in it", "start a scheduler, which takes it in, and stop it")
        for one in unfinished_in(self._connection):
            remedy = "end it" if one.state == OPEN else "start a scheduler, which takes it in, and stop it"
            self._refuse(f"the load {one.name!r} is {one.state}", remedy)

    def _check_archived(self) -> None:
        for table in (batch, outcome):
            beyond = and_(shard.c.shard == table.c.shard, table.c.id > shard.c.archived)
            query = select(table.c.shard).join(shard, beyond).where(table.c.shard.in_(self._done.removed)).limit(1)
            for number in self._connection.execute(query).scalars():
                self._refuse(f"shard {number} has history that is not archived, and would be no more", ARCHIVE)

        put_back = select(batch.c.shard).join(
            lane,
            and_(
                lane.c.shard == batch.c.shard,
                lane.c.lane == batch.c.lane,
                tuple_(batch.c.to_due_ms, batch.c.to_seq) > tuple_(lane.c.offset_due_ms, lane.c.offset_seq),
            ),
        )
        beyond = and_(shard.c.shard == batch.c.shard, batch.c.id > shard.c.archived)
        for number in self._connection.execute(put_back.join(shard, beyond).limit(1)).scalars():
            self._refuse(f"tasks of shard {number} left and wait again, and that they left is not archived", ARCHIVE)

    def _refuse(self, why: str, what_to_do: str) -> None:
        raise StoreUnusable(f"the store {self._name} cannot be resharded: {why}; nothing was changed; {what_to_do}")

    # -- grow --------------------------------------------------------------------------------------

    def _grow(self) -> None:
        run = self._connection.execute
        highest = max(run(select(func.max(shard.c.seq))).scalar() or 0, run(select(func.max(timer.c.id))).scalar() or 0)
        for number in self._done.added:
            # A shard of this number may have been here before: its ids and epochs must not come again. An epoch of
            # the clock is greater than any that was counted up.
            seq = (highest >> SHARD_BITS) + 1 << SHARD_BITS | number
            none = {**NO_HISTORY, "archived": seq}  # nothing has happened up to there; a mark is never lowered
            run(insert(shard).values(shard=number, epoch=self._now_ms, seq=seq, **none))
            offset = {"offset_due_ms": ORIGIN.due_ms, "offset_seq": ORIGIN.seq}
            run(
                insert(lane).values(
                    shard=number, lane=0, **offset, watermark_due_ms=ORIGIN.due_ms, watermark_seq=ORIGIN.seq
                )
            )

    # -- move --------------------------------------------------------------------------------------

    def _move(self) -> None:
        run = self._connection.execute
        self._counters = {number: seq >> SHARD_BITS for number, seq in run(select(shard.c.shard, shard.c.seq))}
        main = select(lane.c.shard, lane.c.watermark_due_ms).where(lane.c.lane == 0)
        self._floors = {row.shard: row.watermark_due_ms for row in run(main)}
        for number in range(self._done.before):
            for rows in self._pending(number):
                self._place(number, rows)
        for number, count in self._counters.items():
            run(update(shard).where(shard.c.shard == number).values(seq=count << SHARD_BITS | number))

    def _pending(self, number: int) -> Iterator[Sequence[Any]]:
        """The rows of a shard that have not left, in order, some at a time: those that move have another shard then."""
        names = ("id", "due_ms", "seq", "key", "task_id", "queue", "routing_key", "task")
        columns = [timer.c[name] for name in names]
        position, after = tuple_(timer.c.due_ms, timer.c.seq), (-1, -1)
        not_left = and_(
            lane.c.shard == timer.c.shard,
            lane.c.lane == timer.c.lane,
            position > tuple_(lane.c.watermark_due_ms, lane.c.watermark_seq),
        )
        while True:
            query = select(*columns).join(lane, not_left).where(timer.c.shard == number, position > tuple_(*after))
            rows = self._connection.execute(query.order_by(timer.c.due_ms, timer.c.seq).limit(ROWS_AT_ONCE)).all()
            if not rows:
                return
            after = (rows[-1].due_ms, rows[-1].seq)
            yield rows

    def _place(self, number: int, rows: Sequence[Any]) -> None:
        moves, counts = list[dict[str, int]](), defaultdict[int, Counter[TallyKey]](Counter)
        for row in rows:
            to = self._shard_of(row.key, row.task_id, self._done.after)
            if to == number:
                continue
            self._counters[to] += 1
            due_ms = max(row.due_ms, self._floors[to])
            moves.append({"moved": row.id, "to": to, "due": due_ms, "new": self._counters[to] << SHARD_BITS | to})
            queue = row.queue or row.routing_key
            counts[number][TallyKey(row.due_ms // HOUR_MS, queue, row.task)] -= 1
            counts[to][TallyKey(due_ms // HOUR_MS, queue, row.task)] += 1
        if not moves:
            return
        place = {"shard": bindparam("to"), "lane": 0, "due_ms": bindparam("due"), "seq": bindparam("new")}
        self._connection.execute(update(timer).where(timer.c.id == bindparam("moved")).values(**place), moves)
        reshard_control.move_watches(self._connection, moves)
        for at, more in counts.items():
            add_tally(self._connection, self._statements, at, more)
        self._done.moved += len(moves)

    # -- shrink ------------------------------------------------------------------------------------

    def _shrink(self) -> None:
        run = self._connection.execute
        for number in self._done.removed:
            gone = select(timer.c.id).where(timer.c.shard == number)
            run(delete(payload).where(payload.c.id.in_(gone)))
            reshard_control.forget(self._connection, number)
            for table in (outcome, batch, tally, lane):
                run(delete(table).where(table.c.shard == number))
            self._done.forgotten += run(delete(timer).where(timer.c.shard == number)).rowcount
            run(delete(shard).where(shard.c.shard == number))
        if self._done.removed:  # nor may their numbers come again: ``_grow`` goes by the highest of those that are left
            run(update(shard).where(shard.c.shard == 0).values(seq=max(self._counters.values()) << SHARD_BITS))
