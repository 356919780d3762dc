"""The catalogue of a store: its routes and its dictionaries, which rows name by number.

::

    reading   (…, route 17, …, message, packing 3)  ──►  Row(…, Route, …, packed, Dictionary)
              each is read from the database once: none of them ever changes
    writing   Message ──► packed by the present dictionary, which ``learner`` replaces now and then
                      └─► the id of its route, in the transaction that writes the row

A route is looked up by its digest in each transaction, and made where it is missing: a route that was made by a
transaction that was rolled back is in no memory. Each acquisition of a shard reads all anew (``forget``): a database
that was restored, or failed over to a standby without the last commits, may have lost what this process remembers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress, count
from operator import attrgetter, ge
from typing import Any

from sqlalchemy import Connection, select

from celery_wheel.errors import StoreError
from celery_wheel.store.model import Row
from celery_wheel.store.packing import PLAIN, Packing, Parts, split
from celery_wheel.store.route import MAX_ROUTES, Route
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.dictionary import SKELETON, Dictionary, Learner
from celery_wheel.store.sql.schema import dictionary, route
from celery_wheel.store.sql.statements.clauses import in_parts
from celery_wheel.store.sql.statements.write import ROUTE_PLACES

#: The packing and the bytes of each message, as the table has them.
Packed = tuple[list[int], list[bytes]]

_values_of = attrgetter(*Route.__slots__)


class Catalogue:
    """The catalogue of one open store; its methods are thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements = database.statements
        self._learner = Learner()
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        with self._lock:
            self._routes: dict[int, Route] = {}
            self._packings: dict[int, Packing] = {PLAIN.number: PLAIN}
            self._present: Dictionary | None = None

    # -- reading ---------------------------------------------------------------------------------------

    def row(self, connection: Connection, values: Sequence[Any]) -> Row:
        """Return the row with these values of the columns ``clauses.ROW``."""
        id_, lane, due_ms, seq, eta_ms, route_id, expires_ms, misfire_ms, size, packed, number = values
        route_ = self._routes.get(route_id) or self._route(connection, route_id)
        packing = self._packings.get(number) or self.packing(connection, number)
        return Row(id_, lane, due_ms, seq, eta_ms, route_, expires_ms, misfire_ms, size, packed, packing)

    def rows(self, connection: Connection, found: Iterable[Sequence[Any]]) -> list[Row]:
        row = self.row
        return [row(connection, values) for values in found]

    def _route(self, connection: Connection, route_id: int) -> Route:
        values = connection.execute(select(*[route.c[name] for name in Route.__slots__]).where(route.c.id == route_id))
        found = values.one_or_none()
        if found is None:
            raise StoreError(self._missing(f"route {route_id}"))
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        made = self._routes[route_id] = Route.make(*found)
        return made

    def parts(self, connection: Connection, number: int, packed: bytes) -> Parts:
        """Return the parts of a message, as the table has it."""
        return split(self.packing(connection, number).unpack(packed))

    def packing(self, connection: Connection, number: int) -> Packing:
        """Return the packing of that number."""
        found = self._packings.get(number)
        if found is None:
            content = connection.scalar(select(dictionary.c.content).where(dictionary.c.id == number))
            if content is None:
                raise StoreError(self._missing(f"dictionary {number}"))
            found = self._packings.setdefault(number, Dictionary(number, bytes(content)))
        return found

    def _missing(self, what: str) -> str:
        return (
            f"the store {self._database.name} has rows that name its {what}, which is missing: a part of it was "
            "deleted or not restored; nothing was changed; restore the whole store from one backup"
        )

    # -- writing ---------------------------------------------------------------------------------------

    def pack(self, plain: Sequence[bytes]) -> Packed:
        """Return messages as they are to be stored; call it before the transaction that writes them."""
        if not plain:
            return [], []
        with self._lock:
            present = self._present or self._open()
            if self._learner.see(plain) and (content := self._learner.train(present)) is not None:
                present = self._add(content)
            packed = present.pack(plain)
        numbers = [present.number] * len(plain)
        larger = map(ge, map(len, packed), map(len, plain))
        for place in compress(count(), larger):
            numbers[place], packed[place] = PLAIN.number, plain[place]
        return numbers, packed

    def _open(self) -> Dictionary:
        """Return the latest dictionary, after making the first one of a new store."""
        with self._database.reading() as connection:
            latest = select(dictionary.c.id, dictionary.c.content).order_by(dictionary.c.id.desc()).limit(1)
            found = connection.execute(latest).one_or_none()
        self._present = Dictionary(found.id, bytes(found.content)) if found is not None else self._add(SKELETON)
        return self._present

    def _add(self, content: bytes) -> Dictionary:
        # Durable, whatever the store's durability: a process that outlives a crash of the server goes on packing by it.
        values = {"made_ms": time.time_ns() // 1_000_000, "content": content}
        with self._database.writing(durable=True) as connection:
            number: int = self._statements.add_dictionary(connection, **values).scalar_one()
        self._present = self._packings[number] = Dictionary(number, content)
        return self._present

    def route_ids(self, connection: Connection, routes: Iterable[Route]) -> dict[Route, int]:
        """Return the ids of routes, in a transaction that writes; makes those that the store does not have."""
        digests = {one: digest_of(one) for one in set(routes)}
        wanted = {digest: one for one, digest in digests.items()}
        found = self._find(connection, sorted(wanted))
        if missing := sorted(wanted.keys() - found.keys()):  # sorted: two transactions that wait for each other end
            new = [(digest, *_values_of(wanted[digest]), wanted[digest].target) for digest in missing]
            self._statements.add_route.many(connection, new)
            found |= self._find(connection, missing)
        return {one: found[digest] for one, digest in digests.items()}

    def _find(self, connection: Connection, digests: Sequence[bytes]) -> dict[bytes, int]:
        parts = in_parts(digests, ROUTE_PLACES)
        return {bytes(digest): id_ for part in parts for digest, id_ in self._statements.routes.at(connection, part)}


def digest_of(one: Route) -> bytes:
    """Return the digest by which a store knows a route."""
    return blake2b(repr(_values_of(one)).encode(), digest_size=16).digest()
