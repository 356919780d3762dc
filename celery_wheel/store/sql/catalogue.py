"""The catalogue of a store: its routes and its dictionaries of zstd, which rows name by number.

::

    SKELETON ──► dictionary 1, of every store           720 bytes of headers, properties and body ─► 130
    samples of 1,000 accepted messages ──► 2            ─► 60; 1.5 µs to pack, 0.6 µs to unpack
    samples of 8,000 ──► 3, if it packs a tenth better  and so on, each time eight times as many were accepted
    another key, an erasure ──► 4, which replaces all    rows of the earlier ones are packed anew (``repacking``)

One dictionary serves all tasks of a store: of 1,000 task names, it packs as well as one for each would. It is committed
before a row is packed by it, and stays in the store until no row is. With ``wheel_encryption_keys`` a dictionary is
encrypted, and so is each row after it was packed by it: all rows of a dictionary have its key. A route is looked up by
its digest in each transaction. Each acquisition of a shard reads all anew (``forget``): a database that failed over may
have lost what this process knows.

A route that no row has is deleted, since there may be one for each of a project's users::

    look 1    no row, pending or in the history, has it: the sums of ``wheel_total`` tell
    look 2    an hour later: still none has it. The table is locked against the transactions that have looked the route
              up and are not committed; a route that one of them has used is kept. No reader that read a row before
              look 1 still needs its route.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress, count, islice
from operator import attrgetter, ge
from typing import Any

import zstandard
from sqlalchemy import Connection, delete, func, insert, select

from celery_wheel.errors import StoreError
from celery_wheel.store.model import HOUR_MS, MAX_ROUTES, PLAIN, Packing, Parts, Route, Row, split
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.schema import bytes_to_task_id, dictionary, route, total
from celery_wheel.store.sql.sealing import Seal, missing_key
from celery_wheel.store.sql.statement import IN_PLACES, Statements, constant, numbered, places
from celery_wheel.values.error_text import Malformed
from celery_wheel.values.keyring import NO_KEYS, EncryptionKeys, key_of
from celery_wheel.values.log import get_logger

LEVEL = 1
#: Bytes of a trained dictionary.
TRAINED_BYTES = 32 * 1024
SAMPLES = 2_000
#: A sample is the beginning of a message: headers, properties and the first arguments. 2,000 bodies may be gigabytes.
SAMPLE_BYTES = 4 * 1024
FIRST_LOOK, LOOK_FACTOR = 1_000, 8
#: A new dictionary is worth its place if it packs to this part of what the present one does.
WORTH = 0.9

#: A message as Celery makes it, for the dictionary with which every store begins.
SKELETON = (
    b'{"callbacks": [{"task": "", "args": [], "kwargs": {}, "options": {"task_id": ""}, "subtask_type": '
    b'null, "immutable": false}], "chord": null}{"lang": "py", "task": "proj.tasks.", "id": "0193", "shadow": null, '
    b'"eta": null, "expires": null, "group": null, "group_index": null, "retries": 0, "timelimit": [null, null], '
    b'"root_id": "0193", "parent_id": null, "argsrepr": "()", "kwargsrepr": "{}", "origin": "gen1@localhost", '
    b'"ignore_result": false, "replaced_task_nesting": 0, "stamped_headers": null, "stamps": {}}\x1e{"content_type": '
    b'"application/json", "content_encoding": "utf-8", "correlation_id": "0193", "reply_to": "", "delivery_mode": 2}'
    b'\x1e[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
)


class Dictionary:
    """Implements ``celery_wheel.store.model.Packing``. The locks: a context of zstd serves one thread at a time.

    ``key`` is the id of one of ``keys``, which encrypts the rows; None: they are as they were packed.
    """

    def __init__(self, number: int, content: bytes, keys: EncryptionKeys = NO_KEYS, key: bytes | None = None) -> None:
        self.number, self.content, self.key = number, content, key
        self._keys = keys
        self._data = zstandard.ZstdCompressionDict(content)
        self._decompressor = zstandard.ZstdDecompressor(dict_data=self._data)
        self._compressor: zstandard.ZstdCompressor | None = None  #: of the present dictionary only: it takes memory
        self._packing, self._unpacking = threading.Lock(), threading.Lock()

    def pack(self, plain: Sequence[bytes]) -> list[bytes]:
        with self._packing:
            if self._compressor is None:
                self._data.precompute_compress(level=LEVEL)
                self._compressor = zstandard.ZstdCompressor(LEVEL, dict_data=self._data, write_dict_id=False)
            compress = self._compressor.compress
            packed = [compress(one) for one in plain]
        return self._keys.encrypt_all(packed, self.key)

    def unpack(self, packed: bytes) -> bytes:
        if self.key is not None:
            packed = self._keys.decrypt(packed)
        try:
            with self._unpacking:
                return self._decompressor.decompress(packed)
        except zstandard.ZstdError as error:
            raise Malformed(f"its bytes in the store are damaged: {type(error).__name__}") from error


class Learner:
    """Samples messages, and trains a dictionary when enough were seen; not thread-safe."""

    def __init__(self) -> None:
        self._seen, self._next_look = 0, FIRST_LOOK
        self._samples: list[bytes] = []

    def see(self, plain: Sequence[bytes]) -> bool:
        """Sample messages; returns whether it is time to train."""
        self._seen += len(plain)
        step = max(1, self._next_look // SAMPLES)
        self._samples = [*self._samples, *(one[:SAMPLE_BYTES] for one in plain[::step])][-SAMPLES:]
        return self._seen >= self._next_look

    def train(self, present: Dictionary) -> bytes | None:
        """Return a dictionary that packs better than the present one; None where none does."""
        self._next_look = LOOK_FACTOR * self._seen
        odd: list[Any] = self._samples[1::2]  # of bytes; zstandard types it as a list of any buffers
        even = self._samples[::2]
        self._samples = []
        try:
            content = zstandard.train_dictionary(TRAINED_BYTES, odd, k=512, d=8).as_bytes()
        except zstandard.ZstdError:  # too little in common, or too short
            return None
        new, old = (sum(map(len, one.pack(even))) for one in (Dictionary(0, content), present))
        return content if new <= WORTH * old else None


def key_in_use(connection: Connection) -> bytes | None:
    """Return the id of the key by which the store's messages are encrypted; None where they are not."""
    found = connection.execute(_LATEST).one_or_none()
    return None if found is None else key_of(bytes(found.content))


