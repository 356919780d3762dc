"""The audit log: the requests of people, as the holders carried them out. Standard library only.

A request has an UUIDv7 and the time of asking, chosen by the asker, the same in each shard. Each shard has an entry of
it with its results, written in the commit that changes the tasks: so a change of a person that is in the store is in
the log, and a request that was withdrawn is in neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from celery_wheel.errors import ArgumentError
from celery_wheel.values import ItemPage


@dataclass(frozen=True, slots=True)
class AuditHead:
    """A request as its asker describes it."""

    request: str  #: UUIDv7 in 36 characters
    at_ms: int  #: time of asking
    origin: str  #: admin, cli or api
    action: str  #: cancel, run_now, reschedule, …; of a schedule, schedule_create, …
    details: str  #: JSON object: arguments of the action, without those of tasks
    bulk: str | None  #: of the bulk action that it is a part of
    is_whole: bool  #: unknown names belong into this shard's part


@dataclass(slots=True)
class AuditEntry:
    """A shard's part of a request."""

    request: str
    at_ms: int
    origin: str
    actor: str
    action: str
    reason: str
    details: str
    bulk: str | None
    results: str  #: JSON object: name → result


@dataclass(frozen=True, slots=True)
class AuditCriteria:
    """The filter of the log; a field that is None does not filter."""

    actor: str | None = None  #: a part of the person's name; case is ignored
    action: str | None = None
    origin: str | None = None
    name: str | None = None  #: of a task (its id), a schedule, a key or a gate
    bulk: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    """A request with the results of all shards."""

    request: str
    at_ms: int
    origin: str
    actor: str
    action: str
    reason: str
    details: dict[str, Any]
    bulk: str | None
    results: dict[str, Any]  #: name → a word like "done", or an object with ``result`` and its reason or counts

    @property
    def cursor(self) -> str:
        return cursor_of(self.at_ms, self.request)


def cursor_of(at_ms: int, request: str) -> str:
    return f"{at_ms}.{request}"


def place_of(cursor: str) -> tuple[int, str]:
    """Return (at_ms, request) of a cursor."""
    found = re.fullmatch(r"([0-9]{1,18})\.([0-9a-f-]{36})", cursor)
    if found is None:
        raise ArgumentError(f"a cursor must be one that a page of the audit log has, got {cursor!r:.60}")
    return int(found[1]), found[2]


@dataclass(frozen=True, slots=True, repr=False)
class AuditPage(ItemPage[AuditedRequest]):
    """``next`` is the cursor of the next page; None on the last page."""

    items: list[AuditedRequest]
    next: str | None
