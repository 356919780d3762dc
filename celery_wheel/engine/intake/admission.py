"""Admission: each arrival becomes a pending row, or is cancelled or rejected; a unique key has one pending task.

::

    unique key   is another task of the key pending?           the new task, by its on_conflict
                 no; or it may have been published             is accepted
                 yes                                           keep      the new task is cancelled
                                                               replace   it is accepted; the pending one is cancelled
                                                               reject    it is rejected and keeps its bytes
    window       the key stays taken                           keep, reject   as above
    (throttle)   from the eta on, whether the                  follow    it is accepted, due when the window is over; a
                 task is published or not                                later one replaces it and keeps its due time
    latest       the new task replaces another one             it is due by the latest time of the replaced one
    (debounce)
    batch        other calls of the batch wait                 it is due with them; once they are ``size``, all are now

A task with a tombstone or a revoked stamp is cancelled whatever its unique key. Several messages in one group commit
are admitted one after the other, as if each came alone. A task that may have been published does not count as pending:
the new task is accepted, and both run, unless there is a window. Windows and bounds are in the claim of a row, so they
hold over a takeover; a window ends with the row's history.
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

    found: list[tuple[model.Watch, model.Row]] = field(default_factory=list)  #: with their claims
    offsets: dict[int, model.Position] = field(default_factory=dict)  #: lane → its offset before the rows were read
    mark: Mark = NO_MARK  #: the state's, before the rows were read

    def are_stale(self, state: ShardState) -> bool:
        """Whether a row may wait in another lane than the lane in which it was read; the caller holds the lock."""
        return state.may_be_diverted((row for _, row in self.found), self.mark)

    def published(self, now_ms: int) -> list[int]:
        """Return the ids of the rows at or before the offset of their lane whose claims have ended."""
        return [
            row.id
            for claim, row in self.found
            if row.position <= self.offsets.get(row.lane, model.ORIGIN)
            and (claim.window_ms is None or row.eta_ms + claim.window_ms <= now_ms)
        ]


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
        if arrival.refused is not None:
            why = Retirement("rejected", arrival.refused, ACTOR)
        elif why is None and contest is not None:
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
    if message.unique is not None:
        claims.append(model.Watch(model.UNIQUE, message.unique, new.id, message.latest_ms, message.window_ms))
    return claims


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


@dataclass(slots=True)
class _Holder:
    """A task that has a key: it is pending, or it was published and its window is not over."""

    task_id: str
    eta_ms: int
    latest_ms: int | None
    window_ms: int | None
    task: model.Row | model.Message  #: a row of the store, or an arrival before this one


class _Contest:
    """Decides about arrivals with unique keys, one after the other, as if each came alone."""

    def __init__(self, work: UnitOfWork, unique: Claimants, cancelled: _Cancellations) -> None:
        self._work = work
        self._unique = unique
        self._cancelled = cancelled
        self._pending: dict[str, list[_Holder]] = {}  #: by key; of most keys at most one
        self._published: dict[str, list[_Holder]] = {}  #: with a window, which may be over
        self._begun: set[int] = set()  #: ids of published rows in whose window an arrival was sent
        self.retired: dict[str, Retirement] = {}  #: envelope id → outcome of an arrival that will not be published
        for claim, row in unique.found:
            holder = _Holder(row.task_id, row.eta_ms, claim.latest_ms, claim.window_ms, row)
            if not work.state.may_be_published(row):
                self._pending.setdefault(claim.key, []).append(holder)
            elif claim.window_ms is not None:
                self._published.setdefault(claim.key, []).append(holder)

    def decide(self, arrivals: Sequence[model.Arrival]) -> None:
        for arrival in arrivals:
            if not isinstance(arrival, model.Message) or (key := arrival.unique) is None:
                continue
            if arrival.refused is not None or self._cancelled.why(arrival) is not None:
                continue  # it will not be pending and competes for no key
            if arrival.batch is not None:
                self._join(key, arrival, arrival.batch)
            elif arrival.on_conflict == model.FOLLOW:
                self._follow(key, arrival)
            elif arrival.on_conflict == model.REPLACE:
                self._replace(key, arrival, self._pending.pop(key, []))
            elif taken := self._why_taken(key, arrival):
                kind = "rejected" if arrival.on_conflict == model.REJECT else "cancelled"
                self.retired[arrival.envelope_id] = Retirement(kind, taken, ACTOR)
            else:
                self._accept(key, arrival)
        ended = self._unique.published(self._work.now_ms)
        self._work.change.unwatched += [row_id for row_id in ended if row_id not in self._begun]

    def _windows(self, key: str, arrival: model.Message) -> list[_Holder]:
        """Return the published tasks in whose window the arrival is, or was sent: it may come late, after an outage."""
        found = list[_Holder]()
        for one in self._published.get(key, ()):
            ends_ms = one.eta_ms + (one.window_ms or 0)
            if self._work.now_ms < ends_ms or one.eta_ms <= arrival.created_ms < ends_ms:
                found.append(one)
                if isinstance(one.task, model.Row):
                    self._begun.add(one.task.id)
        return found

    def _accept(self, key: str, arrival: model.Message) -> None:
        holder = _Holder(arrival.task_id, arrival.eta_ms, arrival.latest_ms, arrival.window_ms, arrival)
        self._pending.setdefault(key, []).append(holder)

    def _why_taken(self, key: str, arrival: model.Message) -> str:
        """Return the reason, for people, why no other task can have the key; empty where it is free."""
        for holder in self._pending.get(key, ()):
            return f"another task with the unique key {key!r} is pending: {holder.task_id}"
        for holder in self._windows(key, arrival):
            return f"another task with the unique key {key!r} has begun its window: {holder.task_id}"
        return ""

    def _replace(self, key: str, arrival: model.Message, pending: Sequence[_Holder]) -> None:
        """Accept a task, due at the latest when the pending ones would be, which it replaces."""
        why = Retirement("cancelled", f"replaced by task {arrival.task_id} with the same unique key {key!r}", ACTOR)
        for holder in pending:
            if isinstance(holder.task, model.Message):
                self.retired[holder.task.envelope_id] = why
            elif self._work.take_out(holder.task):
                self._work.cancel(holder.task, why)
        latest = [arrival.latest_ms, *(one.latest_ms for one in pending)]
        bounds = [one for one in latest if one is not None]
        if bounds:
            arrival.latest_ms = min(bounds)
            arrival.eta_ms = min(arrival.eta_ms, arrival.latest_ms)
        self._accept(key, arrival)

    def _follow(self, key: str, arrival: model.Message) -> None:
        """Accept a task: at once where the key is free, else when the window is over, in place of one that waits so."""
        pending = self._pending.get(key, [])
        followers = [one for one in pending if one.latest_ms is not None]
        before = [one for one in pending if one.latest_ms is None] + self._windows(key, arrival)
        if followers:
            arrival.eta_ms = arrival.latest_ms = followers[0].eta_ms
            self._pending[key] = [one for one in pending if one.latest_ms is None]
        elif before:
            own_ms = arrival.window_ms or 0
            free_ms = max(one.eta_ms + (own_ms if one.window_ms is None else one.window_ms) for one in before)
            arrival.eta_ms = arrival.latest_ms = max(arrival.eta_ms, free_ms)
        self._replace(key, arrival, followers)

    def _join(self, key: str, arrival: model.Message, size: int) -> None:
        """Accept a call of a batch: due with the batch that it joins, or after the time for which it waits for others.

        A batch that is full is due now, or once the last of its calls may run: own etas differ by a delay, or by the
        clocks of producers. Nobody joins a batch that is due before the call's own eta, or after its time.
        """
        now_ms, due_ms = self._work.now_ms, arrival.latest_ms or arrival.eta_ms
        # A call of a batch keeps in its claim by how much it waits: an import has no other way to know its own eta.
        own_ms, batches = arrival.eta_ms - (arrival.window_ms or 0), dict[int, list[_Holder]]()
        for one in self._pending.get(key, ()):
            is_open = one.eta_ms == one.latest_ms and now_ms < one.eta_ms
            if is_open and own_ms <= one.eta_ms <= due_ms:
                batches.setdefault(one.eta_ms, []).append(one)
        open_ = {at_ms: members for at_ms, members in batches.items() if len(members) < size}
        due_ms = min(open_, default=due_ms)
        arrival.eta_ms, arrival.latest_ms, arrival.window_ms = due_ms, due_ms, max(0, due_ms - own_ms)
        self._accept(key, arrival)
        members = [*open_.get(due_ms, ()), self._pending[key][-1]]
        full_ms = max(now_ms, *(one.eta_ms - (one.window_ms or 0) for one in members))  # the own etas of the calls
        if len(members) >= size and full_ms < due_ms:
            for one in members:
                self._end_wait(one, full_ms)

    def _end_wait(self, holder: _Holder, due_ms: int) -> None:
        work, task = self._work, holder.task
        holder.eta_ms, holder.latest_ms = due_ms, None
        if isinstance(task, model.Message):
            task.eta_ms, task.latest_ms, task.window_ms = due_ms, None, None
        elif work.take_out(task):
            work.move(task, work.state.lanes.for_eta(due_ms, work.now_ms), due_ms, due_ms)
