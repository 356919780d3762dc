"""A shard's data in a model store, with its history and its schedules, as ``celery_wheel.store.sql`` has them."""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from celery_wheel.store import model
from celery_wheel.store.erasure_model import ErasureCriterion
from celery_wheel.store.ports import Retention
from celery_wheel.store.schedule_model import Revision, Run, RunEnd, Schedule, Skip


@dataclass
class StoredRow:
    row: model.Row
    accepted_ms: int
    message: model.Message | model.Unreadable


@dataclass
class ShardData:
    epoch: int = 0
    holder: str | None = None
    owner: object = None
    lease_until_ms: int = 0
    seq: int = 0
    accepted: int = 0
    snapshot: dict[str, object] | None = None
    snapshot_at_ms: int | None = None
    rows: dict[int, StoredRow] = field(default_factory=dict)
    forgotten: dict[int, StoredRow] = field(
        default_factory=dict
    )  #: for the oracles: a real store has removed these rows
    erased: dict[int, StoredRow] = field(default_factory=dict)  #: for the oracles: rows that an erasure removed
    forgotten_outcomes: list[model.Outcome] = field(default_factory=list)  #: outcomes of the forgotten rows
    #: lane → sorted positions with their row id
    order: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    envelopes: dict[str, int] = field(default_factory=dict)
    lanes: dict[int, model.LaneState] = field(
        default_factory=lambda: {0: model.LaneState(0, model.ORIGIN, model.ORIGIN)}
    )
    closed: set[int] = field(default_factory=set)  #: of the lanes
    settlements: list[model.Settlement] = field(default_factory=list)
    outcomes: list[model.Outcome] = field(default_factory=list)
    tally: dict[model.TallyKey, int] = field(default_factory=dict)
    inbox: dict[int, model.InboxItem] = field(default_factory=dict)
    answers: dict[str, model.Answer] = field(default_factory=dict)
    tombstones: dict[str, model.Tombstone] = field(default_factory=dict)
    watches: list[model.Watch] = field(default_factory=list)
    gates: dict[tuple[str, str], model.Gate] = field(default_factory=dict)
    schedules: dict[int, Schedule] = field(default_factory=dict)
    revisions: list[Revision] = field(default_factory=list)
    runs: dict[int, Run] = field(default_factory=dict)  #: by timer; the oracles read those of forgotten timers, too
    skips: list[Skip] = field(default_factory=list)
    waited: set[int] = field(default_factory=set)  #: for the oracles: rows that have waited in a line
    released: set[int] = field(default_factory=set)  #: … and have left it
    returned: set[int] = field(default_factory=set)  #: … and were taken back into it, behind others that had left it
    lines: dict[int, model.LineState] = field(default_factory=dict)
    limits: dict[str, model.GroupLimit] = field(default_factory=dict)
    rates: dict[str, int] = field(default_factory=dict)


def ids_in(data: ShardData, lane: int, after: model.Position, upto: model.Position) -> list[int]:
    order = data.order.get(lane, [])
    low = bisect.bisect_right(order, (*after, 2**64))
    return [row_id for _, _, row_id in order[low : bisect.bisect_right(order, (*upto, 2**64))]]


def forget(data: ShardData, keep: Retention, limit: int, archives: Mapping[int, int]) -> int:
    """``archives``: shard → number up to which an archive has every change."""
    archived = archives if keep.archived_only else None
    gone = 0
    for settlement in sorted(data.settlements, key=lambda settlement: settlement.id):
        over = sum(settlement.bytes for settlement in data.settlements) > keep.max_bytes
        if gone >= limit or not (settlement.dispatched_ms < keep.before_ms or over):
            break
        if archived is not None and not _archived(data, settlement, archived):
            break
        end = min(settlement.to, data.lanes[settlement.lane].offset)
        if end > keep.upto.get(settlement.lane, end):
            break
        ids = ids_in(data, settlement.lane, settlement.from_, end)
        free = _free(data, ids, archived)[: limit - gone]
        _remove(data, free)
        gone += len(free)
        if len(free) < len(ids):
            break
        data.settlements.remove(settlement)
    resting = ids_in(data, model.STOPPED, model.ORIGIN, model.Position(keep.before_ms, 0))
    free = _free(data, resting, archived)[: max(0, limit - gone)]
    _remove(data, free)
    for number in data.closed - {settlement.lane for settlement in data.settlements}:
        if not data.order.get(number):
            data.closed.remove(number)
            del data.lanes[number]
    return gone + len(free)


