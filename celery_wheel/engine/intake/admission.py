"""Admission: each arrival becomes a pending row, or is cancelled or rejected; a unique key has one pending task.

::

    unique key   is another task of the key pending?           the new task, by its on_conflict
                 no; or it may have been published             is accepted
                 yes                                           keep      the new task is cancelled
                                                               replace   it is accepted; the pending one is cancelled
                                                               reject    it is rejected and keeps its bytes

A task with a tombstone or a revoked stamp is cancelled whatever its unique key. Several messages in one group commit
are admitted one after the other, as if each came alone. A task that may have been published does not count as pending:
the new task is accepted, and both run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import NO_MARK, Mark, ShardState
from celery_wheel.engine.state.tombstones import BY_STAMP
from celery_wheel.engine.unit_of_work import Retirement, UnitOfWork
from celery_wheel.store import model

ACTOR = "wheel"


@dataclass(slots=True)
class Claimants:
    """Rows that claim one of some keys, in order of position."""

    found: list[tuple[str, model.Row]] = field(default_factory=list)  #: with their keys
    offsets: dict[int, model.Position] = field(default_factory=dict)  #: lane → its offset before the rows were read
    mark: Mark = NO_MARK  #: the state's, before the rows were read

    def are_stale(self, state: ShardState) -> bool:
        """Whether a row may wait in another lane than the lane in which it was read; the caller holds the lock."""
        return state.may_be_diverted((row for _, row in self.found), self.mark)

    def published(self) -> list[int]:
        """Return the ids of the rows at or before the offset of their lane; their claims have ended."""
        return [row.id for _, row in self.found if row.position <= self.offsets.get(row.lane, model.ORIGIN)]


def claimants(ctx: Context, state: ShardState, kind: str, keys: Sequence[str]) -> Claimants:
    """Read the rows that claim keys: ``kind`` is UNIQUE or WATCH.

    The offsets come first: a row that is moved before it is read has a position after the offset of its new lane.
    """
    with state.active():
        offsets = {number: lane.offset for number, lane in state.lanes.all.items()}
        mark = state.mark()
    return Claimants(ctx.store.watchers(ctx.shard, kind, keys), offsets, mark)


def unique_keys(arrivals: Sequence[model.Arrival]) -> list[str]:
    """Return the unique keys of the arrivals, each once."""
    keys = [one.unique for one in arrivals if isinstance(one, model.Message) and one.unique is not None]
    return list(dict.fromkeys(keys)) if keys else keys


def admit(
    work: UnitOfWork,
    arrivals: Sequence[model.Arrival],
    unique: Claimants | None = None,
    tombstones: Mapping[str, model.Tombstone] | None = None,
) -> None:
    """Give each arrival its position or outcome, in the order of arrival; the caller holds the lock."""
    cancelled = _Cancellations(work, tombstones or {})
    if cancelled:
        arrivals = model.each(arrivals)
    contest = _Contest(work, unique, cancelled) if unique is not None else None
    if contest is not None:
        contest.decide(arrivals)
    for arrival in arrivals:
        if isinstance(arrival, model.MessageBlock):
            work.accept_block(arrival)
            continue
        if isinstance(arrival, model.Unreadable):
            work.reject(arrival)
            continue
        why = cancelled.why(arrival)
        if why is None and contest is not None:
            why = contest.retired.get(arrival.envelope_id)
        if why is not None:
            work.accept_retired(arrival, why)
            continue
        new = work.accept(arrival)
        if arrival.watch is not None or arrival.unique is not None:
            work.change.watches += _claims(new)


def _claims(new: model.StoredMessage) -> list[model.Watch]:
    message = new.message
    claims = [model.Watch(model.WATCH, key, new.id) for key in dict.fromkeys(message.watch or ())]
    return claims if message.unique is None else [*claims, model.Watch(model.UNIQUE, message.unique, new.id)]


class _Cancellations:
    """Finds the arrivals that a tombstone or a revoked stamp cancels."""

    def __init__(self, work: UnitOfWork, tombstones: Mapping[str, model.Tombstone]) -> None:
        self._tombstones = {one: tomb for one, tomb in tombstones.items() if tomb.until_ms >= work.now_ms}
        self._stamps = work.state.stamps

    def __bool__(self) -> bool:
        return bool(self._tombstones or self._stamps)

    def why(self, arrival: model.Message) -> Retirement | None:
        tombstone = self._tombstones.get(arrival.task_id)
        if tombstone is not None:
            return Retirement("cancelled", tombstone.reason, tombstone.actor)
        if self._stamps and self._stamps.match(arrival.headers):
            return Retirement("cancelled", BY_STAMP, "control")
        return None


class _Contest:
    """Decides about arrivals with unique keys, one after the other, as if each came alone."""

    def __init__(self, work: UnitOfWork, unique: Claimants, cancelled: _Cancellations) -> None:
        self._work = work
        self._cancelled = cancelled
        self._stored: dict[str, list[model.Row]] = {}  #: key → pending rows, hardly ever more than one
        self._accepted: dict[str, model.Message] = {}  #: key → the arrival that is accepted, so far
        self.retired: dict[str, Retirement] = {}  #: envelope id → outcome of an arrival that will not be published
        for key, row in unique.found:
            if not work.state.may_be_published(row):
                self._stored.setdefault(key, []).append(row)
        work.change.unwatched += unique.published()

    def decide(self, arrivals: Sequence[model.Arrival]) -> None:
        for arrival in arrivals:
            if not isinstance(arrival, model.Message) or (key := arrival.unique) is None:
                continue
            if self._cancelled.why(arrival) is not None:
                continue  # it will not be pending and competes for no key
            pending = self._pending_task(key)
            if pending is None or arrival.on_conflict == model.REPLACE:
                self._replace(key, arrival)
                self._accepted[key] = arrival
                continue
            kind = "rejected" if arrival.on_conflict == model.REJECT else "cancelled"
            reason = f"another task with the unique key {key!r} is pending: {pending}"
            self.retired[arrival.envelope_id] = Retirement(kind, reason, ACTOR)

    def _pending_task(self, key: str) -> str | None:
        """Return the id of the pending task of a key; None where there is none."""
        if key in self._accepted:
            return self._accepted[key].task_id
        return self._stored[key][0].task_id if key in self._stored else None

    def _replace(self, key: str, arrival: model.Message) -> None:
        """Cancel the pending tasks of the key."""
        why = Retirement("cancelled", f"replaced by task {arrival.task_id} with the same unique key {key!r}", ACTOR)
        accepted, stored = self._accepted.pop(key, None), self._stored.pop(key, [])
        if accepted is not None:
            self.retired[accepted.envelope_id] = why
        for row in stored:
            if self._work.take_out(row):
                self._work.cancel(row, why)
