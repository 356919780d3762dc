"""Bulk actions: one act on all tasks that match a filter, carried out by the holders. Standard library only.

::

    asker ──► inbox of each shard: begin ──► wheel_bulk: a part for each shard, with its criteria, progress and counts
                       stop, continue, discard    │
                                                  ▼
          begin ─► RUNNING   counts the tasks, then changes them; each step is one commit, with the counts in it
                     │  ▲ continue
                     ▼  │ stop
                   STOPPED     ─► discard ─► DISCARDED         RUNNING ─► the last task ─► FINISHED

The holder alone writes the parts, so a part counts exactly what the store has, also after a kill: a step that was not
committed has neither changed a task nor counted it. Nobody need look on. The rows of an action that is over are removed
KEPT_MS after its last change; so is an action that was stopped, which can be continued until then.

A task belongs to the action if it was in the store when the holder of its shard began, and still matches when its turn
comes. A task that is sent later is left out. So is, by an action that moves tasks, a task that was moved meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from celery_wheel.store.model import CANCEL, DAY_MS, MOVE, REQUEUE, StoredBulk
from celery_wheel.store.ports.pages import Criteria

Do = Literal["begin", "stop", "continue", "discard"]
DOINGS: tuple[Do, ...] = ("begin", "stop", "continue", "discard")

#: The acts on tasks.
VERBS = (CANCEL, MOVE, REQUEUE)

#: States of a part; ASKED: its command waits in the inbox for a holder.
ASKED, RUNNING, STOPPED, FINISHED, DISCARDED = "asked", "running", "stopped", "finished", "discarded"

#: An action is kept for so long after its last change: a week.
KEPT_MS = 7 * DAY_MS

#: Tasks with another result than done that a part names.
PROBLEMS = 20


class BulkPlace(NamedTuple):
    """A place in the order in which a part reads its tasks: by lane, and in it by position."""

    lane: int
    due_ms: int
    seq: int


@dataclass(slots=True)
class BulkProgress:
    """A shard's progress with one action."""

    upto: int  #: the last id of the rows that the shard had when it began
    is_counted: bool = False  #: all tasks are counted: from now on they are changed
    after: BulkPlace | None = None  #: tasks up to here are counted, or changed; None: none yet
    found: int = 0  #: tasks that matched when they were counted
    results: dict[str, int] = field(default_factory=dict)  #: result → number of tasks
    problems: list[tuple[str, str]] = field(default_factory=list)  #: task id and result

    @property
    def count(self) -> int:
        """The number of tasks that have a result."""
        return sum(self.results.values())

    def add(self, results: Mapping[str, int], problems: list[tuple[str, str]], after: BulkPlace | None) -> None:
        for result, count in results.items():
            self.results[result] = self.results.get(result, 0) + count
        self.problems = (self.problems + problems)[:PROBLEMS]
        self.after = after

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> BulkProgress:
        after, problems = fields.get("after"), [(name, result) for name, result in fields.get("problems", ())]
        return cls(**{**fields, "after": None if after is None else BulkPlace(*after), "problems": problems})


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """A bulk action as a person or a program asked for it."""

    action: str  #: UUIDv7 of the bulk action, chosen by the asker
    verb: str  #: one of VERBS
    criteria: Criteria
    outcome: str = ""  #: requeue: the kind of the outcomes, rejected or expired
    eta_ms: int | None = None  #: move: the new eta; None: now
    origin: str = ""  #: as in the audit log
    actor: str = ""
    reason: str = ""
    at_ms: int = 0  #: time of asking

    @property
    def word(self) -> str:
        """The act as the audit log names it."""
        if self.verb == MOVE:
            return "run_now" if self.eta_ms is None else "reschedule"
        return self.verb

    @property
    def options(self) -> dict[str, Any]:
        """The fields of a command that begins it, beside those of every command."""
        criteria = {name: value for name, value in asdict(self.criteria).items() if value is not None}
        return {"do": "begin", "verb": self.verb, "criteria": criteria, "outcome": self.outcome, "eta_ms": self.eta_ms}

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "criteria": self.options["criteria"]})

    @classmethod
    def read(cls, text: str | bytes) -> BulkRequest:
        fields = json.loads(text)
        return cls(**{**fields, "criteria": Criteria(**fields["criteria"])})

    @classmethod
    def of_command(cls, fields: Mapping[str, Any]) -> BulkRequest:
        """Return the request of a command that begins an action."""
        [action], audit = fields["bulks"], fields.get("audit") or {}
        about = audit.get("origin", ""), fields.get("actor", ""), fields.get("reason", ""), audit.get("at_ms", 0)
        what = fields["verb"], Criteria(**fields["criteria"]), fields.get("outcome", ""), fields.get("eta_ms")
        return cls(action, *what, *about)


@dataclass(frozen=True, slots=True)
class BulkPart:
    """The part of one shard in a bulk action."""

    request: BulkRequest
    shard: int
    state: str
    progress: BulkProgress
    changed_ms: int  #: of the last step, or the last change of the state

    @property
    def stored(self) -> StoredBulk:
        texts = self.request.as_json(), json.dumps(asdict(self.progress))
        stepped_ms = self.changed_ms if self.state == RUNNING else None
        return StoredBulk(self.request.action, self.state, *texts, self.changed_ms, stepped_ms)

    def with_state(self, state: str, now_ms: int) -> BulkPart:
        return replace(self, state=state, changed_ms=now_ms)


class BulkRows(NamedTuple):
    """Matching rows of a look, by their ids; or only their number."""

    ids: list[int]
    number: int
    after: BulkPlace | None  #: where the next look begins; None: no later row matches


@dataclass(frozen=True, slots=True)
class BulkShard:
    """A shard as the page of an action shows it."""

    shard: int
    holder: str | None
    seen_ms: int | None  #: of the holder's last sign of life
    part: BulkPart | None  #: None: its holder has not begun
    asked: tuple[str, ...] = ()  #: of DOINGS: commands that wait for the holder
