"""``erase``: ask the holders to erase all that the store has of a task, a key, a group or a schedule; its receipt.

A receipt has no name: the value is in it as a digest, by which a person who has the value can check the receipt. An
erasure goes on in the holders where its asker is gone; then the audit log has the counts, under the same digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_wheel.errors import ArgumentError
from celery_wheel.requests import arguments
from celery_wheel.requests.request import Asker
from celery_wheel.store.erasure_model import COUNTED, CRITERIA, By, digest_of_name, is_digest_of
from celery_wheel.store.model import ERASE
from celery_wheel.values.instants import utc

#: Places that may still have the data, and that no scheduler reads.
NOT_COVERED = (
    "messages that are in the queues of the tasks, and tasks that run; results in the result backend",
    "messages that were sent after the schedulers began, and bulk loads and transactions that were open then",
    "filters of bulk actions, in the audit log; for a week also in wheel_bulk, with the first tasks of another result",
    "Django's admin log: names, filters and reasons of what users did in the admin",
    "logs of workers, producers and schedulers; events that a monitor has kept",
    "the archive: run celery-wheel-pipeline erase; files of a drain",
    "backups of the store and of the broker; PostgreSQL's log and its replaced rows until a VACUUM",
)


@dataclass(frozen=True, slots=True)
class ErasureReceipt:
    """The proof of an erasure, without the data."""

    id: str  #: of the request, a UUIDv7, by which the audit log has it
    at: datetime  #: the time of asking
    actor: str
    by: By
    digest: str  #: of the value, with its salt
    counts: Mapping[str, int]  #: kind of what was erased → number
    shards: Mapping[int, Mapping[str, int]]  #: the same for each shard
    not_covered: tuple[str, ...] = NOT_COVERED

    def matches(self, value: str) -> bool:
        """Whether the receipt is about this value."""
        return is_digest_of(value, self.digest)

    def __str__(self) -> str:
        """Return the receipt for people, in lines."""
        counts = [f"{self.counts[kind]:,} {_KINDS[kind]}" for kind in COUNTED]
        head = (f"Receipt {self.id}", f"time: {self.at.isoformat(timespec='milliseconds')}", f"person: {self.actor}")
        lines = [*head, f"criterion: {self.by} {self.digest}", "erased:", *(f"  {count}" for count in counts)]
        return "\n".join([*lines, "not covered:", *(f"  {place}" for place in self.not_covered)])


_KINDS = {
    "pending": "pending tasks, which will not be dispatched",
    "history": "tasks of the history, with their outcomes and runs",
    "audit": "entries of the audit log that lost their names, reason and arguments",
    "revisions": "revisions of the schedule",
    "skips": "skips of the schedule",
}


def erasure_of(criteria: Mapping[By, Any]) -> tuple[By, str]:
    """Return the one criterion of a request. Raises TypeError for none or several, ArgumentError for a wrong value."""
    named = {name: value for name, value in criteria.items() if value is not None}
    if len(named) != 1:
        raise TypeError(
            f"erase must have one of {', '.join(CRITERIA)}, got {' and '.join(named) or 'none'}; nothing was erased"
        )
    [(by, value)] = named.items()
    value = arguments.group_of(value) if by == "group" else arguments.text_of(by, value)
    return by, value


def erase(asker: Asker, by: By, value: str, how: Any, *, patient: bool) -> ErasureReceipt:
    """Erase and return the receipt; see ``Wheel.erase``."""
    options: dict[str, Any] = {"by": by, "value": value}
    if by == "schedule":
        if asker.store.schedules_named([value]):
            raise ArgumentError(
                f"the schedule {value!r:.100} exists, and would go on making tasks; nothing was erased; delete it "
                "first, also where it comes from (its entry in beat_schedule or django-celery-beat)"
            )
        options["schedules"] = asker.store.browse.schedule_ids(value)
    digest = digest_of_name(value)
    request = asker.request(ERASE, [digest], digest, how, options)
    request.patient = patient
    counts = asker.ask(request)
    about = request.number, utc(request.at_ms), request.options["actor"]
    return ErasureReceipt(*about, by, digest, counts, request.by_shard(digest))