_LATEST = select(dictionary.c.id, dictionary.c.content).order_by(dictionary.c.id.desc()).limit(1)
_REPLACING = select(dictionary.c.id).where(dictionary.c.replaces).order_by(dictionary.c.id.desc()).limit(1)

#: Unused routes that are deleted in one transaction at most.
UNUSED_AT_ONCE = 10_000

#: Dialect → the statements that keep other transactions from looking routes up until the commit; SQLite has one writer.
#: A lock that is not free at once is taken in the next hour: while one waits, no other transaction gets a route.
LOCK = {"postgresql": ("SET LOCAL lock_timeout = '100ms'", "LOCK TABLE wheel_route IN ACCESS EXCLUSIVE MODE")}

#: The packing and the bytes of each message, as the table has them.
Packed = tuple[list[int], list[bytes]]

_values_of = attrgetter(*Route.__slots__)

#: The place of the route's id among the values of a row.
_ROUTE = 5

logger = get_logger(__name__)


class CatalogueStatements:
    def __init__(self, statements: Statements) -> None:
        columns = [route.c[name] for name in Route.__slots__]
        self.routes_by_id = statements(select(route.c.id, *columns).where(route.c.id.in_(numbered("id", IN_PLACES))))
        of_route = (total.c.kind.in_((constant("name"), constant("route"))), total.c.number == route.c.id)
        used = select(total.c.id).where(*of_route, total.c.pending != constant(0)).exists()
        self.unused = statements(select(route.c.id).where(~used).order_by(route.c.id).limit(constant(UNUSED_AT_ONCE)))
        gone = numbered("gone", IN_PLACES)
        self.forget_routes = statements(delete(route).where(route.c.id.in_(gone), ~used).returning(route.c.id))
        counted = select(func.count()).where(total.c.kind == constant("route"), total.c.number == constant(0))
        self.counted = statements(counted)
        digests = numbered("digest")
        self.routes = statements(select(route.c.digest, route.c.id).where(route.c.digest.in_(digests)))
        new = statements.insert_or(route).inline().values(places("digest", *Route.__slots__, "target"))
        self.add_route = statements(new.on_conflict_do_nothing(index_elements=["digest"]))
        values: dict[str, Any] = places("made_ms", "content", "replaces")
        self.add_dictionary = statements(insert(dictionary).values(values).returning(dictionary.c.id))


