"""Traces of the simulation as steps of the models: what a real engine did, event by event, is allowed by its model.

::

    world.disk, world.server ── seen ──► Recording ──► events of the model ──► ``checker.replay``: accepted, or refused
    steps of the engines ─────────────►

``recording`` makes a world that records. A commit, a call to the broker and its answer are recorded where they take
effect, also where their answers are lost. A lease lapses when its time in the store is over, by the world's clock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from celery_wheel.engine.port import Chunk as PortChunk
from celery_wheel.engine.port import Published, PublishResult
from celery_wheel.engine.round import Round
from celery_wheel.store.model import CANCEL, STOPPED, WAITING, Change, Message
from tests.model.cancelling import CANCELLED, OTHER, PENDING, Cancelling
from tests.model.checker import Counterexample, Event, Map, Model, replay
from tests.model.doubt import Doubt
from tests.model.lease import Lease
from tests.model.releasing import Releasing
from tests.model.shard import At, Chunk, Commit, Place
from tests.simulation.group_world import GroupRabbitWorld, GroupWorld
from tests.simulation.happenings import Scheduler, Violation
from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.world import World


def _at(position: Any) -> At:
    return tuple(position)  # type: ignore[return-value]


def _chunk(chunk: Any) -> Chunk:
    return Chunk(chunk.lane, _at(chunk.after), _at(chunk.upto), tuple(row.id for row in chunk.rows))


def commit_of(epoch: int, change: Change) -> Commit:
    stored = [*change.rows, *(row for block in change.blocks for row in block.rows())]
    return Commit(
        epoch,
        tuple((one.id, Place(one.lane, (one.due_ms, one.seq))) for one in stored),
        tuple((one.id, Place(one.lane, (one.due_ms, one.seq))) for one in change.moves),
        tuple((one.lane, _at(one.offset), _at(one.watermark)) for one in change.lanes),
        tuple(change.closed),
    )


def _nothing(*_found: Any) -> tuple[Event, ...]:
    return ()


class Cancels:
    """Records the events of ``Cancelling``, where the broker is a Redis that loses nothing."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.events: list[Event] = []
        self.tasks: dict[int, str] = {}  #: by row
        self.items: dict[str, tuple[int, list[str]]] = {}  #: command → its item and its tasks
        self.known = set[str]()  #: tasks that were sent

    def send(self, task: str) -> None:
        if task not in self.known:
            self.known.add(task)
            self.events.append(("send", task))

    def put(self, item: Any) -> None:
        if item.kind == CANCEL:
            command = json.loads(item.payload)
            self.items[command["id"]] = item.id, command["task_ids"]
            self.events += [("ask", (item.id, task), task) for task in command["task_ids"]]

    def withdrawn(self, number: int) -> None:
        for item, tasks in self.items.values():
            if item == number:
                self.events += [("withdraw", (item, task)) for task in tasks]

    def committed(self, _epoch: int, change: Change) -> None:
        kinds = {one.timer_id: one.kind for one in change.outcomes}
        for row in [*change.rows, *(row for block in change.blocks for row in block.rows())]:
            task = self.tasks[row.id] = row.message.task_id
            self.send(task)
            outcome = PENDING if row.lane != STOPPED else CANCELLED if kinds.get(row.id) == "cancelled" else OTHER
            self.events.append(("accept", task, outcome))
        done = set[str]()
        for one in change.answers:
            if one.id in self.items:
                item = self.items[one.id][0]
                for task, result in one.results.items():
                    self.events += [("decide", (item, task), result), ("answer", (item, task))]
                    done |= {task} if result == "done" else set()
        for move in change.moves:
            task = self.tasks.get(move.id, "")
            if move.lane == STOPPED and task not in done:
                self.events.append(("stop", task, CANCELLED if kinds.get(move.id) == "cancelled" else OTHER))
            elif move.lane != STOPPED and task:
                self.events.append(("divert", task))

    def adopted(self, _epoch: int) -> None:
        self.events.append(("crash",))

    def take(self, rows: tuple[int, ...]) -> None:
        self.events += [("take", self.tasks[row]) for row in rows]

    def published(self, chunk: PortChunk, answer: Published) -> None:
        if answer.result is PublishResult.PUBLISHED:
            for row in chunk.rows:
                what = "refuse" if row.id in answer.failed else "publish"
                self.events += [("take", self.tasks[row.id]), (what, self.tasks[row.id])]


