"""The step of a run that writes a manifest, beside other runs.

::

    last manifest ─► change ─► written ─► last manifest: this one?  ── yes ─► done
          ▲                                      └─ no: another run wrote, too ─┐
          └───────────────────────────────────────────────────────────────────┘

``change`` refuses a last manifest to which it cannot be applied. Where this run wrote a manifest that does not count,
nothing refers to it: the next change begins with the one that counts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from celery_wheel.archive.model import DataFile, Manifest
from celery_wheel.errors import FileUnusable

#: Two runs collide once or twice; more often, a third program writes manifests without end.
ATTEMPTS = 5
_RUN_TIME = "%Y%m%dT%H%M%SZ"


class ArchiveStorage(Protocol):
    """The part of ``ArchiveFolder`` that runs use; its rows are opaque to them."""

    path: str

    def read(self, files: Any) -> Any: ...
    def write(self, rows: Any, run: str, count: int) -> list[DataFile]: ...
    def runs(self) -> set[str]: ...
    def remove(self, folder: str) -> None: ...
    def last(self) -> Manifest | None: ...
    def put(self, manifest: Manifest) -> None: ...


def last_of(storage: ArchiveStorage) -> Manifest:
    last = storage.last()
    if last is None:
        raise FileUnusable(f"{storage.path} is no archive: it has no manifest; the job archive writes one")
    return last


def commit(storage: ArchiveStorage, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Apply a change to the last manifest, and return the manifest that counts then.

    Args:
        change: from the last manifest to the next one. Raises FileUnusable to stop the run.
    """
    for _ in range(ATTEMPTS):
        manifest = change(last_of(storage))
        storage.put(manifest)
        if storage.last() == manifest:
            return manifest
    raise other_run(storage)


def other_run(storage: ArchiveStorage) -> FileUnusable:
    return FileUnusable(
        f"another run writes to the archive {storage.path} at the same time; this one stopped, and nothing is missing; "
        "start a run only after the last one has ended"
    )


def new_run() -> str:
    """Return a name that no other run has; it tells the instant, and sorts by it."""
    return f"{time.strftime(_RUN_TIME, time.gmtime())}-{uuid.uuid4().hex[:8]}"


def began_ms(run: str, default: int) -> int:
    """Return the instant at which a run began, by its name; ``default`` for a name of another program."""
    try:
        began = datetime.strptime(run.partition("-")[0], _RUN_TIME).replace(tzinfo=UTC)
    except ValueError:
        return default
    return int(began.timestamp() * 1_000)
