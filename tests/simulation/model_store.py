"""The model of a store: plain data in memory, which the oracles read. It passes the suite of tests/contract/stores.

``Disk`` survives a crash; several ``ModelStore`` objects on one disk are several schedulers. The model calls ``fault``
around every commit, and ``fault`` may raise: before the commit, no change is written (the wait for the shard's row was
too long, the session was ended); after it, the whole change is (the answer of COMMIT was lost).
"""

import bisect
import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any

from celery_wheel.errors import Fenced, RequestWithdrawn, StoreRolledBack, WheelError
from celery_wheel.store import model
from celery_wheel.store.bulk_model import BulkPart, BulkRows
from celery_wheel.store.erasure_model import AuditErasure, ErasureCriterion
from celery_wheel.store.ports import Bell, ForgetPlace, Renewal, Retention
from celery_wheel.store.schedule_model import Run, Schedule
from tests.kit.rows import tally_key
from tests.simulation import model_history
from tests.simulation.model_history import ShardData, StoredRow, ids_in
from tests.simulation.model_loads import ModelLoads

#: After every row.
END = model.Position(2**62, model.MAX_SEQ)


def no_fault(_point: str) -> None:
    return


def unseen(*_event: object) -> None:
    """Stands for a reader of what happens, such as ``tests.model.traces``."""


class SilentBell:
    """The bell of a store that does not tell."""

    tells = False

    def wait(self, most_s: float) -> None:
        time.sleep(most_s)

    def close(self) -> None: ...