class Catalogue:
    """The catalogue of one open store; its methods are thread-safe."""

    def __init__(self, database: Database, keys: EncryptionKeys) -> None:
        self._database = database
        self._statements = database.statements.of(CatalogueStatements)
        self._learner = Learner()
        self._lock = threading.Lock()
        self._keys = keys
        self.seal = Seal(keys, database.name)
        #: No row may be packed by an earlier dictionary, by shard; the holder's ``repacking`` sets it.
        self.floors: dict[int, int] = {}
        self._looked_ms = 0
        self._unused = set[int]()  #: routes that had no row at the last look
        self.forget()

    def forget(self, shard: int = 0) -> None:
        """Read all anew at its next use; ``shard`` is the one that was acquired."""
        with self._lock:
            self.floors.pop(shard, None)
            self._routes: dict[int, Route] = {}
            self._packings: dict[int, Packing] = {PLAIN.number: PLAIN}
            self._present: Dictionary | None = None

    def row(self, connection: Connection, values: Sequence[Any], task_id: bytes | None = None) -> Row:
        """Return the row with these values of the columns ``ROW``."""
        id_, lane, due_ms, seq, eta_ms, route_id, expires_ms, misfire_ms, size, packed, number, group, line = values
        route_ = self._routes.get(route_id) or self._route(connection, route_id)
        packing = self._packings.get(number) or self.packing(connection, number)
        name = "" if task_id is None else bytes_to_task_id(task_id)
        place = (id_, lane, due_ms, seq, eta_ms)
        return Row(*place, route_, expires_ms, misfire_ms, size, packed, packing, name, group, line)

    def rows(self, connection: Connection, found: Iterable[Sequence[Any]]) -> list[Row]:
        row, made, rest = self.row, list[Row](), iter(found)
        while part := list(islice(rest, IN_PLACES)):  # of very many routes, a statement for each would take seconds
            self._read_routes(connection, {values[_ROUTE] for values in part})
            made += [row(connection, values) for values in part]
        return made

    def task_rows(self, connection: Connection, found: Iterable[Sequence[Any]]) -> list[Row]:
        """Return the rows of (task id, columns of a row …)."""
        row = self.row
        return [row(connection, values, id_) for id_, *values in found]

    def _route(self, connection: Connection, route_id: int) -> Route:
        found = self._read_routes(connection, {route_id}).get(route_id)
        if found is None:
            raise StoreError(self._missing(f"route {route_id}"))
        return found

    def _read_routes(self, connection: Connection, ids: set[int]) -> dict[int, Route]:
        """Read the routes that are not in memory, many with one statement."""
        routes = self._routes
        if missing := sorted(ids - routes.keys()):
            if len(routes) >= MAX_ROUTES:
                routes = self._routes = {}
                missing = sorted(ids)
            for id_, *values in self._statements.routes_by_id.each(connection, "id", missing):
                routes[id_] = Route.make(*values)
        return routes

    def parts(self, connection: Connection, number: int, packed: bytes) -> Parts:
        """Return the parts of a message, as the table has it."""
        return split(self.packing(connection, number).unpack(packed))

    def packing(self, connection: Connection, number: int) -> Packing:
        found = self._packings.get(number)
        if found is None:
            content = connection.scalar(select(dictionary.c.content).where(dictionary.c.id == number))
            if content is None:
                raise StoreError(self._missing(f"dictionary {number}"))
            found = self._packings.setdefault(number, self._dictionary(number, bytes(content)))
        return found

    def _missing(self, what: str) -> str:
        return (
            f"the store {self._database.name} has rows that name its {what}, which is missing: a part of it was "
            "deleted or not restored; nothing was changed; restore the whole store from one backup"
        )

    def _dictionary(self, number: int, stored: bytes) -> Dictionary:
        return Dictionary(number, self.seal.decrypt(stored), self._keys, key_of(stored))

    def pack(self, plain: Sequence[bytes]) -> Packed:
        """Return messages as they are to be stored; call it before the transaction that writes them."""
        if not plain:
            return [], []
        with self._lock:
            present = self._present or self._open()
            if self._learner.see(plain) and (content := self._learner.train(present)) is not None:
                present = self._add(content)
        return _packed(present, plain)

    def pack_known(self, plain: Sequence[bytes]) -> Packed:
        """Return messages that the store has as they are to be stored; nothing is learnt of them."""
        return _packed(self.present(), plain)

    def present(self) -> Dictionary:
        """Return the dictionary by which messages are packed."""
        with self._lock:
            return self._present or self._open()

    def check_floor(self, shard: int, packed: Packed) -> None:
        """Raise StoreError for bytes that were packed before all rows of the shard were packed anew."""
        floor = self.floors.get(shard, 0)
        if floor and any(number < floor for number in packed[0] if number != PLAIN.number):
            raise StoreError(
                f"messages of shard {shard} were packed by a dictionary that was replaced meanwhile; nothing was "
                "written; it is tried again"
            )

    def replacing(self) -> int:
        """Return the number of the last dictionary that replaces all earlier ones, by which or a later one this process
        packs from now on; 0: there is none."""
        with self._lock:
            present = self._present or self._open()  # it may make the dictionary that is looked for
            with self._database.reading() as connection:
                found: int = connection.scalar(_REPLACING) or 0
            if present.number < found:
                self._open(of_any_key=True)
        return found

    def replace(self) -> None:
        """Begin a dictionary that has learnt nothing, by which all rows are packed anew, and drop the samples."""
        with self._lock:
            self._learner = Learner()
            if (self._present or self._open()).content != SKELETON:
                self._add(SKELETON, replaces=True)

    def _open(self, *, of_any_key: bool = False) -> Dictionary:
        """Return the latest dictionary, after making the first one of a new store, or one of the current key.

        ``of_any_key``: another scheduler has made it, by other settings; the two must not make more by turns.
        """
        with self._database.reading() as connection:
            found = connection.execute(_LATEST).one_or_none()
        if found is None:
            return self._add(SKELETON)
        stored = bytes(found.content)
        used = key_of(stored)
        if used is not None and not self._keys:
            raise missing_key(self._database.name, used)
        latest = self._dictionary(found.id, stored)
        if used == self._keys.current or (of_any_key and used is not None):
            self._present = latest
            return latest
        return self._add(latest.content, replaces=True)

    def _add(self, content: bytes, *, replaces: bool = False) -> Dictionary:
        # Durable, whatever the store's durability: a process that outlives a crash of the server goes on packing by it.
        stored = self._keys.encrypt(content)
        values = {"made_ms": time.time_ns() // 1_000_000, "content": stored, "replaces": replaces}
        with self._database.writing(durable=True) as connection:
            number: int = self._statements.add_dictionary(connection, **values).scalar_one()
        self._present = made = self._dictionary(number, stored)
        self._packings[number] = made
        return made

    def forget_routes(self, shards: int, now_ms: int) -> int:
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
                gone = self._statements.forget_routes.each(connection, "gone", wanted)
        except StoreError as error:
            logger.info("%s; %d unused routes are deleted later", error, len(wanted), extra={"action": "routes"})
            return 0
        for (id_,) in gone:
            self._routes.pop(id_, None)
        return len(gone)

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
        return {bytes(digest): id_ for digest, id_ in self._statements.routes.each(connection, "digest", digests)}


def _packed(present: Dictionary, plain: Sequence[bytes]) -> Packed:
    """Return messages as a dictionary packs them, or as they are where that makes them larger."""
    packed, numbers = present.pack(plain), [present.number] * len(plain)
    if present.key is None:
        larger = map(ge, map(len, packed), map(len, plain))
        for place in compress(count(), larger):
            numbers[place], packed[place] = PLAIN.number, plain[place]
    return numbers, packed


class StorePart:
    """A part of ``SqlStore`` or of ``Browse``. ``shards``: the number that the store had when it was opened."""

    def __init__(self, database: Database, catalogue: Catalogue, shards: int) -> None:
        self._database = database
        self._statements = database.statements
        self._catalogue = catalogue
        self.shards = shards


def digest_of(one: Route) -> bytes:
    return blake2b(repr(_values_of(one)).encode(), digest_size=16).digest()
