"""Dictionaries of zstd: what a store's messages have in common is kept once, and each row has the rest.

::

    SKELETON ──► dictionary 1, of every store           720 bytes of headers, properties and body ─► 130
    samples of 1,000 accepted messages ──► 2            ─► 60; 1.5 µs to pack, 0.6 µs to unpack
    samples of 8,000 ──► 3, if it packs a tenth better  and so on, each time eight times as many were accepted

One dictionary serves all tasks of a store: of 1,000 task names, it packs as well as one for each would. A dictionary
stays in the store for ever, since rows that were packed by it may.

Promise: a row is unpacked to the bytes that were packed. A dictionary is committed before a row is packed by it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import zstandard

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
    """Implements ``celery_wheel.store.packing.Packing``. The locks: a context of zstd serves one thread at a time."""

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
            raise ValueError(f"its bytes in the store are damaged: {error}") from error


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
