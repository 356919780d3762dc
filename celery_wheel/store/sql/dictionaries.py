"""The dictionaries of a store: zstd packs messages by them, and rows name them by number.

::

    SKELETON ──► dictionary 1, of every store           720 bytes of headers, properties and body ─► 130
    samples of 1,000 accepted messages ──► 2            ─► 60; 1.5 µs to pack, 0.6 µs to unpack
    samples of 8,000 ──► 3, if it packs a tenth better  and so on, each time eight times as many were accepted
    another key, an erasure ──► 4, which replaces all    rows of the earlier ones are packed anew (``repacking``)

One dictionary serves all tasks of a store: of 1,000 task names, it packs as well as one for each would. It is committed
before a row is packed by it, and stays in the store until no row is. With ``wheel_encryption_keys`` a dictionary is
encrypted, and so is each row after it was packed by it: all rows of a dictionary have its key.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import compress, count
from operator import ge
from typing import Any

import zstandard
from sqlalchemy import Connection, insert, select

from celery_wheel.errors import StoreError
from celery_wheel.store.model import PLAIN, Packing, Parts, split
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.routes import incomplete
from celery_wheel.store.sql.schema import dictionary
from celery_wheel.store.sql.sealing import Seal, missing_key
from celery_wheel.values.error_text import Malformed
from celery_wheel.values.instants import now_ms
from celery_wheel.values.keyring import NO_KEYS, EncryptionKeys, key_of

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

#: The packing and the bytes of each message, as the table has them; and the dictionary that was present then.
Packed = tuple[list[int], list[bytes], int]


class Dictionaries:
    """The dictionaries of one open store; its methods are thread-safe."""

    def __init__(self, database: Database, keys: EncryptionKeys) -> None:
        self._database = database
        self._learner = Learner()
        self._lock = threading.Lock()
        self._keys = keys
        self.seal = Seal(keys, database.name)
        #: No new row may be packed by an earlier dictionary, by shard; the holder's ``repacking`` sets it.
        self.floors: dict[int, int] = {}
        self.forget()

    def forget(self, shard: int = 0) -> None:
        """Read all anew at its next use; ``shard`` is the one that was acquired."""
        with self._lock:
            self.floors.pop(shard, None)
            #: By number, those that this process has read.
            self.known: dict[int, Packing] = {PLAIN.number: PLAIN}
            self._present: Dictionary | None = None

    def parts(self, connection: Connection, number: int, packed: bytes) -> Parts:
        """Return the parts of a message, as the table has it."""
        return split(self.packing(connection, number).unpack(packed))

    def packing(self, connection: Connection, number: int) -> Packing:
        known = self.known  # if ``forget`` comes meanwhile, what is read stays out of the new dict
        found = known.get(number)
        if found is None:
            content = connection.scalar(select(dictionary.c.content).where(dictionary.c.id == number))
            if content is None:
                raise incomplete(self._database, f"dictionary {number}")
            found = known.setdefault(number, self._dictionary(number, bytes(content)))
        return found

    def _dictionary(self, number: int, stored: bytes) -> Dictionary:
        return Dictionary(number, self.seal.decrypt(stored), self._keys, key_of(stored))

    def pack(self, plain: Sequence[bytes]) -> Packed:
        """Return messages as they are to be stored; call it before the transaction that writes them."""
        if not plain:
            return [], [], PLAIN.number
        with self._lock:
            present = self._present or self._open()
            if self._learner.see(plain) and (content := self._learner.train(present)) is not None:
                present = self._add(content, present.key)
        return _packed(present, plain)

    def pack_known(self, plain: Sequence[bytes]) -> Packed:
        """Return messages that the store has as they are to be stored; nothing is learnt of them."""
        return _packed(self.present(), plain)

    def present(self) -> Dictionary:
        """Return the dictionary by which messages are packed."""
        with self._lock:
            return self._present or self._open()

    def check_floor(self, shard: int, packed: Packed) -> None:
        """Raise StoreError for bytes that were packed before the rows of the shard are packed anew."""
        if packed[2] < self.floors.get(shard, 0):
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
            present = self._present or self._open()
            if present.content != SKELETON:
                self._add(SKELETON, present.key, replaces=True)

    def _open(self, *, of_any_key: bool = False) -> Dictionary:
        """Return the latest dictionary, after making the first one of a new store, or one of the current key.

        ``of_any_key``: another scheduler has made it, by other settings; the two must not make more by turns.
        """
        with self._database.reading() as connection:
            found = connection.execute(_LATEST).one_or_none()
        current = self._keys.current
        if found is None:
            return self._add(SKELETON, current)
        stored = bytes(found.content)
        used = key_of(stored)
        if used is not None and not self._keys:
            raise missing_key(self._database.name, used, self._keys)
        latest = self._dictionary(found.id, stored)
        if used == current or (of_any_key and used is not None):
            return self._use(latest)
        return self._add(latest.content, current, replaces=True)

    def _use(self, present: Dictionary) -> Dictionary:
        self._present, self.seal.present = present, present.key
        return present

    def _add(self, content: bytes, key: bytes | None, *, replaces: bool = False) -> Dictionary:
        # Durable, whatever the store's durability: a process that outlives a crash of the server goes on packing by it.
        [stored] = self._keys.encrypt_all([content], key)
        new = insert(dictionary).values(made_ms=now_ms(), content=stored, replaces=replaces).returning(dictionary.c.id)
        with self._database.writing(durable=True) as connection:
            number: int = connection.execute(new).scalar_one()
        made = self.known[number] = self._dictionary(number, stored)
        return self._use(made)


def _packed(present: Dictionary, plain: Sequence[bytes]) -> Packed:
    """Return messages as a dictionary packs them, or as they are where that makes them larger."""
    packed, numbers = present.pack(plain), [present.number] * len(plain)
    if present.key is None:
        larger = map(ge, map(len, packed), map(len, plain))
        for place in compress(count(), larger):
            numbers[place], packed[place] = PLAIN.number, plain[place]
    return numbers, packed, present.number