class Releases:
    """Records the events of ``Releasing`` of one group, where nobody changes its limit and Redis loses nothing."""

    def __init__(self, world: Any, group: str) -> None:
        self.world, self.group = world, group
        self.events: list[Event] = []
        self.places: dict[int, Place] = {}  #: of the group's rows
        self.since: dict[int, int] = {}  #: row → when it was published
        self.settled, self.finished = set[int](), set[int]()

    def committed(self, _epoch: int, change: Change) -> None:
        self.time_out()
        events = self.events
        for row in [*change.rows, *(row for block in change.blocks for row in block.rows())]:
            if row.message.group == self.group and row.lane != STOPPED:
                self.places[row.id] = Place(row.lane, (row.due_ms, row.seq))
                events.append(("come", row.id))
                events += [("wait", row.id)] if row.lane == WAITING else []
        for move in change.moves:
            if move.id in self.places:
                before, after = self.places[move.id].lane, move.lane
                self.places[move.id] = Place(after, (move.due_ms, move.seq))
                if before == WAITING != after and after != STOPPED:
                    events.append(("release" if move.eta_ms is None else "leave", move.id))
                    events += [("come", move.id)] if move.eta_ms is not None else []
                elif move.id not in self.since:
                    events += [("leave", move.id)] + [("come", move.id)] * (after != STOPPED)
                    events += [("wait", move.id)] if after == WAITING else []
        events += [("end", one.timer_id) for one in change.run_ends if one.timer_id in self.finished]
        self.finished -= {one.timer_id for one in change.run_ends}
        runs = {one.timer_id for one in change.runs}
        for lane, offset, _ in commit_of(0, change).lanes:
            for row in sorted(self.since.keys() - self.settled):
                if self.places[row].lane == lane and self.places[row].at <= offset:
                    self.settled.add(row)
                    self.time_out()
                    events.append(("settle", row, row in runs))

    def begin(self) -> None:
        self.time_out()
        self.events.append(("crash",))

    def time_out(self) -> None:
        for row, since_ms in self.since.items():
            if since_ms is not None and since_ms + self.world.max_runtime_ms <= self.world.clock_ms:
                self.since[row] = 2**62
                self.events += [("time_out", row), ("expire", row)]

    def published(self, chunk: PortChunk, answer: Published) -> None:
        if answer.result is PublishResult.PUBLISHED:
            self.time_out()
            for row in chunk.rows:
                if row.id in self.places and row.id not in answer.failed:
                    self.events += [("take", row.id), ("publish", row.id)]
                    self.since[row.id] = self.world.clock_ms

    def finish(self, row: int) -> None:
        if row in self.since and row not in self.finished:
            self.finished.add(row)
            self.events.append(("finish", row, True))


class Recording(World):
    """Mixed into a world: it notes the events of the models of the store and the broker."""

    def __init__(self, seed: int) -> None:
        self.events: list[Event] = []
        self.lease_until_ms: int | None = None
        self.starts: Counter[str] = Counter()  #: of the schedulers, by name
        self.epochs: dict[str, int] = {}  #: scheduler → the epoch that it has acquired last
        self.chunks: dict[tuple[int, int], Chunk] = {}  #: epoch and lane → the last chunk taken
        super().__init__(seed)
        self.recalls = False  # a replay publishes rows of its own accord
        if self.limits.retention_ms:  # a task whose history is gone is unknown
            self.limits = replace(self.limits, retention_ms=10**10)
            for scheduler in self.schedulers:
                scheduler.engine.ctx.limits = self.limits
        self.cancels = Cancels(self)
        self.releases = [Releases(self, group) for group in ("tenant:1", "tenant:2")]
        server = self.rabbit if isinstance(self, RabbitWorld) else self.server
        self.disk.seen = server.seen = self.see

    def see(self, what: str, *found: Any) -> None:
        if self.lease_until_ms is not None and self.lease_until_ms <= self.clock_ms:
            self.events.append(("lapse",))
            self.lease_until_ms = None
        self.events += getattr(self, "_" + what.replace(" ", "_"), _nothing)(*found)
        for listener in (self.cancels, *self.releases):
            getattr(listener, what.replace(" ", "_"), _nothing)(*found)

    def _acquired(self, epoch: int, until_ms: int) -> list[Event]:
        self.lease_until_ms = until_ms
        name = self.disk.shard(0).holder or ""
        self.epochs[name] = epoch
        return [("acquire", f"{name}{self.starts[name]}")]

    def _renewed(self, epoch: int, until_ms: int) -> list[Event]:
        self.lease_until_ms = until_ms
        return [("renew", epoch)]

    def _freed(self, epoch: int) -> list[Event]:
        self.lease_until_ms = None
        return [("free", epoch)]

    def _committed(self, epoch: int, change: Change) -> list[Event]:
        return [("commit", commit_of(epoch, change))]

    def _adopted(self, epoch: int) -> list[Event]:
        return [("adopt", epoch, "adopted")]

    def _offset_set(self, epoch: int, lane: int, at: Any) -> list[Event]:
        return [("set_offset", epoch, lane, _at(at))]

    def _dropped(self, epoch: int, lanes: Any) -> list[Event]:
        return [("drop", epoch, tuple(lanes))]

    def _published(self, chunk: PortChunk, answer: Published) -> list[Event]:
        return [("publish", chunk.epoch, _chunk(chunk), tuple(answer.failed), answer.result.value)]

    def _sent(self, chunk: PortChunk, row: Any) -> list[Event]:
        return [("send", chunk.epoch, row.id, chunk.redelivered)]

    def _refused(self, row: Any) -> list[Event]:
        return [("refuse", row.id)]

    def stepped(self, scheduler: Scheduler, activity: str, step: str | Round | None) -> None:
        super().stepped(scheduler, activity, step)
        state = scheduler.engine.state
        if step == "state made":
            self.events.append(("begin", self.epochs[scheduler.name]))
            for releases in self.releases if self.epochs[scheduler.name] == self.disk.shard(0).epoch else ():
                releases.begin()
        elif step == "taken" and state is not None:
            for lane in state.lanes:
                if lane.in_flight is not None:
                    self._take(state.epoch, _chunk(lane.in_flight))

    def _take(self, epoch: int, chunk: Chunk) -> None:
        if self.chunks.get((epoch, chunk.lane)) != chunk:
            self.chunks[epoch, chunk.lane] = chunk
            self.events.append(("take", epoch, chunk))
            if epoch == self.disk.shard(0).epoch:
                self.cancels.take(chunk.rows)

    def deliver(self, message: Message) -> None:
        self.cancels.send(message.task_id)
        super().deliver(message)

    def _report(self, row_id: int) -> None:
        for releases in self.releases:
            releases.finish(row_id)
        super()._report(row_id)  # type: ignore[misc]

    def _crash(self, scheduler: Scheduler) -> None:
        self.events.append(("crash", f"{scheduler.name}{self.starts[scheduler.name]}"))
        self.starts[scheduler.name] += 1
        super()._crash(scheduler)

    def _lose(self) -> None:
        super()._lose()
        fence = self.server.keys.fence
        offsets = Map({lane: _at(one.offset) for lane, one in fence.offsets.items()})
        self.events.append(("lose", fence.epoch or 0, offsets))


