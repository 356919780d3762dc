"""Sources of recurring schedules: ``beat_schedule``, the tables of django-celery-beat, and declarations of tasks.

The thread "wheel-sources" makes the store's schedules equal to them, while this process holds shard 0 (``sources``).

1. The difference is computed from the source and the store alone, anew at each start and takeover: a crash between
   two commands loses nothing.
2. An instant that another scheduler has sent is not sent again: a new schedule continues after ``last_run_at``.
3. An interval keeps its anchor until its period changes.
4. An entry that cannot be read, or whose name is taken, stops no other entry.
5. An entry is run by the wheel or by the base scheduler, which sends none before the first difference is stored.

A change that users make to such a schedule lasts until its entry changes, or until the next start.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from celery_wheel.recurring.definition import BASE, BROKEN

Document = dict[str, Any]

#: The header by which Celery marks tasks that Beat has sent.
BEAT_HEADER = "celery_beat_task"

#: The beginning of a rule of days: the only part of one that depends on the anchor.
_DTSTART = re.compile(r"DTSTART:\d{8}").sub


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An entry of a source; ``document`` is its definition.

    A schedule that has made nothing begins after ``after_ms``: the last instant that another scheduler has sent. One
    that has goes on after ``edited_ms``, when the edit was seen: an edit of a crontab of 100,000 rows takes a while.
    """

    document: Document
    after_ms: int | None = None
    edited_ms: int | None = None  #: None: now


@dataclass(slots=True)
class Retimed:
    """Entries that have changed in nothing but their recurrence, which they share; each has no other part."""

    recurrence: Document
    entries: dict[str, SourceEntry]


@dataclass(slots=True)
class EntryChanges:
    """Entries of a source that may have changed, and the names of those that are no more."""

    entries: dict[str, SourceEntry] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    retimed: list[Retimed] = field(default_factory=list)
    all_names: Collection[str] | None = None  #: of all entries that there are, where all names have to be compared


class EntrySource(Protocol):
    """A source is read by one thread."""

    name: str

    def read(self) -> EntryChanges | None:
        """Return changes since the last call, or None without any; and again what the last call returned, unless it
        was followed. The first call returns all names; the entries come with it, or with the calls after it."""

    def followed(self, missed: Collection[str] = ()) -> None:
        """Note that the changes of the last ``read`` are in the store, but for retimed entries, ``missed``, that are to
        be read as a whole."""

    def reset(self) -> None:
        """Have the next ``read`` be the first one."""

    @property
    def has_more(self) -> bool:
        """Whether the next ``read`` should follow at once."""

    @property
    def is_followed(self) -> bool:
        """Whether all listed entries are in the store."""


def broken(task: str, reason: str) -> SourceEntry:
    return SourceEntry({"task": task or "unknown", BROKEN: _text(reason)})


def is_broken(entry: SourceEntry) -> bool:
    return BROKEN in entry.document


def of_base(task: str, reason: str) -> SourceEntry:
    """Return an entry that Beat's own scheduler runs."""
    return SourceEntry({"task": task or "unknown", BASE: _text(f"it runs in Beat's own scheduler: {reason}")})


def is_of_base(entry: SourceEntry) -> bool:
    return BASE in entry.document


def _text(reason: str) -> str:
    return reason.replace("\0", "�").encode(errors="replace").decode()[:1_000]


def digest(document: Document) -> bytes:
    """Return a digest of a definition, without the anchor of its recurrence, which no user wrote."""
    text = json.dumps(without_anchor(document), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def without_anchor(document: Document) -> Document:
    recurrence = document.get("recurrence")
    spec = recurrence.get("spec") if isinstance(recurrence, dict) else None
    if not isinstance(recurrence, dict) or not isinstance(spec, dict):
        return document
    bare = {name: value for name, value in spec.items() if name != "anchor_ms"}
    if isinstance(text := bare.get("text"), str):
        bare["text"] = _DTSTART("DTSTART", text)
    return {**document, "recurrence": {**recurrence, "spec": bare}}


def with_anchor_of(document: Document, stored: Document) -> Document:
    """Return a definition with the recurrence of the stored one, where the two differ in the anchor at most."""
    ours, theirs = without_anchor(document).get("recurrence"), without_anchor(stored).get("recurrence")
    return {**document, "recurrence": stored["recurrence"]} if ours is not None and ours == theirs else document
