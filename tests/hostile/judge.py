"""A layer, and the judge of its batches: the promises, the time and the memory of each.

::

    one message ─► look      reads it alone: the coverage that guides the mutations
    64 messages ─► judge     the layer's own promises; an exception of any kind breaks them
      time                   CPU of a batch, at most SLOWEST_S, and on average at most MEAN_MS a message
      memory                 of one batch in 16, the peak of allocations: at most MOST_BYTES and TIMES_BYTES a byte
      after an error         each message alone, so that a failure names one message

The judge counts and goes on: a run says all that it has found.
"""

from __future__ import annotations

import hashlib
import time
import traceback
import tracemalloc
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

BATCH = 64

#: CPU seconds of one batch, and milliseconds of a message on average, with the store that is made for its batch.
SLOWEST_S, MEAN_MS = 20.0, 20.0

#: Bytes of memory that one batch may take beside its own, and for each byte of it.
MOST_BYTES, TIMES_BYTES = 32 * 2**20, 100

#: With more failures, only the batch is named.
MOST_FAILURES = 200


class Broken(AssertionError):
    """A batch broke a promise."""


class Layer(ABC):
    """A place where messages come from outside. ``seeds`` are good ones, from which the mutations begin."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    @abstractmethod
    def seeds(self) -> list[bytes]:
        """Return good messages of every kind."""

    @abstractmethod
    def look(self, data: bytes) -> None:
        """Read one message, as far as that can be done alone."""

    def prepared(self, data: bytes, number: int) -> bytes:
        """Return a mutation as it is sent: ``number`` of its batch."""
        return data

    @abstractmethod
    def judge(self, batch: Sequence[bytes]) -> Counter[str]:
        """Send a batch with good messages beside it; return the fates. Raises Broken, or anything."""


@dataclass
class Judge:
    layer: Layer
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, bytes] = field(default_factory=dict)  #: by what failed, the first message that did it
    failed: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    timed: int = 0  #: messages of batches whose time was taken
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    peak_bytes: int = 0
    _batch: list[bytes] = field(default_factory=list)
    _batches: int = 0

    def take(self, data: bytes) -> None:
        """Look at a mutation; judge a batch when it is full."""
        one = self.layer.prepared(data, len(self._batch))
        try:
            self.layer.look(one)
        except Exception as error:
            self._note(error, one)
        self._batch.append(one)
        if len(self._batch) >= BATCH:
            self.flush()

    def flush(self) -> None:
        batch, self._batch = self._batch, []
        if not batch:
            return
        measured = self._batches % 16 == 0
        self._batches += 1
        self.messages += len(batch)
        if measured:
            tracemalloc.start()
        begun, failure = time.process_time(), None
        try:
            self.counts += self.layer.judge(batch)
        except Exception as error:
            failure = error
        passed = time.process_time() - begun
        if measured:
            self._weigh(batch, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        else:  # measuring takes several times as long
            self.cpu_s += passed
            self.timed += len(batch)
            self.slowest_s = max(self.slowest_s, passed)
            if passed > SLOWEST_S:
                self._note(Broken(f"a batch took more than {SLOWEST_S} s"), max(batch, key=len))
        if failure is not None:
            self._find(batch, failure)

    def _weigh(self, batch: Sequence[bytes], peak: int) -> None:
        self.peak_bytes = max(self.peak_bytes, peak)
        if peak > MOST_BYTES + TIMES_BYTES * sum(map(len, batch)):
            self._note(Broken("a batch took too much memory"), max(batch, key=len))

    def _find(self, batch: Sequence[bytes], error: Exception) -> None:
        """Note the failures of a batch by its messages alone, or else of the batch."""
        before = sum(self.failed.values())
        for one in batch if before < MOST_FAILURES else ():
            try:
                self.counts += self.layer.judge([one])
            except Exception as own:
                self._note(own, one)
        if sum(self.failed.values()) == before:
            self._note(error, b"\n".join(batch))

    def _note(self, error: Exception, data: bytes) -> None:
        what = str(error)[:200] if isinstance(error, Broken) else f"{type(error).__name__}{_place(error)}"
        self.failed[what] += 1
        self.failures.setdefault(what, data)

    @property
    def mean_ms(self) -> float:
        return self.cpu_s / max(1, self.timed) * 1_000

    def report(self) -> list[str]:
        """Return lines for people; the failures, each with its first message."""
        fates = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        lines = [
            f"{self.layer.name}: {self.messages:,} messages, {fates}; failures {sum(self.failed.values()):,}; "
            f"{self.mean_ms:.2f} ms a message, slowest batch {self.slowest_s:.1f} s, "
            f"peak {self.peak_bytes / 2**20:.1f} MiB"
        ]
        for what, data in self.failures.items():
            digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()[:8]
            lines.append(f"  {self.failed[what]:,} x {what}\n    {digest} {len(data):,} bytes {data[:600]!r}")
        return lines


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if "celery_wheel" in one.filename] or frames
    return f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