class Disk:
    """The data of a store; leases end by ``now_ms``, the store's own clock, or without one by the caller's clock."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self.now_ms = now_ms
        self.uuid = str(uuid.UUID(int=0))
        self.secret = uuid.UUID(int=1)
        self.shards: dict[int, ShardData] = {}
        self.schedulers: dict[str, int] = {}
        self.archived: dict[int, int] = {}  #: shard → number up to which an archive has everything
        self.inbox_ids = itertools.count(1)
        self.loads = ModelLoads()
        self.lock = threading.RLock()
        self.seen: Callable[..., None] = unseen  #: called with each commit

    def shard(self, number: int) -> ShardData:
        if number not in self.shards:
            self.shards[number] = ShardData()
        return self.shards[number]


class ModelStore:
    check_epoch = True

    def __init__(self, disk: Disk | None = None, fault: Callable[[str], None] = no_fault) -> None:
        self.disk = disk or Disk()
        self.fault = fault

    @property
    def uuid(self) -> str:
        return self.disk.uuid

    def derived_id(self, name: str) -> str:
        return str(uuid.uuid5(self.disk.secret, name))

    # -- holding -------------------------------------------------------------------------------------

    def acquire(self, shard: int, holder: str, now_ms: int, lease_ms: int) -> int | None:
        with self.disk.lock:
            data = self.disk.shard(shard)
            now_ms = self.disk.now_ms() if self.disk.now_ms else now_ms
            if data.owner not in (None, self) and data.lease_until_ms > now_ms:
                return None
            self.fault("before commit")
            data.epoch += 1
            data.holder, data.owner, data.lease_until_ms = holder, self, now_ms + lease_ms
            self.disk.seen("acquired", data.epoch, now_ms + lease_ms)
            self.fault("after commit")
            return data.epoch

    def _held(self, shard: int, epoch: int, known: int = 0) -> ShardData:
        data = self.disk.shard(shard)
        if self.check_epoch and data.epoch != epoch:
            raise Fenced(f"shard {shard} is at epoch {data.epoch}, not {epoch}")
        if data.accepted < known:
            raise StoreRolledBack(f"shard {shard} has accepted {data.accepted} messages, not {known}")
        return data

    def renew(
        self, shard: int, epoch: int, now_ms: int, lease_ms: int, snapshot: dict[str, object] | None, known: int = 0
    ) -> None:
        with self.disk.lock:
            self.fault("before commit")
            data = self._held(shard, epoch, known)
            snapshot_at_ms, now_ms = now_ms, self.disk.now_ms() if self.disk.now_ms else now_ms
            data.lease_until_ms = now_ms + lease_ms
            if snapshot is not None:
                data.snapshot, data.snapshot_at_ms = snapshot, snapshot_at_ms
            self.disk.seen("renewed", epoch, now_ms + lease_ms)
            self.fault("after commit")

    def renew_all(self, renewals: Sequence[Renewal], now_ms: int, lease_ms: int) -> set[int]:
        renewed = set()
        with self.disk.lock:
            for shard, epoch, snapshot, known in renewals:
                with suppress(Fenced, StoreRolledBack):
                    self.renew(shard, epoch, now_ms, lease_ms, snapshot, known)
                    renewed.add(shard)
        return renewed

    def release(self, shard: int, epoch: int) -> None:
        with self.disk.lock:
            self.fault("before commit")
            data = self.disk.shard(shard)
            if data.epoch == epoch:
                data.holder, data.owner, data.lease_until_ms = None, None, 0
                self.disk.seen("freed", epoch)
            self.fault("after commit")

    def register_scheduler(self, scheduler: str, now_ms: int, silent_ms: int) -> list[str]:
        with self.disk.lock:
            self.disk.schedulers[scheduler] = now_ms
            return sorted(name for name, seen_ms in self.disk.schedulers.items() if seen_ms > now_ms - silent_ms)

    def unregister_scheduler(self, scheduler: str) -> None:
        with self.disk.lock:
            self.disk.schedulers.pop(scheduler, None)

    def holders(self) -> dict[int, str | None]:
        return {number: data.holder for number, data in sorted(self.disk.shards.items())}

    # -- writing -------------------------------------------------------------------------------------

    def apply_all(self, changes: Sequence[model.ShardChange]) -> list[WheelError | None]:
        """Apply changes in one transaction, from which each that its shard refuses is left out."""
        try:
            with self.disk.lock:
                self.fault("before commit")
                answers = [self._tried(one) for one in changes]
                self.fault("after commit")
        except WheelError as error:
            return [error] * len(changes)
        return answers

    def _tried(self, one: model.ShardChange) -> WheelError | None:
        try:
            self._apply(*one)
        except WheelError as error:
            return error
        return None

    def apply(self, shard: int, epoch: int, change: model.Change) -> None:
        with self.disk.lock:
            self.fault("before commit")
            self._apply(shard, epoch, change)
            self.fault("after commit")

    def _apply(self, shard: int, epoch: int, change: model.Change) -> None:
        data = self._held(shard, epoch, change.known)
        if any(item_id not in data.inbox for item_id in (*change.inbox, *(one.item for one in change.passed_on))):
            raise RequestWithdrawn("simulated")
        for new in (*change.rows, *chain.from_iterable(block.rows() for block in change.blocks)):
            self._insert(
                data, model.Row.of(new.message, new.id, new.lane, new.due_ms, new.seq), new.accepted_ms, new.message
            )
        for reject in change.rejects:
            self._insert(data, resting(reject.id, reject.accepted_ms), reject.accepted_ms, reject.unreadable)
        model_history.assert_lines_in_order(data, change)
        for move in change.moves:
            row = data.rows[move.id].row
            data.order[row.lane].remove((row.due_ms, row.seq, row.id))
            row.lane, row.due_ms, row.seq, row.line = move.lane, move.due_ms, move.seq, move.line
            assert (move.line is not None) == (move.lane == model.WAITING)
            if move.eta_ms is not None:
                row.eta_ms = move.eta_ms
            bisect.insort(data.order.setdefault(row.lane, []), (row.due_ms, row.seq, row.id))
        model_history.erase(data, change.erased)
        for lane in change.lanes:
            data.lanes[lane.lane] = lane
        data.closed = data.closed - {lane.lane for lane in change.lanes} | set(change.closed)
        for number in change.closed:
            assert number > 0
            assert not ids_in(data, number, data.lanes[number].offset, END), "what is pending is in an open lane"
        data.settlements += change.settlements
        data.outcomes += change.outcomes
        for key, n in change.tally.items():
            data.tally[key] = data.tally.get(key, 0) + n
        for item_id in change.inbox:
            del data.inbox[item_id]
        for item_id, to, payload in change.passed_on:
            self.disk.shard(to).inbox[item_id] = replace(data.inbox.pop(item_id), payload=payload)
        self.disk.loads.accept(change.loaded)
        data.answers |= {one.id: one for one in change.answers if one.id not in data.answers}
        data.tombstones.update({one.task_id: one for one in change.tombstones})
        over = {(kind, id_) for id_ in change.unwatched for kind in (model.WATCH, model.UNIQUE, model.UNANNOUNCED)}
        over |= {(model.WATCH, id_) for id_ in change.completed}
        data.watches = [one for one in data.watches if (one.kind, one.timer_id) not in over] + change.watches
        for place in change.opened:
            data.gates.pop(place, None)
        data.gates.update({(one.scope, one.name): one for one in change.gates})
        model_history.apply_schedules(data, change)
        for id_, to in change.moved_schedules.items():
            self.disk.shard(to).schedules[id_] = data.schedules.pop(id_)
        names = [one.name for each in self.disk.shards.values() for one in each.schedules.values()]
        assert len(names) == len(set(names)), "a name is unique"
        model_history.apply_groups(data, change)
        data.seq = max(data.seq, change.seq)
        data.accepted += change.accepted
        self.disk.seen("committed", epoch, change)

    def _insert(
        self, data: ShardData, row: model.Row, accepted_ms: int, message: model.Message | model.Unreadable
    ) -> None:
        assert row.id not in data.rows
        assert message.envelope_id not in data.envelopes
        data.rows[row.id] = StoredRow(row, accepted_ms, message)
        data.envelopes[message.envelope_id] = row.id
        bisect.insort(data.order.setdefault(row.lane, []), (row.due_ms, row.seq, row.id))

    def forget(self, shard: int, epoch: int, retention: Retention, limit: int) -> int:
        with self.disk.lock:
            self.fault("before commit")
            return model_history.forget(self._held(shard, epoch), retention, limit, self.disk.archived)

    def repack(self, shard: int, epoch: int) -> int | None:
        return None  # it keeps messages as they are

    def forget_named(
        self, shard: int, epoch: int, name: str, retention: Retention, after: ForgetPlace
    ) -> tuple[int, ForgetPlace]:
        with self.disk.lock:
            self.fault("before commit")
            return model_history.forget_named(self._held(shard, epoch), name, retention, self.disk.archived), after

    def now_ms(self) -> int | None:
        return self.disk.now_ms() if self.disk.now_ms else None

    # -- reading -------------------------------------------------------------------------------------

    def state(self, shard: int) -> model.ShardRecord:
        data = self.disk.shard(shard)
        return model.ShardRecord(
            *(shard, data.epoch, data.holder, data.lease_until_ms, data.seq),
            *(data.snapshot, data.snapshot_at_ms, data.accepted),
        )

    def lanes(self, shard: int) -> list[model.LaneState]:
        with self.disk.lock:
            data = self.disk.shard(shard)
            return [lane for number, lane in sorted(data.lanes.items()) if number not in data.closed]

    def known(self, shard: int, envelope_ids: Sequence[str]) -> dict[str, str]:
        self.fault("read")
        data = self.disk.shard(shard)
        messages = {id_: data.rows[data.envelopes[id_]].message for id_ in data.envelopes.keys() & set(envelope_ids)}
        return {id_: one.task_id if isinstance(one, model.Message) else one.of[1] for id_, one in messages.items()}

    def slice_end(
        self, shard: int, lane: int, after: model.Position, upto: model.Position, max_count: int, max_bytes: int
    ) -> model.Position:
        self.fault("read")
        rows = self.slice(shard, lane, after, upto)
        weight = 0
        for n, row in enumerate(rows):
            weight += row.size
            if n and (n >= max_count or weight > max_bytes):
                return rows[n - 1].position
        return upto

    def slice(self, shard: int, lane: int, after: model.Position, upto: model.Position) -> list[model.Row]:
        self.fault("read")
        with self.disk.lock:
            data = self.disk.shard(shard)
            return [copy_of(data.rows[row_id].row) for row_id in ids_in(data, lane, after, upto)]

    def count(self, shard: int, lane: int, after: model.Position, upto: model.Position) -> int:
        self.fault("read")
        with self.disk.lock:
            return len(ids_in(self.disk.shard(shard), lane, after, upto))

    def count_chunks(self, chunks: Sequence[tuple[int, int, model.Position, model.Position]]) -> list[int]:
        return [self.count(*one) for one in chunks]

    def summary(self, shard: int, lane: int, after: model.Position, upto: model.Position) -> model.RangeSummary:
        rows = self.slice(shard, lane, after, upto)
        return model.RangeSummary(len(rows), sum(row.size for row in rows), Counter(map(tally_key, rows)))

    def find(self, shard: int, task_ids: Sequence[str]) -> list[model.Row]:
        self.fault("read")
        with self.disk.lock:
            return [row for row in self._of(shard, task_ids) if row.lane != model.STOPPED]

    def last_outcomes(self, shard: int, task_ids: Sequence[str]) -> dict[str, str]:
        with self.disk.lock:
            kinds = {one.timer_id: one.kind for one in self.disk.shard(shard).outcomes}
            return {row.task_id: kinds[row.id] for row in self._of(shard, task_ids) if row.lane == model.STOPPED}

    def stopped_rows(self, shard: int, task_ids: Sequence[str]) -> list[tuple[str, model.Row]]:
        with self.disk.lock:
            kinds = {one.timer_id: one.kind for one in self.disk.shard(shard).outcomes}
            return [(kinds[row.id], row) for row in self._of(shard, task_ids) if row.lane == model.STOPPED]

    def rows(self, shard: int, row_ids: Sequence[int]) -> list[model.Row]:
        with self.disk.lock:
            stored = self.disk.shard(shard).rows
            return [copy_of(stored[row_id].row) for row_id in row_ids if row_id in stored]

    def _of(self, shard: int, task_ids: Sequence[str]) -> list[model.Row]:
        stored, wanted = self.disk.shard(shard).rows.values(), {*task_ids}
        found = [
            task_row(one) for one in stored if isinstance(one.message, model.Message) and one.message.task_id in wanted
        ]
        return sorted(found, key=lambda one: one.position)

    def settlement_start(self, shard: int, lane: int, upto: model.Position, since_ms: int) -> model.Position | None:
        settlements = [
            settlement
            for settlement in self.disk.shard(shard).settlements
            if settlement.lane == lane and settlement.from_ < upto and settlement.dispatched_ms >= since_ms
        ]
        return min((settlement.from_ for settlement in settlements), default=None)

    def pending(self, shard: int) -> dict[model.TallyKey, int]:
        return {key: n for key, n in self.disk.shard(shard).tally.items() if n}

    # -- the inbox -----------------------------------------------------------------------------------

    def put_inbox(self, shard: int, items: Iterable[tuple[str, bytes]]) -> None:
        self.put_inboxes({shard: list(items)})

    def put_command(self, shard: int, kind: str, payload: bytes) -> int:
        self.put_inbox(shard, [(kind, payload)])
        return max(self.disk.shard(shard).inbox)

    def put_commands(self, commands: Sequence[tuple[int, str, bytes]], items: list[int] | None = None) -> list[int]:
        items = [] if items is None else items
        items.extend(self.put_command(*command) for command in commands)
        return items

    def command_payload(self, item: int) -> bytes | None:
        with self.disk.lock:
            return next((data.inbox[item].payload for data in self.disk.shards.values() if item in data.inbox), None)

    def withdraw(self, item: int, command: tuple[int, str, bytes]) -> bool:
        with self.disk.lock:
            same = [one.inbox for one in self.disk.shards.values() if item in one.inbox]
            done = any(inbox[item].payload == command[2] and inbox.pop(item) is not None for inbox in same)
            if done:
                self.disk.seen("withdrawn", item)
            return done

    def answer(self, command_id: str) -> dict[str, Any] | None:
        return self.answers([command_id]).get(command_id)

    def answers(self, command_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        with self.disk.lock:
            kept = [data.answers for data in self.disk.shards.values()]
            return {one: dict(data[one].results) for data in kept for one in command_ids if one in data}

    def tombstones(self, shard: int, task_ids: Sequence[str]) -> dict[str, model.Tombstone]:
        self.fault("read")
        found = self.disk.shard(shard).tombstones
        return {task_id: found[task_id] for task_id in task_ids if task_id in found}

    def tombstone_ids(self, shard: int) -> Iterator[str]:
        return iter(list(self.disk.shard(shard).tombstones))

    def watchers(self, shard: int, kind: str, keys: Sequence[str]) -> list[tuple[model.Watch, model.Row]]:
        self.fault("read")
        with self.disk.lock:
            data = self.disk.shard(shard)
            watches = [one for one in data.watches if one.kind == kind and one.key in keys]
            found = [(one, data.rows[one.timer_id]) for one in watches]
            rows = [(claim, task_row(one)) for claim, one in found if one.row.lane != model.STOPPED]
        return sorted(rows, key=lambda one: one[1].position)

    def unannounced(self, shard: int, after: int, limit: int) -> list[model.Row]:
        with self.disk.lock:
            data = self.disk.shard(shard)
            ids = sorted(one.timer_id for one in data.watches if one.kind == model.UNANNOUNCED and one.timer_id > after)
            rows = [data.rows[row_id] for row_id in ids[:limit]]
            return [task_row(one) for one in rows]

    def gates(self, shard: int) -> list[model.Gate]:
        return list(self.disk.shard(shard).gates.values())

    def expire(self, shard: int, epoch: int, now_ms: int, answers_before_ms: int, audits_before_ms: int = 0) -> None:
        with self.disk.lock:
            self.fault("before commit")
            data = self._held(shard, epoch)
            data.answers = {id_: one for id_, one in data.answers.items() if one.at_ms >= answers_before_ms}
            data.tombstones = {id_: one for id_, one in data.tombstones.items() if one.until_ms >= now_ms}
            data.rates = {name: at_ms for name, at_ms in data.rates.items() if at_ms >= now_ms}
            self.disk.loads.expire()
            self.fault("after commit")

    # -- groups --------------------------------------------------------------------------------------

    def lines(self, shard: int) -> list[model.LineState]:
        return [replace(one) for _, one in sorted(self.disk.shard(shard).lines.items())]

    def limits(self, shard: int, groups: Sequence[str] | None = None) -> list[model.GroupLimit]:
        found = sorted(self.disk.shard(shard).limits.items())
        return [one for name, one in found if groups is None or name in groups]

    def rates(self, shard: int) -> dict[str, int]:
        return dict(self.disk.shard(shard).rates)

    def first_waiting(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[model.Row]:
        self.fault("read")
        with self.disk.lock:
            return [
                copy_of(row)
                for number, count in wanted
                for row in model_history.line(self.disk.shard(shard), number)[:count]
            ]

    # -- schedules -----------------------------------------------------------------------------------

    def due_schedules(self, shard: int, upto_ms: int, limit: int) -> list[Schedule]:
        self.fault("read")
        with self.disk.lock:
            return model_history.due_schedules(self.disk.shard(shard), upto_ms)[:limit]

    def next_schedule_ms(self, shard: int, skip: int = 0) -> int | None:
        found = self.due_schedules(shard, 2**62, skip + 1)[skip:]
        return found[0].next_ms if found else None

    def schedules_named(self, names: Sequence[str]) -> list[tuple[int, Schedule]]:
        self.fault("read")
        with self.disk.lock:
            schedules = [(shard, one) for shard, data in self.disk.shards.items() for one in data.schedules.values()]
            return [(shard, replace(one)) for shard, one in schedules if one.name in names]

    def runs_of(self, schedule_ids: Sequence[int], pending_only: bool, limit: int) -> list[tuple[Run, model.Row, int]]:
        self.fault("read")
        with self.disk.lock:
            found = [
                (run, task_row(stored), shard)
                for shard, data in self.disk.shards.items()
                for run, stored in model_history.runs_of(data, schedule_ids, pending_only)
            ]
        found.sort(key=lambda one: (one[0].at_ms, one[0].timer_id), reverse=True)
        return found[:limit]

    def runs_at(self, timer_ids: Sequence[int]) -> list[tuple[int, Run]]:
        self.fault("read")
        with self.disk.lock:
            shards = self.disk.shards.items()
            return [
                (shard, replace(data.runs[id_]))
                for shard, data in shards
                for id_ in timer_ids
                if id_ in data.runs and (id_ in data.rows or model_history.is_open(data.runs[id_]))
            ]

    def open_runs(self, shard: int, now_ms: int) -> list[Run]:
        self.fault("read")
        with self.disk.lock:
            return model_history.open_runs(self.disk.shard(shard), now_ms)

    # -- bulk loads ----------------------------------------------------------------------------------

    def read_loads(self, shard: int, max_rows: int) -> list[model.BulkLoadChunk]:
        with self.disk.lock:
            return self.disk.loads.read(shard, max_rows)

    def put_inboxes(self, items: Mapping[int, Sequence[model.NewItem]]) -> None:
        with self.disk.lock:
            for shard, of_shard in items.items():
                for kind, payload, *_ in of_shard:
                    item = model.InboxItem(next(self.disk.inbox_ids), kind, payload)
                    self.disk.shard(shard).inbox[item.id] = item
                    self.disk.seen("put", item)

    def has_arrivals(self, shard: int) -> bool:
        with self.disk.lock:
            found = bool(self.disk.shard(shard).inbox or self.disk.loads.read(shard, 1))
        if not found:
            self.fault("read")
        return found

    def arrivals(self, shards: Sequence[int]) -> list[int]:
        return [shard for shard in shards if self.has_arrivals(shard)]

    def bell(self) -> Bell:
        return SilentBell()

    def read_inbox(
        self, shard: int, limit: int, max_bytes: int | None = None, max_rows: int = 2**31
    ) -> list[model.InboxItem]:
        self.fault("read")
        with self.disk.lock:
            items = sorted(self.disk.shard(shard).inbox.values(), key=lambda item: item.id)[:limit]
        if max_bytes is None:
            return items
        upto = list(itertools.accumulate(len(item.payload) for item in items))
        return [item for n, item in enumerate(items) if n == 0 or upto[n] <= max_bytes]

    # -- bulk actions: none is begun here ------------------------------------------------------------

    def next_bulk(self, shard: int, action: str | None = None) -> BulkPart | None:
        return None

    def bulk_rows(self, part: BulkPart, limit: int | None) -> BulkRows:
        raise LookupError(part)

    def bulk_task_rows(self, row_ids: Sequence[int]) -> list[model.Row]:
        raise LookupError(row_ids)

    # -- erasure -------------------------------------------------------------------------------------

    def erasable(
        self, shard: int, which: ErasureCriterion, after: int, upto: int, limit: int
    ) -> tuple[list[int], int | None]:
        self.fault("read")
        with self.disk.lock:
            data = self.disk.shard(shard)
            ids = [id_ for id_ in sorted(data.rows) if after < id_ <= upto and model_history.matches(data, which, id_)]
        return ids[:limit], ids[limit - 1] if len(ids) > limit else None

    def audited(self, shard: int, which: ErasureCriterion, after: int) -> tuple[list[AuditErasure], int | None]:
        return [], None  # no model of the audit log

    def schedule_traces(self, schedule_ids: Sequence[int]) -> tuple[int, int]:
        return 0, 0

    def scrub(self) -> None:
        pass

    def close(self) -> None:
        with self.disk.lock:
            for number, data in self.disk.shards.items():
                if data.owner is self:
                    self.release(number, data.epoch)


def resting(row_id: int, accepted_ms: int) -> model.Row:
    place = (row_id, model.STOPPED, accepted_ms, row_id, accepted_ms)
    return model.Row(
        *place,
        model.Route.make("", "", "", "", None, None, None, None, False),
        None,
        None,
        0,
        model.join(b"", b"", b""),
        model.PLAIN,
    )


_columns = attrgetter(*model.Row.__slots__)


def copy_of(row: model.Row) -> model.Row:
    return model.Row(*_columns(row))


def task_row(stored: StoredRow) -> model.Row:
    return replace(stored.row, task_id=stored.message.task_id)
