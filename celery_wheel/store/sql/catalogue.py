"""The catalogue of a store: its routes and its dictionaries of zstd, which rows name by number.

::

    SKELETON ──► dictionary 1, of every store           720 bytes of headers, properties and body ─► 130
    samples of 1,000 accepted messages ──► 2            ─► 60; 1.5 µs to pack, 0.6 µs to unpack
    samples of 8,000 ──► 3, if it packs a tenth better  and so on, each time eight times as many were accepted

One dictionary serves all tasks of a store: of 1,000 task names, it packs as well as one for each would. It stays in the
store for ever, committed before a row is packed by it. A route is looked up by its digest in each transaction. Each
acquisition of a shard reads all anew (``forget``): a database that failed over may have lost what this process knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress, count
from operator import attrgetter, ge
from typing import Any

import zstandard
from sqlalchemy import Connection, insert, select

from celery_wheel.errors import StoreError
from celery_wheel.store.model import MAX_ROUTES, PLAIN, Packing, Parts, Route, Row, split
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.schema import bytes_to_task_id, dictionary, route
from celery_wheel.store.sql.statement import Statements, numbered, places
from celery_wheel.values.error_text import Malformed

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
    """Implements ``celery_wheel.store.model.Packing``. The locks: a context of zstd serves one thread at a time."""

    def __init__(self, number: int, content: bytes) -> None:
        self.number = number
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
            return [compress(one) for one in plain]

    def unpack(self, packed: bytes) -> bytes:
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


#: The packing and the bytes of each message, as the table has them.
Packed = tuple[list[int], list[bytes]]

_values_of = attrgetter(*Route.__slots__)


class CatalogueStatements:
    def __init__(self, statements: Statements) -> None:
        digests = numbered("digest")
        self.routes = statements(select(route.c.digest, route.c.id).where(route.c.digest.in_(digests)))
        new = statements.insert_or(route).inline().values(places("digest", *Route.__slots__, "target"))
        self.add_route = statements(new.on_conflict_do_nothing(index_elements=["digest"]))
        values: dict[str, Any] = places("made_ms", "content")
        self.add_dictionary = statements(insert(dictionary).values(values).returning(dictionary.c.id))


class Catalogue:
    """The catalogue of one open store; its methods are thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements = database.statements.of(CatalogueStatements)
        self._learner = Learner()
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        with self._lock:
            self._routes: dict[int, Route] = {}
            self._packings: dict[int, Packing] = {PLAIN.number: PLAIN}
            self._present: Dictionary | None = None

    def unlearn(self) -> None:
        """Drop the samples, which have parts of messages that are erased; the next dictionary learns from later ones.

        A dictionary in the store stays: rows are packed by it.
        """
        with self._lock:
            self._learner = Learner()

    def row(self, connection: Connection, values: Sequence[Any], task_id: bytes | None = None) -> Row:
        """Return the row with these values of the columns ``ROW``."""
        id_, lane, due_ms, seq, eta_ms, route_id, expires_ms, misfire_ms, size, packed, number, group, line = values
        route_ = self._routes.get(route_id) or self._route(connection, route_id)
        packing = self._packings.get(number) or self.packing(connection, number)
        name = "" if task_id is None else bytes_to_task_id(task_id)
        place = (id_, lane, due_ms, seq, eta_ms)
        return Row(*place, route_, expires_ms, misfire_ms, size, packed, packing, name, group, line)

    def rows(self, connection: Connection, found: Iterable[Sequence[Any]]) -> list[Row]:
        row = self.row
        return [row(connection, values) for values in found]

    def task_rows(self, connection: Connection, found: Iterable[Sequence[Any]]) -> list[Row]:
        """Return the rows of (task id, columns of a row …)."""
        row = self.row
        return [row(connection, values, id_) for id_, *values in found]

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
        return {bytes(digest): id_ for digest, id_ in self._statements.routes.each(connection, "digest", digests)}


class StorePart:
    """A part of ``SqlStore`` or of ``Browse``. ``shards``: the number that the store had when it was opened."""

    def __init__(self, database: Database, catalogue: Catalogue, shards: int) -> None:
        self._database = database
        self._statements = database.statements
        self._catalogue = catalogue
        self.shards = shards


def digest_of(one: Route) -> bytes:
    return blake2b(repr(_values_of(one)).encode(), digest_size=16).digest()