def forget_named(data: ShardData, name: str, keep: Retention, archives: Mapping[int, int]) -> int:
    """Remove all history of a queue or a task that is older than its retention; ``archives`` as of ``forget``."""
    archived, gone, (scope, _, of) = archives if keep.archived_only else None, 0, name.partition(":")

    def matching(ids: Sequence[int]) -> list[int]:
        routes = ((row_id, data.rows[row_id].row.route) for row_id in ids)
        return [row_id for row_id, route in routes if of == (route.target if scope == "queue" else route.task)]

    for settlement in sorted(data.settlements, key=lambda one: one.id):
        end = min(settlement.to, data.lanes[settlement.lane].offset)
        is_young = settlement.dispatched_ms >= keep.before_ms or end > keep.upto.get(settlement.lane, end)
        if is_young or (archived is not None and not _archived(data, settlement, archived)):
            break
        ids = matching(ids_in(data, settlement.lane, settlement.from_, end))
        free = _free(data, ids, archived)
        _remove(data, free)
        gone += len(free)
        if len(free) < len(ids):
            break
    free = _free(data, matching(ids_in(data, model.STOPPED, model.ORIGIN, model.Position(keep.before_ms, 0))), archived)
    _remove(data, free)
    return gone + len(free)


def _archived(data: ShardData, settlement: model.Settlement, archived: Mapping[int, int]) -> bool:
    """Whether an archive has a settlement, and every later one of the same positions."""
    beyond = [one for one in data.settlements if one.id > archived.get(one.id & (1 << model.SHARD_BITS) - 1, 0)]
    return settlement not in beyond and all(one.from_ >= settlement.to for one in beyond if one.lane == settlement.lane)


def _free(data: ShardData, ids: Sequence[int], archived: Mapping[int, int] | None) -> list[int]:
    """Return the rows that may be removed, up to the first that may not."""
    if archived is None:
        return list(ids)
    beyond = {one.timer_id for one in data.outcomes if one.id > archived.get(one.id & (1 << model.SHARD_BITS) - 1, 0)}
    return list(takewhile(lambda row_id: row_id not in beyond, ids))


def _remove(data: ShardData, ids: Sequence[int]) -> None:
    for row_id in ids:
        stored = data.forgotten[row_id] = data.rows.pop(row_id)
        row = stored.row
        data.watches = [one for one in data.watches if one.timer_id != row_id]
        data.order[row.lane].remove((row.due_ms, row.seq, row.id))
        del data.envelopes[stored.message.envelope_id]
        data.forgotten_outcomes += [outcome for outcome in data.outcomes if outcome.timer_id == row_id]
        data.outcomes = [outcome for outcome in data.outcomes if outcome.timer_id != row_id]


def line(data: ShardData, number: int) -> list[model.Row]:
    """Return the rows of a waiting line in their order."""
    waiting = [data.rows[row_id].row for *_, row_id in data.order.get(model.WAITING, [])]
    found = [row for row in waiting if row.line is not None and row.line >> model.RANK_BITS == number]
    return sorted(found, key=lambda row: (row.line, row.due_ms, row.seq))


def assert_lines_in_order(data: ShardData, change: model.Change) -> None:
    """A row is released together with all rows before it in its line; a user may cancel or move any."""
    leaving = {move.id for move in change.moves}
    for move in change.moves:
        row = data.rows[move.id].row
        if row.line is None or move.lane == model.STOPPED or move.eta_ms is not None:
            continue
        for other in line(data, row.line >> model.RANK_BITS):
            if other.id == row.id:
                break
            assert other.id in leaving or other.seq > row.seq, "a row leaves its line after the rows before it"


