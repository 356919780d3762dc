"""Erasure: which rows a request erases, and how far a shard has come with it. Standard library only.

::

    task       the rows with a task id               key, group   the rows with that key, or of that group
    schedule   the rows of its runs, its revisions and its skips; the schedule itself is deleted before

An answer, the audit log and a receipt name the value by its digest alone. The salt is beside the digest, so a person
who has the value can check that a receipt is about it, and nobody learns the value from it. Names can be guessed, so
the digest of a name is slow to compute.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import scrypt
from typing import Literal, NamedTuple

By = Literal["task_id", "key", "group", "schedule"]
CRITERIA: tuple[By, ...] = ("task_id", "key", "group", "schedule")

#: The kinds of what was erased, which an answer counts.
PENDING, HISTORY, ENTRIES, REVISIONS, SKIPS = "pending", "history", "audit", "revisions", "skips"
COUNTED = (PENDING, HISTORY, ENTRIES, REVISIONS, SKIPS)

#: Begins the digest that stands in the place of a name.
ERASED = "erased:"

SALT_BYTES, DIGEST_BYTES = 8, 16


@dataclass(frozen=True, slots=True)
class ErasureCriterion:
    by: By
    value: str
    schedules: tuple[int, ...] = ()  #: by schedule: the ids of all schedules that have had the name

    @property
    def names(self) -> set[str]:
        """The names by which the audit log may have the value."""
        return {self.value, f"group:{self.value}"} if self.by == "group" else {self.value}


@dataclass(slots=True)
class ErasureProgress:
    """A shard's progress with one erasure. Rows that may be published are erased once they are settled."""

    upto: int  #: the last id of the rows that were accepted before
    audit: int | None = 0  #: the audit log is erased up to this entry; None: all of it
    rows: int | None = 0  #: rows are erased up to this id; None: all of them
    waiting: list[int] = field(default_factory=list)  #: ids of rows that are erased later
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))

    @property
    def is_over(self) -> bool:
        """Whether no entry and no row is left to erase."""
        return self.audit is None and self.rows is None and not self.waiting


class AuditErasure(NamedTuple):
    """A request of which the names, the reason and the arguments are erased from the audit log, in every shard."""

    request: str
    at_ms: int


def digest_of_name(value: str, salt: bytes | None = None) -> str:
    """Return ``erased:`` with a salt and the digest of a value, in hexadecimal digits. None: a new salt."""
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    digest = scrypt(value.encode("utf-8", "surrogatepass"), salt=salt, n=2**14, r=8, p=1, dklen=DIGEST_BYTES)
    return f"{ERASED}{salt.hex()}.{digest.hex()}"


def is_digest_of(value: str, digest: str) -> bool:
    """Whether ``digest_of_name`` made the digest of this value."""
    try:
        salt = bytes.fromhex(digest.removeprefix(ERASED).partition(".")[0])
    except ValueError:
        return False
    return digest_of_name(value, salt) == digest