class TracedCancelling(Cancelling):
    closed = False  #: a unique key, a completed key and a revoke cancel tasks as well


class TracedReleasing(Releasing):
    """A group's rows are in several lines here, by priority and due time: their order is left to the simulation."""

    def check_first(self, state: Any, row: int) -> None: ...

    def check_line(self, state: Any, row: int) -> None: ...

    def broken(self, state: Any) -> str | None:
        return super().broken(replace(state, overtaken=False))


def recording(world: type[Any]) -> type[Any]:
    """Return the world as one that records; nobody changes the limits of its groups."""
    return type(f"Recorded{world.__name__}", (Recording, world), {"limit_shares": (0,)})


def traces_of(world: Any) -> Iterator[tuple[Model, list[Event]]]:
    """Yield each model that the run is in the scope of, with the events of the run."""
    if isinstance(world, RabbitWorld):
        yield Doubt(), world.events
        return
    yield Lease(loses=True), world.events
    if world.loses or world.clock_steps:
        return
    yield TracedCancelling(), world.cancels.events
    if isinstance(world, GroupWorld):
        for one in world.releases:
            limit = world.limits.groups["tenant"].concurrency
            yield TracedReleasing(limit=limit), one.events


def judge(world: type[Any], seed: int) -> Counter[str]:
    """Run a seed and its traces; returns the traces and events by model. Counterexample where a model refuses one."""
    run, counts = world(seed), Counter[str]()
    with suppress(Violation):  # the models judge what happened until then
        run.run()
    for model, events in traces_of(run):
        name = type(model).__name__.removeprefix("Traced")
        try:
            counts[f"{name}: events"] += replay(model, events)
        except Counterexample as refused:
            raise Counterexample(f"{world.__name__}, seed {seed}, {name}: {refused}") from refused
        counts[f"{name}: traces"] += 1
    return counts


#: The worlds whose traces are judged. The recurring ones add messages, and nothing to these models.
WORLDS = [recording(world) for world in (World, RabbitWorld, GroupWorld, GroupRabbitWorld)]


def judge_all(seed: int) -> Counter[str]:
    """Judge a seed of each world."""
    return sum((judge(world, seed) for world in WORLDS), Counter[str]())


def first_refusal(world: type[Any], seeds: Iterable[int]) -> str | None:
    """Return the first line of the first counterexample; None where each trace is accepted."""
    if not issubclass(world, World):
        return None
    recorded = recording(world)
    for seed in seeds:
        try:
            judge(recorded, seed)
        except Counterexample as refused:
            return str(refused).partition("\n")[0]
    return None
