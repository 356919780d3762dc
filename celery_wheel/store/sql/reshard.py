"""``reshard``: another number of shards, offline, in one transaction.

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

from sqlalchemy import Connection, insert

from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.store.model import HOUR_MS, OPEN, SHARD_BITS, TallyKey
from celery_wheel.store.ports.maintenance import ARCHIVE, Resharded, ShardOf
from celery_wheel.store.sql.bulk_loads import unfinished_in
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.counts import recount
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.queries import reshard as queries
from celery_wheel.store.sql.queries import setup
from celery_wheel.values.ids import id_beside

ROWS_AT_ONCE = 5_000

#: A scheduler gives a sign of life twice a second.
SILENT_MS = 5_000


def reshard(
    database: Database, shards: int, shard_of: ShardOf, now_ms: int, *, archived_only: bool = False
) -> Resharded:
    """Give the store ``shards`` shards; see ``celery_wheel.store.ports.Maintenance``."""
    if not 1 <= shards <= 2**SHARD_BITS:
        raise SettingError(f"wheel_shards must be from 1 to {2**SHARD_BITS}, got {shards}")
    with database.writing() as connection:
        resharding = _Resharding(connection, database, shards, shard_of, now_ms)
        return resharding.run(archived_only=archived_only)


class _Resharding:
    def __init__(self, connection: Connection, database: Database, shards: int, shard_of: ShardOf, now_ms: int) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._name = database.name
        self._statements = database.statements
        self._catalogue = Catalogue(database)
        self._shard_of = shard_of
        self._now_ms = now_ms
        before: int = self._execute(setup.store_row("shards")).scalar_one()
        self._done = Resharded(before, shards, added=[*range(before, shards)], removed=[*range(shards, before)])
        self._counters: dict[int, int] = {}
        #: Shard → earliest due time of a row that is moved to it: an earlier one would be before its watermark.
        self._floors: dict[int, int] = {}

    def run(self, *, archived_only: bool) -> Resharded:
        self._execute(queries.FENCE_ALL)
        self._check()
        if archived_only:
            self._check_archived()
        self._grow()
        self._move()
        self._move_schedules()
        self._spread()
        self._shrink()
        self._execute(setup.update_store(shards=self._done.after))
        return self._done

    # -- refuse ------------------------------------------------------------------------------------

    def _check(self) -> None:
        since = {"since_ms": self._now_ms - SILENT_MS}
        if names := self._execute(queries.LIVE_SCHEDULERS, since).scalars().all():
            self._refuse(f"a scheduler is at work ({', '.join(names)})", "stop all schedulers (SIGTERM)")
        for number, holder in self._execute(queries.HOLDERS).all():
            self._refuse(
                f"shard {number} was not given up by its last holder, {holder}, so some of its tasks may have been "
                "dispatched without the store knowing",
                "start a scheduler, wait until it holds all shards, and stop it (SIGTERM)",
            )
        for number in self._execute(queries.LANES_IN_DOUBT, {"shards": self._done.removed}).scalars():
            self._refuse(
                f"some tasks of shard {number} are in doubt: they may have been dispatched",
                "start a scheduler while the broker is reachable, and stop it",
            )
        if self._execute(queries.ANY_INBOX_ITEM).first():
            self._refuse("its inbox has items", "start a scheduler, which empties it, and stop the scheduler")
        for one in unfinished_in(self._connection):
            remedy = "end it" if one.state == OPEN else "start a scheduler, which accepts it, and stop the scheduler"
            self._refuse(f"the load {one.name!r} is {one.state}", remedy)

    def _check_archived(self) -> None:
        for query in queries.UNARCHIVED:
            for number in self._execute(query, {"shards": self._done.removed}).scalars():
                self._refuse(f"shard {number} has history that is not archived and would be removed", ARCHIVE)
        for number in self._execute(queries.UNARCHIVED_ROLLBACK).scalars():
            self._refuse(
                f"tasks of shard {number} were dispatched and are pending again, and their dispatch is not archived",
                ARCHIVE,
            )

    def _refuse(self, reason: str, remedy: str) -> None:
        raise StoreUnusable(f"the store {self._name} cannot be resharded: {reason}; nothing was changed; {remedy}")

    # -- grow --------------------------------------------------------------------------------------

    def _grow(self) -> None:
        highest = max(number or 0 for number in self._execute(queries.HIGHEST_NUMBERS).scalars())
        for number in self._done.added:
            # The store may have had a shard of this number, whose ids and epochs must not be used again. A clock is
            # ahead of every epoch that was counted up.
            seq = (highest >> SHARD_BITS) + 1 << SHARD_BITS | number
            # The shard has no history up to its seq, and a mark is never lowered.
            for statement in setup.new_shard(number, epoch=self._now_ms, seq=seq, archived=seq):
                self._execute(statement)

    # -- move --------------------------------------------------------------------------------------

    def _move(self) -> None:
        self._counters = {number: seq >> SHARD_BITS for number, seq in self._execute(queries.SEQS)}
        self._floors = {row.shard: row.watermark_due_ms for row in self._execute(queries.MAIN_WATERMARKS)}
        for number in range(self._done.before):
            for rows in self._pending(number):
                self._place(number, rows)
        for number, count in self._counters.items():
            self._execute(queries.SET_SEQ, {"number": number, "highest": count << SHARD_BITS | number})

    def _pending(self, number: int) -> Iterator[Sequence[Any]]:
        """Yield a shard's rows after the watermarks, in order, a page at a time; moved rows have left the shard."""
        values = {"number": number, "after_due_ms": -1, "after_seq": -1, "limit": ROWS_AT_ONCE}
        while rows := self._execute(queries.ROWS_TO_MOVE, values).all():
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
            self._execute(queries.MOVE_ROW, moves)
            # A unique key holds within a shard, and the tasks of a key share one: watches follow their timers.
            self._execute(queries.MOVE_WATCHES, [{"moved": move["moved"], "to": move["to"]} for move in moves])
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
                for query in queries.REMOVE_DOUBLED:
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
        found = dict(self._execute(queries.PRESENT, {"to": to, "envelopes": list(rows)}).all())
        doubled = [rows[id_] for id_, task_id in found.items() if rows[id_].task_id == task_id]
        others = {id_beside(id_, rows[id_].task_id): rows[id_] for id_ in found if rows[id_].task_id != found[id_]}
        if others:
            self._execute(queries.RENAME_ROW, [{"renamed": row.id, "own": own} for own, row in others.items()])
            doubled += self._present(to, others)
        return doubled

    def _move_schedules(self) -> None:
        for number in range(self._done.before):
            values = {"number": number, "after": -1, "limit": ROWS_AT_ONCE}
            while rows := self._execute(queries.SCHEDULES_TO_MOVE, values).all():
                values |= {"after": rows[-1].id}
                to = [(row.id, self._shard_of(row.name, "", self._done.after)) for row in rows]
                moves = [{"moved": id_, "to": shard} for id_, shard in to if shard != number]
                if moves:
                    self._execute(queries.MOVE_SCHEDULE, moves)
                    self._execute(queries.MOVE_SKIPS, moves)

    # -- spread, shrink ----------------------------------------------------------------------------

    def _spread(self) -> None:
        """Copy each tombstone and gate to the shards that do not have it; of several, the latest is copied."""
        for table, names, latest in queries.SPREAD:
            rows = self._execute(queries.spread_rows(table, latest)).mappings().all()
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
            self._execute(queries.KEEP_AUDIT, {"number": number})
            self._execute(queries.REMOVE_RUNS, {"number": number})
            self._done.forgotten += self._execute(queries.REMOVE_TIMERS, {"number": number}).rowcount
            for query in queries.REMOVE_OTHERS:
                self._execute(query, {"number": number})
        if self._done.removed:  # ``_grow`` starts at the highest number of the store, which must not sink
            self._execute(queries.SET_SEQ, {"number": 0, "highest": max(self._counters.values()) << SHARD_BITS})
