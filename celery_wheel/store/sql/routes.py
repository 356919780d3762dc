"""The routes of a store: the tasks and destinations of its rows, which name them by number.

A route is looked up by its digest in each transaction. One that no row has is deleted, since there may be one for each
of a project's users::

    look 1    no row, pending or in the history, has it: the sums of ``wheel_total`` tell
    look 2    an hour later: still none has it. The table is locked against the transactions that have looked the route
              up and are not committed; a route that one of them has used is kept. No reader that read a row before
              look 1 still needs its route.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from operator import attrgetter

from sqlalchemy import Connection, delete, func, select

from celery_wheel.errors import StoreError
from celery_wheel.store.model import HOUR_MS, MAX_ROUTES, Route
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.schema import route, total
from celery_wheel.store.sql.statement import IN_PLACES, Statements, constant, numbered, places
from celery_wheel.values.log import get_logger

#: Unused routes that are deleted in one transaction at most.
UNUSED_AT_ONCE = 10_000

#: Dialect → the statements that keep other transactions from looking routes up until the commit; SQLite has one writer.
#: A lock that is not free at once is taken in the next hour: while one waits, no other transaction gets a route.
LOCK = {"postgresql": ("SET LOCAL lock_timeout = '100ms'", "LOCK TABLE wheel_route IN ACCESS EXCLUSIVE MODE")}

_values_of = attrgetter(*Route.__slots__)

logger = get_logger(__name__)


def incomplete(database: Database, what: str) -> StoreError:
    """Return the error for a row whose route or dictionary the store lacks."""
    return StoreError(
        f"the store {database.name} has rows that name its {what}, which is missing: a part of it was deleted or not "
        "restored; nothing was changed; restore the whole store from one backup"
    )


class RouteStatements:
    def __init__(self, statements: Statements) -> None:
        columns = [route.c[name] for name in Route.__slots__]
        self.by_id = statements(select(route.c.id, *columns).where(route.c.id.in_(numbered("id", IN_PLACES))))
        of_route = (total.c.kind.in_((constant("name"), constant("route"))), total.c.number == route.c.id)
        used = select(total.c.id).where(*of_route, total.c.pending != constant(0)).exists()
        self.unused = statements(select(route.c.id).where(~used).order_by(route.c.id).limit(constant(UNUSED_AT_ONCE)))
        gone = numbered("gone", IN_PLACES)
        self.forget = statements(delete(route).where(route.c.id.in_(gone), ~used).returning(route.c.id))
        counted = select(func.count()).where(total.c.kind == constant("route"), total.c.number == constant(0))
        self.counted = statements(counted)
        digests = numbered("digest")
        self.by_digest = statements(select(route.c.digest, route.c.id).where(route.c.digest.in_(digests)))
        new = statements.insert_or(route).inline().values(places("digest", *Route.__slots__, "target"))
        self.add = statements(new.on_conflict_do_nothing(index_elements=["digest"]))


class Routes:
    """The routes of one open store; its methods are thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements = database.statements.of(RouteStatements)
        #: By number, those that this process has read. Where others must be read again, another dict takes its place: a
        #: thread that is reading adds what it found to the former one.
        self.known: dict[int, Route] = {}
        self._looked_ms = 0
        self._unused = set[int]()  #: those that had no row at the last look

    def read(self, connection: Connection, route_id: int) -> Route:
        found = self.read_all(connection, {route_id}).get(route_id)
        if found is None:
            raise incomplete(self._database, f"route {route_id}")
        return found

    def read_all(self, connection: Connection, ids: set[int]) -> dict[int, Route]:
        """Read the routes that are not in memory, many with one statement."""
        routes = self.known
        if wanted := sorted(ids - routes.keys()):
            if len(routes) >= MAX_ROUTES:
                routes = self.known = {}
                wanted = sorted(ids)
            for id_, *values, signed in self._statements.by_id.each(connection, "id", wanted):
                routes[id_] = Route.make(*values, bool(signed))  # SQLite has numbers
        return routes

    def ids(self, connection: Connection, routes: Iterable[Route]) -> dict[Route, int]:
        """Return the ids of routes, in a transaction that writes; makes those that the store does not have."""
        digests = {one: digest_of(one) for one in set(routes)}
        wanted = {digest: one for one, digest in digests.items()}
        found = self._find(connection, sorted(wanted))
        if missing := sorted(wanted.keys() - found.keys()):  # sorted: two transactions that wait for each other end
            new = [(digest, *_values_of(wanted[digest]), wanted[digest].target) for digest in missing]
            self._statements.add.many(connection, new)
            found |= self._find(connection, missing)
        return {one: found[digest] for one, digest in digests.items()}

    def _find(self, connection: Connection, digests: Sequence[bytes]) -> dict[bytes, int]:
        return {bytes(digest): id_ for digest, id_ in self._statements.by_digest.each(connection, "digest", digests)}

    def forget(self, shards: int, now_ms: int) -> int:
        """Delete the routes that had no row an hour ago and have none now; returns how many. Call it at any time."""
        if 0 <= now_ms - self._looked_ms < HOUR_MS:
            return 0
        self._looked_ms = now_ms
        with self._database.reading() as connection:
            if self._statements.counted(connection).scalar_one() < shards:
                return 0  # shards of an older store, whose rows were not counted by their routes
            unused = set(self._statements.unused(connection).scalars())
        wanted, self._unused = sorted(unused & self._unused), unused
        if not wanted:
            return 0
        try:
            with self._database.writing(durable=False) as connection:
                for lock in LOCK.get(connection.dialect.name, ()):
                    connection.exec_driver_sql(lock)
                gone = self._statements.forget.each(connection, "gone", wanted)
        except StoreError as error:
            logger.info("%s; %d unused routes are deleted later", error, len(wanted), extra={"action": "routes"})
            return 0
        for (id_,) in gone:
            self.known.pop(id_, None)
        return len(gone)


def digest_of(one: Route) -> bytes:
    return blake2b(repr(_values_of(one)).encode(), digest_size=16).digest()
