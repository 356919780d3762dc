"""``Handover`` of a SQL store.

::

    pending           rows after their lane's offset, in order, with their bytes; (offset, watermark] is in doubt
    stopped           rows of lane STOPPED with these outcomes
    find              rows of any lane, by their envelope ids
    schedules         by id, with their revisions
    mark_moved        rows ─► lane STOPPED, outcome "moved"; out of the pending counts
    mark_early_moved  rows dispatched before they were due ─► the same; their batches shrink to the other rows
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, RowMapping, Select

from celery_wheel.store.model import (
    HOUR_MS,
    SHARD_BITS,
    STOPPED,
    UNIQUE,
    WATCH,
    LaneState,
    Message,
    Move,
    Outcome,
    Position,
    TallyKey,
)
from celery_wheel.store.ports.handover import MOVED, HandoverMessage, HandoverSchedule, ShardEpoch
from celery_wheel.store.sql.bulk_loads import count_pending_in
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.changes import advance, fence
from celery_wheel.store.sql.counts import recount
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.ids import uuids_to_bytes
from celery_wheel.store.sql.lanes import read_lanes
from celery_wheel.store.sql.queries import handover as queries
from celery_wheel.store.sql.schedules import revision_of, schedule_of
from celery_wheel.store.sql.statements.clauses import IN_PLACES, in_parts
from celery_wheel.store.sql.statements.lookups import ENVELOPES

#: Rows and bytes read at a time; bodies may be large.
ROWS_AT_ONCE, BYTES_AT_ONCE = 1_000, 16 * 2**20

#: Stopped messages, and schedules with their revisions, read at a time, whatever their size.
STOPPED_AT_ONCE, SCHEDULES_AT_ONCE = 50, 200


class SqlHandover:
    """Implements ``celery_wheel.store.ports.Handover``."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database = database
        self._catalogue = catalogue
        self._statements = database.statements

    def pending(self, shard: int) -> Iterator[HandoverMessage]:
        lanes = [self._lane(shard, state) for state in self._lanes(shard)]
        for _, message in heapq.merge(*lanes, key=itemgetter(0)):
            yield message

    def _lanes(self, shard: int) -> list[LaneState]:
        with self._database.reading() as connection:
            return read_lanes(connection, self._statements, shard)

    def _lane(self, shard: int, state: LaneState) -> Iterator[tuple[Position, HandoverMessage]]:
        after = state.offset
        while count := self._page_length(shard, state.lane, after):
            values = {"shard": shard, "lane": state.lane, **_after(after), "limit": count}
            with self._database.reading() as connection:
                rows = connection.execute(queries.MESSAGES_AFTER, values).all()
                claims = _claims(connection, shard, [row.id for row in rows])
                messages = [self._message(connection, row[3:], claims.get(row.id, ())) for row in rows]
            for (id_, due_ms, seq, *_), message in zip(rows, messages, strict=True):
                after = Position(due_ms, seq)
                yield after, HandoverMessage(id_, shard, due_ms, message, state.redelivered or after <= state.watermark)

    def _page_length(self, shard: int, lane: int, after: Position) -> int:
        """Return how many of the next rows fit into one read; at least one if any exists."""
        values = {"shard": shard, "lane": lane, **_after(after), "limit": ROWS_AT_ONCE}
        with self._database.reading() as connection:
            sizes = connection.execute(queries.SIZES_AFTER, values).scalars().all()
        weight = 0
        for number, size in enumerate(sizes):
            weight += size
            if number and weight > BYTES_AT_ONCE:
                return number
        return len(sizes)

    def stopped(self, shard: int, kinds: Collection[str]) -> Iterator[HandoverMessage]:
        after, values = -1, {"shard": shard, "kinds": list(kinds), "limit": STOPPED_AT_ONCE}
        while True:
            with self._database.reading() as connection:
                rows = connection.execute(queries.STOPPED_MESSAGES, values | {"after": after}).all()
                messages = [self._message(connection, row[4:]) for row in rows]
            if not rows:
                return
            for (after, due_ms, kind, reason, *_), message in zip(rows, messages, strict=True):
                yield HandoverMessage(after, shard, due_ms, message, outcome=kind, reason=reason)

    def find(self, shard: int, envelope_ids: Sequence[str]) -> list[HandoverMessage]:
        found: list[HandoverMessage] = []
        with self._database.reading() as connection:
            for part in in_parts(uuids_to_bytes(envelope_ids), IN_PLACES):
                known = self._statements.known(connection, shard=shard, **dict(zip(ENVELOPES, part, strict=True)))
                ids = sorted({row_id for _, _, row_id in known})
                for start in range(0, len(ids), STOPPED_AT_ONCE):
                    rows = connection.execute(queries.MESSAGES_OF, {"ids": ids[start : start + STOPPED_AT_ONCE]}).all()
                    for id_, due_ms, lane, accepted_ms, kind, reason, *message in rows:
                        why = {"outcome": kind, "reason": reason} if lane == STOPPED else {}
                        one = HandoverMessage(id_, shard, due_ms, self._message(connection, message), **why)
                        one.accepted_ms = accepted_ms
                        found.append(one)
        return found

    def _message(
        self, connection: Connection, columns: Sequence[Any], claims: Iterable[tuple[str, str]] = ()
    ) -> Message:
        number, packed, *values = columns
        names = [column.name for column in queries.MESSAGE[2:]]
        parts = self._catalogue.parts(connection, number, packed)
        message = Message(**dict(zip(names, values, strict=True)), **parts._asdict())
        message.watch = [key for kind, key in claims if kind == WATCH] or None
        message.unique = next((key for kind, key in claims if kind == UNIQUE), None)
        return message

    def count_pending(self, shard: int) -> int:
        return self._count(queries.COUNT_PENDING, shard=shard)

    def count_stopped(self, shard: int, kinds: Collection[str]) -> int:
        return self._count(queries.COUNT_STOPPED, shard=shard, kinds=list(kinds))

    def schedules(self, shard: int) -> Iterator[HandoverSchedule]:
        values = {"shard": shard, "after": -1, "limit": SCHEDULES_AT_ONCE}
        while True:
            with self._database.reading() as connection:
                page = [schedule_of(row) for row in connection.execute(queries.SCHEDULES, values)]
                ids = [one.id for one in page]
                revisions = [revision_of(row) for row in connection.execute(queries.REVISIONS, {"ids": ids})]
            if not page:
                return
            changes = defaultdict(list)
            for one in revisions:
                changes[one.schedule].append(one)
            for schedule in page:
                yield HandoverSchedule(shard, schedule, changes[schedule.id])
            values["after"] = ids[-1]

    def count_schedules(self, shard: int) -> int:
        return self._count(queries.COUNT_SCHEDULES, shard=shard)

    def count_inbox(self) -> int:
        with self._database.reading() as connection:
            count: int = connection.execute(queries.COUNT_INBOX).scalar_one()
            return count + count_pending_in(connection)

    def _count(self, query: Select[Any], **values: Any) -> int:
        with self._database.reading() as connection:
            count: int = connection.execute(query, values).scalar_one()
        return count

    def mark_moved(self, hold: ShardEpoch, ids: Sequence[int], reason: str) -> int:
        done = 0
        for start in range(0, len(ids), IN_PLACES):
            part = {"shard": hold.shard, "ids": list(ids[start : start + IN_PLACES])}
            with self._database.writing() as connection:
                fence(connection, self._statements, hold.shard, hold.epoch)
                rows = connection.execute(queries.PENDING_AMONG, part).all()
                stopped = connection.execute(queries.STOPPED_AMONG, part).scalars().all()
                self._move(connection, hold, [row.id for row in rows], stopped, reason)
                counts = Counter(TallyKey(row.due_ms // HOUR_MS, row.target, row.task) for row in rows)
                less = {key: -count for key, count in counts.items()}
                recount(connection, self._statements, self._catalogue, hold.shard, less)
            done += len(rows)
        return done

    def mark_early_moved(self, hold: ShardEpoch, reason: str) -> int:
        done = 0
        with self._database.reading() as connection:
            batches = connection.execute(queries.EARLY_BATCHES, {"shard": hold.shard}).mappings().all()
        for batch in batches:
            more = True
            while more:
                with self._database.writing() as connection:
                    fence(connection, self._statements, hold.shard, hold.epoch)
                    ids = connection.execute(queries.EARLY_ROWS, {**batch, "limit": ROWS_AT_ONCE}).scalars().all()
                    self._move(connection, hold, ids, (), reason)
                    more = len(ids) == ROWS_AT_ONCE
                    if not more:
                        self._shrink(connection, hold, batch)
                done += len(ids)
        return done

    def _move(
        self, connection: Connection, hold: ShardEpoch, ids: Sequence[int], stopped: Sequence[int], reason: str
    ) -> None:
        """Move ``ids`` to lane STOPPED, and give them and the rows ``stopped`` the outcome."""
        number: int = self._statements.seq(connection, at_shard=hold.shard).scalar_one()
        count = number >> SHARD_BITS

        def next_seq() -> int:
            nonlocal count
            count += 1
            return count << SHARD_BITS | hold.shard

        moves = [Move(row_id, STOPPED, hold.now_ms, next_seq()) for row_id in ids]
        moved = [Outcome(next_seq(), row_id, MOVED, reason, "drain", hold.now_ms) for row_id in (*ids, *stopped)]
        self._statements.move.many(connection, moves, hold.shard)
        self._statements.control.unwatch.many(connection, [(row_id,) for row_id in ids])
        self._statements.add_outcome.many(connection, moved, hold.shard)
        advance(connection, self._statements, hold.shard, hold.epoch, count << SHARD_BITS | hold.shard)

    def _shrink(self, connection: Connection, hold: ShardEpoch, batch: RowMapping) -> None:
        """Correct a batch to the rows that were due: later rows may get the positions of the moved ones."""
        values = {**batch}
        count, weight, last_ms = connection.execute(queries.BATCH_FIGURES, values).one()
        if count:
            seq = connection.execute(queries.LAST_SEQ, values | {"last_ms": last_ms}).scalar_one()
            new = {"new_count": count, "new_bytes": int(weight), "new_to_due_ms": last_ms, "new_to_seq": seq}
            connection.execute(queries.SHRINK_BATCH, {"batch": batch["id"], **new})
        else:
            connection.execute(queries.DELETE_BATCH, {"id": batch["id"]})
        more = int(weight) - batch["bytes"]
        advance(connection, self._statements, hold.shard, hold.epoch, weight=more)

    def offsets_to_correct(self, shard: int, now_ms: int) -> dict[int, Position]:
        with self._database.reading() as connection:
            seq: int = self._statements.seq(connection, at_shard=shard).scalar_one()
            lanes = read_lanes(connection, self._statements, shard)
        now, found = Position(now_ms, seq), {}
        for state in lanes:
            if state.watermark > now:
                found[state.lane] = now
            elif state.watermark > state.offset:
                found[state.lane] = state.watermark
        return found


def _claims(connection: Connection, shard: int, ids: Sequence[int]) -> dict[int, list[tuple[str, str]]]:
    """Return row → the kinds and keys of its claims."""
    found = defaultdict(list)
    for start in range(0, len(ids), IN_PLACES):
        values = {"shard": shard, "ids": ids[start : start + IN_PLACES]}
        for id_, kind, key in connection.execute(queries.CLAIMS, values):
            found[id_].append((kind, key))
    return found


def _after(position: Position) -> dict[str, int]:
    return {"after_due_ms": position.due_ms, "after_seq": position.seq}
