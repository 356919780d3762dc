"""Intake: the inbox of each shard, commands and their answers, chunks of loads; which messages a shard has already."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, insert, or_, select, update

from celery_wheel.store.model import BULK, COMMITTED, BulkLoadChunk, InboxItem, NewItem
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schema import (
    answer,
    bulk,
    bytes_to_task_id,
    digits,
    inbox,
    load,
    load_chunk,
    timer,
    uuids_to_bytes,
)
from celery_wheel.store.sql.statement import IN_PLACES, Statements, columns_of, constant, in_order, numbered, places
from celery_wheel.store.store_model import Bell

#: ``known_few`` takes so many: a task that arrives alone waits 0.7 ms less than for a statement of all places.
FEW = 10


class IntakeStatements:
    def __init__(self, statements: Statements) -> None:
        of_shard = inbox.c.shard == bindparam("shard")
        self.put_inbox = statements.bulk(inbox, "shard", "kind", "payload", "rows")
        items = select(*columns_of(InboxItem, inbox)).where(of_shard).order_by(inbox.c.id)
        self.read_inbox = statements(items.limit(bindparam("limit")))
        sizes = select(func.length(inbox.c.payload), func.coalesce(inbox.c.rows, 1)).where(of_shard)
        self.inbox_sizes = statements(sizes.order_by(inbox.c.id).limit(bindparam("limit")))
        here = and_(inbox.c.id == bindparam("item"), inbox.c.shard == bindparam("at_shard"))
        self.delete_item = statements(delete(inbox).where(here))
        self.pass_on = statements(update(inbox).where(here).values(shard=bindparam("to"), payload=bindparam("payload")))
        at_shard: Any = bindparam("shard")
        envelopes = numbered("envelope", IN_PLACES)
        known = (timer.c.envelope_id, timer.c.task_id, timer.c.id)
        self.known = statements(statements.known_of(known, at_shard, envelopes))
        self.known_few = statements(statements.known_of(known, at_shard, envelopes[:FEW]))
        latest = select(timer.c.envelope_id).where(timer.c.shard == at_shard).order_by(timer.c.envelope_id.desc())
        self.latest_envelope = statements(latest.limit(constant(1)))
        self._prepare_commands(statements)
        self._prepare_loads(statements)

    def known_rows(self, connection: Connection, shard: int, envelope_ids: Sequence[str]) -> list[int]:
        """Return the ids of the rows with these envelope ids, sorted."""
        rows = self.known.each(connection, "envelope", uuids_to_bytes(envelope_ids), shard=shard)
        return sorted({row_id for _, _, row_id in rows})

    def _prepare_commands(self, statements: Statements) -> None:
        item = places("shard", "kind", "payload", "bulk")
        self.put_command = statements(insert(inbox).values(item).returning(inbox.c.id))
        self.command_payload = statements(select(inbox.c.payload).where(inbox.c.id == bindparam("item")))
        again = statements.insert_or(inbox).inline().values(id=bindparam("item"), **item)
        self.put_again = statements(again.on_conflict_do_nothing(index_elements=["id"]))
        same = inbox.c.payload == bindparam("payload")
        self.withdraw = statements(delete(inbox).where(inbox.c.id == bindparam("item"), same))
        self.answers = statements(select(answer.c.id, answer.c.results).where(answer.c.id.in_(numbered("key"))))

    def _prepare_loads(self, statements: Statements) -> None:
        is_committed = load.c.state == constant(COMMITTED)
        loaded = exists().where(
            load_chunk.c.load == load.c.id, and_(is_committed, load_chunk.c.shard == bindparam("at_shard"))
        )
        waiting = exists().where(inbox.c.shard == bindparam("shard"))
        running = bulk.c.stepped_ms.is_not(None)
        goes_on = exists().where(bulk.c.shard == bindparam("of_shard"), running)
        self.arrivals = statements(select(constant(1)).where(or_(waiting, loaded, goes_on)))
        some = or_(
            exists(select(inbox.c.id)),
            exists(select(load.c.id).where(is_committed)),
            exists(select(bulk.c.id).where(running)),
        )
        self.any_arrivals = statements(select(constant(1)).where(some))
        self.committed = statements(select(load.c.id).where(is_committed).order_by(load.c.id))
        here = and_(load_chunk.c.load == bindparam("load"), load_chunk.c.shard == bindparam("shard"))
        self.chunk_sizes, self.read_chunks = (
            statements(select(*columns).where(here).order_by(load_chunk.c.id).limit(bindparam("limit")))
            for columns in ((load_chunk.c.id, load_chunk.c.rows), columns_of(BulkLoadChunk, load_chunk))
        )
        taken = and_(load_chunk.c.id == bindparam("chunk"), load_chunk.c.shard == bindparam("at_shard"))
        self.accept_chunk = statements(delete(load_chunk).where(taken))


def action_of(kind: str, payload: bytes) -> str | None:
    """Return the bulk action that a command is about, by which pages find it."""
    return str(json.loads(payload)["bulks"][0]) if kind == BULK else None


class SqlIntake(StorePart):
    @property
    def _intake(self) -> IntakeStatements:
        return self._statements.of(IntakeStatements)

    def put_inbox(self, shard: int, items: Iterable[tuple[str, bytes]]) -> None:
        self.put_inboxes({shard: list(items)})

    def put_inboxes(self, items: Mapping[int, Sequence[NewItem]]) -> None:
        put = self._intake.put_inbox
        encrypt = self._catalogue.seal.encrypt
        rows = [
            {"shard": shard, "kind": kind, "payload": encrypt(payload), "rows": count[0] if count else None}
            for shard, of_shard in items.items()
            for kind, payload, *count in of_shard
        ]
        with self._database.writing() as connection:
            put.many(connection, in_order(put, rows))
        self._database.ring()
        self._database.tidy()  # a bulk load may run while no scheduler does

    def has_arrivals(self, shard: int) -> bool:
        return self._database.poll(self._intake.arrivals, (shard, shard, shard))

    def arrivals(self, shards: Sequence[int]) -> list[int]:
        if not self._database.poll(self._intake.any_arrivals, ()):
            return []
        return [shard for shard in shards if self.has_arrivals(shard)]

    def bell(self) -> Bell:
        return self._database.bell()

    def read_inbox(
        self, shard: int, limit: int, max_bytes: int | None = None, max_rows: int = 2**31
    ) -> list[InboxItem]:
        with self._database.reading() as connection:
            if max_bytes is not None:
                limit = self._inbox_within(connection, shard, limit, max_bytes, max_rows)
            if limit == 0:
                return []
            found = [InboxItem(*row) for row in self._intake.read_inbox(connection, shard=shard, limit=limit)]
        for one in found:
            one.payload = self._catalogue.seal.payload(bytes(one.payload))
        return found

    def _inbox_within(self, connection: Connection, shard: int, limit: int, max_bytes: int, max_rows: int) -> int:
        """Return how many of the oldest items fit into that many messages and bytes; at least one if there is any."""
        weight = total = count = 0
        for size, rows in self._intake.inbox_sizes(connection, shard=shard, limit=limit).all():
            weight += size
            total += rows
            if count and (weight > max_bytes or total > max_rows):
                break
            count += 1
        return count

    def known(self, shard: int, envelope_ids: Sequence[str]) -> dict[str, str]:
        wanted = dict(zip(envelope_ids, uuids_to_bytes(envelope_ids), strict=True))
        with self._database.reading() as connection:
            asked = sorted(wanted.values())  # neighbours share a page of the index
            if len(asked) > IN_PLACES:  # ids are UUIDv7: most are later than all that are stored
                latest = bytes(self._intake.latest_envelope(connection, shard=shard).scalar() or b"")
                del asked[bisect_right(asked, latest) :]
            statement = self._intake.known_few if len(asked) <= FEW else self._intake.known
            rows = statement.each(connection, "envelope", asked, shard=shard)
            found = {bytes(id_): task_id for id_, task_id, _ in rows}
        hits = [(id_, stored) for id_, stored in wanted.items() if stored in found] if found else []
        return {id_: bytes_to_task_id(found[stored]) for id_, stored in hits}

    def put_command(self, shard: int, kind: str, payload: bytes) -> int:
        [item] = self.put_commands([(shard, kind, payload)])
        return item

    def put_commands(self, commands: Sequence[tuple[int, str, bytes]], items: list[int] | None = None) -> list[int]:
        items = [] if items is None else items
        encrypt = self._catalogue.seal.encrypt
        with self._database.writing() as connection:
            for shard, kind, payload in commands:
                sealed, of = encrypt(payload), action_of(kind, payload)
                put = self._intake.put_command(connection, shard=shard, kind=kind, payload=sealed, bulk=of)
                items.append(put.scalar_one())
        self._database.ring()
        return items

    def command_payload(self, item: int) -> bytes | None:
        with self._database.reading() as connection:
            found: bytes | None = self._intake.command_payload(connection, item=item).scalar()
        return None if found is None else self._catalogue.seal.payload(bytes(found))

    def withdraw(self, item: int, command: tuple[int, str, bytes]) -> bool:
        shard, kind, plain = command
        intake, seal = self._intake, self._catalogue.seal
        payload = seal.encrypt(plain)
        with self._database.writing() as connection:
            # PostgreSQL waits here for another transaction that has put the same id, be it a session whose client is
            # gone: after it, the deletion finds the item, or nobody ever will.
            again = {"shard": shard, "kind": kind, "payload": payload, "bulk": None}
            was_absent = intake.put_again(connection, item=item, **again).rowcount
            if was_absent:
                intake.withdraw(connection, item=item, payload=payload)
                return False
            # The id of an item that was rolled back may be another item's by now, in SQLite.
            found = intake.command_payload(connection, item=item).scalar()
            if found is None or seal.payload(bytes(found)) != plain:
                return False
            return bool(intake.withdraw(connection, item=item, payload=found).rowcount)

    def answer(self, command_id: str) -> dict[str, Any] | None:
        return self.answers([command_id]).get(command_id)

    def answers(self, command_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        if not command_ids:
            return {}
        ids = {digits(one): one for one in command_ids}
        with self._database.reading() as connection:
            found = self._intake.answers.each(connection, "key", list(ids))
        return {ids[digits(str(id_))]: json.loads(results) for id_, results in found}

    def read_loads(self, shard: int, max_rows: int) -> list[BulkLoadChunk]:
        found, seal = list[BulkLoadChunk](), self._catalogue.seal
        with self._database.reading() as connection:
            for number in self._intake.committed(connection).scalars().all():
                place = {"load": number, "shard": shard}
                sizes = self._intake.chunk_sizes(connection, **place, limit=max(1, max_rows)).all()
                count = 0
                for _, rows in sizes:
                    if (found or count) and rows > max_rows:
                        break
                    max_rows -= rows
                    count += 1
                if count:
                    chunks = self._intake.read_chunks(connection, **place, limit=count)
                    found += [BulkLoadChunk(id_, rows, seal.payload(bytes(payload))) for id_, rows, payload in chunks]
                if count < len(sizes) or max_rows <= 0:
                    break
        return found
