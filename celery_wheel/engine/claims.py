"""Claims: keys with which a waiting task is completed, and keys of which only one task waits.

::

    claimants   who claims the keys, and how far the lanes were settled when that was read          a read
    admit       who waits from now on, whom it replaces; claims and rows are in one change          under the lock
    admitted    that change is committed                                                            under the lock

    unique key   another one waits and was not handed over              the new one, by its on_conflict
                 ──────────────────────────────────────────────────────────────────────────────────────────────
                 no, or it rests, or it left, or it may have left       waits
                 yes                                                    keep      rests as cancelled
                                                                        replace   waits; the other rests as cancelled
                                                                        reject    rests as rejected, with its bytes

Promises: of one unique key, one task waits in a shard, however many come at once; of several that come at once each
is judged as if it had come alone after those before it. A message that comes again is known before it gets here.
Non-promises: what was handed to the broker, or may have been, counts as left: then the new one waits, and both run.

Claims of what has left stay in the store until somebody looks for their key, or their history is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_wheel.engine.context import Context
from celery_wheel.engine.revision import Revision, Why, handed_over, revised, withdraw
from celery_wheel.engine.term import Intake, SetAside, Term
from celery_wheel.store.model import (
    ORIGIN,
    REJECT,
    REPLACE,
    REST,
    UNIQUE,
    WATCH,
    Change,
    Message,
    NewRow,
    Position,
    Row,
    Unreadable,
    Watch,
)

ACTOR = "wheel"


@dataclass(slots=True)
class Claimants:
    """Rows that claim one of some keys, in order of position: (key, task id, row)."""

    found: list[tuple[str, str, Row]] = field(default_factory=list)
    offsets: dict[int, Position] = field(default_factory=dict)  #: lane → settled up to here before that was read

    def left(self) -> list[int]:
        """Ids of the rows that had left for good: a row that was put elsewhere was read there."""
        return [row.id for _, _, row in self.found if row.position <= self.offsets.get(row.lane, ORIGIN)]


def claimants(ctx: Context, term: Term, kind: str, keys: Sequence[str]) -> Claimants:
    with term.active():
        offsets = {number: lane.offset for number, lane in term.lanes.items()}
    return Claimants(ctx.store.watchers(ctx.shard, kind, keys), offsets)


def unique_keys(arrivals: Sequence[Message | Unreadable]) -> list[str]:
    """The unique keys of what came, each once; mostly there are none."""
    keys = [one.unique for one in arrivals if isinstance(one, Message) and one.unique is not None]
    return list(dict.fromkeys(keys)) if keys else keys


@dataclass(slots=True, eq=False)
class Admission:
    """What came, at its position, and the rows that it replaces: one change."""

    intake: Intake
    replaced: Revision | None = None

    @property
    def change(self) -> Change:
        return self.intake.change


def admit(term: Term, arrivals: Sequence[Message | Unreadable], unique: Claimants | None, now_ms: int) -> Admission:
    """``unique``: who claims the unique keys of the arrivals; None where they have none."""
    if unique is None:
        admission = Admission(term.reserve(arrivals, now_ms))
    else:
        contest = _Contest(term, unique, now_ms)
        contest.judge(arrivals)
        replaced = withdraw(term, contest.replaced, "cancelled", Why("", ACTOR, now_ms, contest.reasons))
        admission = Admission(term.reserve(arrivals, now_ms, contest.set_aside), replaced)
        _join(admission.change, replaced.change)
        admission.change.unwatched += unique.left()
    change = admission.change
    change.watches += [
        watch
        for new in change.rows
        if (new.message.watch is not None or new.message.unique is not None) and new.lane != REST
        for watch in _claims(new)
    ]
    return admission


def admitted(term: Term, admission: Admission) -> None:
    """The change is committed."""
    term.place(admission.intake)
    if admission.replaced is not None:
        revised(term, admission.replaced)


def _claims(new: NewRow) -> list[Watch]:
    message = new.message
    claims = [Watch(WATCH, key, new.id) for key in dict.fromkeys(message.watch or ())]
    return claims if message.unique is None else [*claims, Watch(UNIQUE, message.unique, new.id)]


def _join(change: Change, other: Change) -> None:
    """What a withdrawal writes, beside what it is withdrawn for."""
    change.moves += other.moves
    change.outcomes += other.outcomes
    change.unwatched += other.unwatched
    change.watches += other.watches
    for key, n in other.tally.items():
        change.tally[key] = change.tally.get(key, 0) + n


class _Contest:
    """One arrival after the other, as if each came alone."""

    def __init__(self, term: Term, unique: Claimants, now_ms: int) -> None:
        self._term = term
        self._now_ms = now_ms
        self._stored: dict[str, list[tuple[str, Row]]] = {}  #: key → rows that wait, hardly ever more than one
        self._came: dict[str, Message] = {}  #: key → of those that come at once, the one that waits
        for key, task_id, row in unique.found:
            if not handed_over(term, row):
                self._stored.setdefault(key, []).append((task_id, row))
        self.set_aside: dict[str, SetAside] = {}  #: by envelope
        self.replaced: list[tuple[str, Row]] = []
        self.reasons: dict[int, str] = {}  #: why, by id of the replaced row

    def judge(self, arrivals: Sequence[Message | Unreadable]) -> None:
        for arrival in arrivals:
            if isinstance(arrival, Unreadable) or (key := arrival.unique) is None:
                continue
            if self._term.is_cancelled(arrival, self._now_ms) is not None:
                continue  # it will not wait in any case
            waiting = self._who_waits(key)
            if waiting is None or arrival.on_conflict == REPLACE:
                self._replace(key, arrival)
                self._came[key] = arrival
                continue
            kind = "rejected" if arrival.on_conflict == REJECT else "cancelled"
            reason = f"another task is waiting for the unique key {key!r}: {waiting}"
            self.set_aside[arrival.envelope_id] = SetAside(kind, reason, ACTOR)

    def _who_waits(self, key: str) -> str | None:
        """Its task id."""
        if key in self._came:
            return self._came[key].task_id
        return self._stored[key][0][0] if key in self._stored else None

    def _replace(self, key: str, arrival: Message) -> None:
        """Whatever waits gives its place."""
        reason = f"replaced by task {arrival.task_id}, of the same unique key {key!r}"
        came, stored = self._came.pop(key, None), self._stored.pop(key, [])
        if came is not None:
            self.set_aside[came.envelope_id] = SetAside("cancelled", reason, ACTOR)
        self.replaced += stored
        self.reasons.update({row.id: reason for _, row in stored})