def apply_groups(data: ShardData, change: model.Change) -> None:
    waiting = {move.id for move in change.moves if move.lane == model.WAITING}
    data.released |= data.waited & {move.id for move in change.moves} - waiting
    data.returned |= data.released & waiting
    data.waited |= waiting
    for one in change.lines:
        line_ = data.lines.setdefault(one.number, replace(one, waiting=0))
        assert (line_.group, line_.queue) == (one.group, one.queue) or not line_.waiting, "a line is of one group"
        line_.group, line_.queue, line_.waiting = one.group, one.queue, line_.waiting + one.waiting
        assert line_.waiting == len(line(data, one.number)), "the number of waiting rows is exact"
    for number in change.ended_lines:
        if number in data.lines and not data.lines[number].waiting:
            del data.lines[number]
    data.limits.update({one.group: one for one in change.limits})
    for group, empty_ms in change.rates.items():
        data.rates[group] = max(empty_ms, data.rates.get(group, 0))
    for group in change.unlimited:
        data.limits.pop(group, None)


def apply_schedules(data: ShardData, change: model.Change) -> None:
    for removed in change.removed_schedules:
        del data.schedules[removed]
    data.schedules.update({one.id: replace(one) for one in [*change.added_schedules, *change.schedules]})
    for step in change.schedule_steps:
        one = data.schedules[step.id]
        one.next_ms, one.made, one.last_ms = step.next_ms, step.made, step.last_ms
    numbers = {(one.schedule, one.number) for one in data.revisions}
    assert not any((one.schedule, one.number) in numbers for one in change.revisions), "a revision never changes"
    data.revisions += change.revisions
    assert all(run.timer_id in data.rows for run in change.runs), "a run has a row"
    for run in change.runs:
        _add_run(data, run)
    for end in change.run_ends:
        _end_run(data, end)
    if change.skips:
        skips = {(one.schedule, one.from_ms): one for one in (*data.skips, *change.skips)}
        data.skips = list(skips.values())


def _add_run(data: ShardData, run: Run) -> None:
    known = data.runs.setdefault(run.timer_id, replace(run))
    assert run.group is not None or known == run, "an occurrence has one run"
    if known.group is None:
        known.group, known.until_ms = run.group, run.until_ms


def _end_run(data: ShardData, end: RunEnd) -> None:
    known = data.runs.get(end.timer_id)
    if known is None and end.group is not None and end.timer_id in data.rows:
        known = data.runs[end.timer_id] = Run(end.timer_id, group=end.group, until_ms=end.until_ms)
    if known is None:
        return
    if end.group is not None and known.schedule is not None:
        known.group = known.group or end.group
        known.until_ms = end.ended_ms if known.until_ms is None else min(known.until_ms, end.ended_ms)
    elif known.ended_ms is None:
        known.ended_ms = end.ended_ms


def open_runs(data: ShardData, now_ms: int) -> list[Run]:
    """Return the runs that have a slot of their group, which outlive their rows."""
    found = [replace(one) for one in data.runs.values() if is_open(one) and (one.until_ms or 0) > now_ms]
    return sorted(found, key=lambda one: one.timer_id)


def is_open(run: Run) -> bool:
    return run.group is not None and run.ended_ms is None


def due_schedules(data: ShardData, upto_ms: int) -> list[Schedule]:
    found = [one for one in data.schedules.values() if one.next_ms is not None and one.next_ms <= upto_ms]
    return [replace(one) for one in sorted(found, key=lambda one: (one.next_ms, one.id))]


def runs_of(data: ShardData, schedule_ids: Sequence[int], pending_only: bool) -> list[tuple[Run, StoredRow]]:
    found = []
    for run in data.runs.values():
        stored = data.rows.get(run.timer_id)
        if stored is None or run.schedule not in schedule_ids or not isinstance(stored.message, model.Message):
            continue
        row = stored.row
        if not pending_only or (row.lane != model.STOPPED and row.position > data.lanes[row.lane].offset):
            found.append((replace(run), stored))
    return found


def matches(data: ShardData, which: ErasureCriterion, row_id: int) -> bool:
    """Whether an erasure covers a row."""
    message = data.rows[row_id].message
    if which.by == "schedule":
        run = data.runs.get(row_id)
        return run is not None and run.schedule in which.schedules
    if isinstance(message, model.Unreadable):
        return which.by == "task_id" and message.of[1] == which.value
    return bool(getattr(message, which.by) == which.value)


def erase(data: ShardData, ids: Sequence[int]) -> None:
    """Remove rows with all that is of them, and keep them for the oracles."""
    present = [row_id for row_id in ids if row_id in data.rows]
    data.erased.update({row_id: replace(data.rows[row_id]) for row_id in present})
    _remove(data, present)
    data.watches = [one for one in data.watches if one.timer_id not in present]
