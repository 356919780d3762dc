"""The audit log: every act that changes tasks, schedules or the store, in chains of entries. Standard library only.

A request has a UUIDv7 and the time of asking, chosen by the asker, the same in each shard. Each shard has an entry of
it with its results, written in the commit that changes the tasks: so a change that is in the store is in the log, and a
request that was withdrawn is in neither. Acts on the whole store are in the chain STORE.

::

    content   SHA-256 of the fields: salt, reason, details, results
    digest    SHA-256 of the fields: digest of the entry before, chain, number, request, at_ms, origin, actor, action,
              bulk, content

A field is the length of its UTF-8 text, as 8 bytes with the highest first, and the text; a number has decimal digits,
None has no text, a digest has 64 hexadecimal digits. The digest before the first entry is ``FIRST_DIGEST``.

The texts can be erased: without its salt an entry has an empty reason, no details and no results. The salt is random,
so nobody finds an erased text by trying texts, and the chain still verifies.

A chain shows that nothing between two of its digests was changed. A chain that was cut at its end, or made anew by a
writer of the database, is found only by comparing it with a head that was noted elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from celery_wheel.errors import ArgumentError
from celery_wheel.values import ItemPage
from celery_wheel.values.ids import uuid7

#: The chain of acts on the whole store; the others have the numbers of their shards.
STORE = -1

FIRST_DIGEST = "0" * 64

#: Origins of requests that no person makes: only names that they have changed are in the log.
PROGRAM, CONTROL, SOURCE, UNKNOWN_ORIGIN = "program", "control", "source", "unknown"
MACHINES = (PROGRAM, CONTROL, SOURCE, UNKNOWN_ORIGIN)

#: Origins of requests of people, or of a program that changes how the wheel works.
PERSONS = ("admin", "cli", "api")

ORIGINS = (*PERSONS, *MACHINES)

#: In a filter: any of PERSONS.
PEOPLE = "people"


@dataclass(frozen=True, slots=True)
class AuditHead:
    """A request as its asker describes it; the holder adds the action and its details."""

    request: str  #: UUIDv7 in 36 characters
    at_ms: int  #: time of asking; 0: unknown
    origin: str  #: one of ORIGINS
    action: str  #: cancel, run_now, reschedule, …; of a schedule, schedule_create, …
    details: str  #: JSON object: arguments of the action, without those of tasks
    bulk: str | None = None  #: of the bulk action that it is a part of
    is_whole: bool = True  #: unknown names belong into this shard's part


class Operator(NamedTuple):
    """The person or the process that acts on a whole store."""

    origin: str
    actor: str

    @classmethod
    def of_process(cls) -> Operator:
        return cls("api", process_name())


def process_name() -> str:
    """Return the name of an asker that names no person."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


@dataclass(slots=True)
class AuditEntry:
    """A shard's part of a request, or an act on the whole store."""

    request: str
    at_ms: int
    origin: str
    actor: str
    action: str
    reason: str
    details: str
    bulk: str | None
    results: str  #: JSON object: name → result


def store_entry(
    action: str, by: Operator | None, at_ms: int, results: Mapping[str, Any], details: Mapping[str, Any] | None = None
) -> AuditEntry:
    """Return the entry of an act on the whole store; ``by`` None: of this process."""
    by = by or Operator.of_process()
    texts = json.dumps(dict(details or {})), None, json.dumps(dict(results))
    return AuditEntry(uuid7(), at_ms, by.origin, by.actor, action, "", *texts)


# -- chains -------------------------------------------------------------------------------------------


class Link(NamedTuple):
    """A place in a chain, and the digest of its entry."""

    chain: int
    number: int
    digest: str

    def __str__(self) -> str:
        return f"{self.chain}:{self.number}:{self.digest}"


def links_in(text: str) -> list[Link]:
    """Return the links in a text, in the form CHAIN:NUMBER:DIGEST. Raises ArgumentError where it has none."""
    found = re.findall(r"(?<![0-9a-f:-])(-?[0-9]{1,5}):([0-9]{1,18}):([0-9a-f]{64})(?![0-9a-f])", text)
    if not found:
        raise ArgumentError(
            f"a head must have the form CHAIN:NUMBER:DIGEST, as `audit verify` prints it; got {text!r:.60}"
        )
    return [Link(int(chain), int(number), digest) for chain, number, digest in found]


class AuditChain(NamedTuple):
    """A chain: its last entry, and the last one that retention has removed; number 0 where there is none."""

    chain: int
    number: int
    digest: str
    base_number: int
    base_digest: str

    @property
    def head(self) -> Link:
        return Link(self.chain, self.number, self.digest)

    @property
    def base(self) -> Link:
        return Link(self.chain, self.base_number, self.base_digest)

    @classmethod
    def begin(cls, chain: int) -> AuditChain:
        return cls(chain, 0, FIRST_DIGEST, 0, FIRST_DIGEST)


@dataclass(slots=True)
class ChainEntry(AuditEntry):
    """An entry with its place in a chain."""

    chain: int
    number: int
    salt: str | None  #: 32 hexadecimal digits; None: the reason, the details and the results were erased
    content: str  #: 64 hexadecimal digits
    digest: str  #: 64 hexadecimal digits

    @property
    def link(self) -> Link:
        return Link(self.chain, self.number, self.digest)


def field(value: str | int | None) -> bytes:
    text = ("" if value is None else str(value)).encode()
    return len(text).to_bytes(8, "big") + text


def content_digest(salt: str, one: AuditEntry) -> str:
    return sha256(b"".join(map(field, (salt, one.reason, one.details, one.results)))).hexdigest()


def entry_digest(before: Link, one: AuditEntry, content: str) -> str:
    """Return the digest of the entry that follows ``before``."""
    place, about = (before.digest, before.chain, before.number + 1), (one.request, one.at_ms, one.origin, one.actor)
    return sha256(b"".join(map(field, (*place, *about, one.action, one.bulk, content)))).hexdigest()


def chained(before: Link, entries: Iterable[AuditEntry], salts: Iterable[str]) -> list[ChainEntry]:
    """Return the entries as they follow ``before``; each has a salt of 16 random bytes."""
    found: list[ChainEntry] = []
    for one, salt in zip(entries, salts, strict=True):
        values = [getattr(one, name) for name in AuditEntry.__dataclass_fields__]
        content = content_digest(salt, one)
        place = before.chain, before.number + 1
        found.append(ChainEntry(*values, *place, salt, content, entry_digest(before, one, content)))  # type: ignore[call-arg]  # of AuditEntry
        before = found[-1].link
    return found


def fault_of(before: Link, one: ChainEntry) -> str:
    """Return the fault of the entry after ``before``, where ``one`` is the next that there is; empty: none."""
    if one.number != before.number + 1:
        return "is missing"
    if one.salt is None:
        is_content = (one.reason, one.details, one.results) == ("", "{}", "{}")
    else:
        is_content = content_digest(one.salt, one) == one.content
    return "" if is_content and entry_digest(before, one, one.content) == one.digest else "was changed"


# -- reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditCriteria:
    """The filter of the log; a field that is None does not filter."""

    actor: str | None = None  #: a part of the person's name; case is ignored
    action: str | None = None
    origin: str | None = None  #: one of ORIGINS, or PEOPLE
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
    entries: list[str]  #: of each entry its place and digest, CHAIN:NUMBER:DIGEST

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
