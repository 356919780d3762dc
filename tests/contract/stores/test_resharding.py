"""Another number of shards: pending tasks move, history stays, and an unsafe resharding is refused.

Recurring schedules after a resharding: each is in the shard of its name, with its pending runs.
"""

import uuid
from dataclasses import replace

import pytest

from celery_wheel.broker import shard_of
from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.store.model import HOUR_MS, ORIGIN, Answer, Gate, GroupLimit, Position, Tombstone, Watch
from celery_wheel.store.schedule_model import MISSED, Run, Schedule, Skip
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.values.ids import id_beside
from tests.contract.stores.test_tables import rows_of
from tests.kit.holder import EVERYTHING, NOW, Holder, hour_of
from tests.kit.schedules import MINUTE, create, materialise, occurrence, revision, step

LATER = NOW + 60_000


def pending(store: SqlStore, shards: int) -> int:
    return sum(sum(store.pending(shard).values()) for shard in range(shards))


def fill(store: SqlStore) -> dict[str, list[int]]:
    """Rows of 6 keys in the shards where producers would have put them; key → due times in order."""
    expected: dict[str, list[int]] = {}
    for shard in range(store.shards):
        holder = Holder(store, shard=shard)
        for n in range(60):
            key = f"key-{n % 6}"
            if shard_of(key, "", store.shards) == shard:
                row = holder.row(NOW + n // 2, key=key, task_id=f"task-{n}")
                holder.apply(rows=[row], tally={hour_of(row): 1})
                expected.setdefault(key, []).append(NOW + n // 2)
        store.release(shard, holder.epoch)
    return expected


def waiting(store: SqlStore, shards: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in sorted(rows_of(store, schema.timer), key=lambda row: (row["due_ms"], row["seq"])):
        assert shard_of(row["key"], "", shards) == row["seq"] & 0xFF == row["shard"]
        found.setdefault(row["key"], []).append(row["due_ms"])
    return found


@pytest.mark.parametrize("shards", [1, 3, 5])
def test_pending_tasks_move_to_their_shard_in_the_order_of_their_key(sql_store: SqlStore, shards: int) -> None:
    expected = fill(sql_store)
    before = pending(sql_store, sql_store.shards)
    done = sql_store.maintenance.reshard(shards, shard_of, LATER)
    assert (done.before, done.after) == (2, shards)
    assert waiting(sql_store, shards) == expected
    assert pending(sql_store, shards) == before == 60
    assert sql_store.holders() == dict.fromkeys(range(shards))
    for shard in range(shards):
        holder = Holder(sql_store, shard=shard)
        holder.accept(LATER)


def test_dispatched_tasks_stay_in_their_shard_and_are_not_published_again(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    rows = holder.accept(NOW, NOW + 1, NOW + 2, key="key-1")
    holder.settle(ORIGIN, Position(rows[1].due_ms, rows[1].seq), at_ms=NOW)
    sql_store.release(0, holder.epoch)
    done = sql_store.maintenance.reshard(4, lambda *_: 3, LATER)
    assert done.moved == 1
    assert [row.id for row in sql_store.slice(3, 0, *EVERYTHING)] == [rows[2].id]
    assert [row.id for row in sql_store.slice(0, 0, *EVERYTHING)] == [rows[0].id, rows[1].id]


@pytest.mark.parametrize("is_dispatched", [False, True])
def test_a_message_that_was_delivered_to_its_former_shard_too_is_kept_once(
    sql_store: SqlStore, *, is_dispatched: bool
) -> None:
    store, envelope_id = sql_store, str(uuid.uuid4())

    def deliver() -> None:
        holder = Holder(store)
        row = holder.row(NOW, key="key-1", task_id="task-1", envelope_id=envelope_id)
        holder.apply(rows=[row], tally={hour_of(row): 1}, watches=[Watch("unique", "key-1", row.id)])
        store.release(0, holder.epoch)

    deliver()
    assert store.maintenance.reshard(3, lambda *_: 2, LATER).moved == 1
    [moved] = store.slice(2, 0, *EVERYTHING)
    if is_dispatched:
        holder = Holder(store, shard=2)
        holder.settle(ORIGIN, Position(moved.due_ms, moved.seq), at_ms=NOW)
        store.release(2, holder.epoch)
    deliver()
    before = pending(store, 3)
    done = store.maintenance.reshard(3, lambda *_: 2, LATER)
    assert (done.moved, done.doubled) == (0, 1)
    assert [row.id for row in store.slice(2, 0, *EVERYTHING)] == [moved.id]
    assert store.slice(0, 0, *EVERYTHING) == []
    assert pending(store, 3) == before - 1


def test_tasks_of_two_shards_with_one_envelope_id_are_both_kept(sql_store: SqlStore) -> None:
    """A store has such tasks after an import from another store, or of a producer that repeats its ids."""
    store, envelope_id = sql_store, str(uuid.uuid4())
    for shard, task_id in enumerate(("one", "two")):
        holder = Holder(store, shard=shard)
        holder.accept(NOW, task_id=task_id, envelope_id=envelope_id)
        store.release(shard, holder.epoch)
    done = store.maintenance.reshard(3, lambda *_: 2, LATER)
    assert (done.moved, done.doubled) == (2, 0)
    assert {row.task_id for row in store.find(2, ["one", "two"])} == {"one", "two"}
    Holder(store, shard=2)
    assert store.known(2, [envelope_id]) == {envelope_id: "one"}
    assert store.known(2, [id_beside(envelope_id, "two")]) == {id_beside(envelope_id, "two"): "two"}


@pytest.mark.parametrize("shards", [1, 3, 5])
def test_watches_tombstones_and_gates_go_along(sql_store: SqlStore, shards: int) -> None:
    expected: dict[str, int] = {}
    for number in range(sql_store.shards):
        holder = Holder(sql_store, shard=number)
        keys = [f"key-{n}" for n in range(20) if shard_of(f"key-{n}", "", sql_store.shards) == number]
        for key in keys:
            row = holder.row(NOW, key=key)
            holder.apply(rows=[row], watches=[Watch("watch", f"order:{key}", row.id), Watch("unique", key, row.id)])
            expected[key] = row.id
        gates = [Gate("queue", "mail", "paused", 0, "outage", "anna", NOW)]
        gates += [Gate("task", "one", "paused", 0, "", "", NOW)] if number else []
        tombstones = [Tombstone("both", NOW + number, "", ""), Tombstone(f"of-{number}", NOW, "paid", "ben")]
        holder.apply(gates=gates, tombstones=tombstones, answers=[Answer(str(uuid.uuid4()), {}, NOW)])
        sql_store.release(number, holder.epoch)
    sql_store.maintenance.reshard(shards, shard_of, LATER)
    for number in range(shards):
        keys = [key for key in expected if shard_of(key, "", shards) == number]
        found = sql_store.watchers(number, "watch", [f"order:{key}" for key in expected])
        assert {(claim.key, row.id) for claim, row in found} == {(f"order:{key}", expected[key]) for key in keys}
        assert {claim.key for claim, _ in sql_store.watchers(number, "unique", list(expected))} == set(keys)
        assert {one.name for one in sql_store.gates(number)} == {"mail", "one"}
        assert {*sql_store.tombstone_ids(number)} == {"both", "of-0", "of-1"}
    for table in (schema.watch, schema.answer, schema.tombstone, schema.gate):
        assert {row["shard"] for row in rows_of(sql_store, table)} <= set(range(shards)), table


@pytest.mark.parametrize("shards", [1, 3, 5])
def test_limits_and_used_rates_of_a_group_go_to_its_shard(sql_store: SqlStore, shards: int) -> None:
    limits = [GroupLimit(f"tenant:{n}", n + 1, None, None, None, None, "anna", NOW) for n in range(20)]
    for number in range(sql_store.shards):
        holder = Holder(sql_store, shard=number)
        holder.apply(limits=[one for one in limits if shard_of(one.group, "", sql_store.shards) == number])
        holder.apply(rates={one.group: NOW + number for one in limits})
        sql_store.release(number, holder.epoch)
    latest = NOW + sql_store.shards - 1
    sql_store.maintenance.reshard(shards, shard_of, LATER)
    for number in range(shards):
        there = [one for one in limits if shard_of(one.group, "", shards) == number]
        assert sql_store.limits(number) == sorted(there, key=lambda one: one.group)
        assert sql_store.rates(number) == {one.group: latest for one in there}
    assert len(rows_of(sql_store, schema.limit)) == len(limits)


@pytest.mark.parametrize("shards", [0, 257])
def test_a_number_that_makes_no_sense_is_refused(sql_store: SqlStore, shards: int) -> None:
    with pytest.raises(SettingError, match="from 1 to 256"):
        sql_store.maintenance.reshard(shards, shard_of, LATER)


def refusal(store: SqlStore) -> str:
    with pytest.raises(StoreUnusable) as caught:
        store.maintenance.reshard(4, shard_of, LATER)
    return str(caught.value)


def test_a_shard_that_is_held_or_a_scheduler_at_work_refuse_it(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    assert "was not given up" in refusal(sql_store)
    sql_store.release(0, holder.epoch)
    sql_store.register_scheduler("host/1", LATER - 100, 1_500)
    assert "stop all schedulers" in refusal(sql_store)
    sql_store.unregister_scheduler("host/1")
    sql_store.put_inbox(0, [("message", b"x")])
    assert "inbox" in refusal(sql_store)
    assert set(sql_store.holders()) == {0, 1}


DUE_LATER = NOW + HOUR_MS
NAMES = [f"schedule-{n}" for n in range(40)]


def fill_schedules(store: SqlStore) -> dict[str, tuple[Schedule, Run, Run]]:
    """Schedules in the shards of their names, each with a dispatched and a pending run, and a skip.

    The messages of the occurrences have keys of their own.
    """
    filled: dict[str, tuple[Schedule, Run, Run]] = {}
    for number in range(store.shards):
        holder = Holder(store, shard=number)
        for name in (name for name in NAMES if shard_of(name, "", store.shards) == number):
            [one] = create(holder, name, next_ms=NOW + 2 * MINUTE)
            gone, first = occurrence(holder, one, NOW, key="order")
            waits, second = occurrence(holder, one, NOW + MINUTE, key="order")
            skips = [Skip(one.id, NOW - 9, NOW - 1, 9, MISSED, NOW)]
            holder.apply(rows=[gone, waits], runs=[first, second], skips=skips, tally={hour_of(waits): 1})
            filled[name] = one, first, second
        holder.settle(ORIGIN, Position(NOW, holder.highest_seq))
        store.release(number, holder.epoch)
    return filled


@pytest.mark.parametrize("shards", [1, 3, 5])
def test_a_schedule_goes_to_the_shard_of_its_name_with_its_pending_runs(sql_store: SqlStore, shards: int) -> None:
    filled = fill_schedules(sql_store)
    sql_store.maintenance.reshard(shards, shard_of, DUE_LATER)
    expected = {one.id: shard_of(name, "", shards) for name, (one, _, _) in filled.items()}
    assert {row["id"]: row["shard"] for row in rows_of(sql_store, schema.schedule)} == expected
    assert {row["schedule"]: row["shard"] for row in rows_of(sql_store, schema.schedule_skip)} == expected
    for name, (one, _, second) in filled.items():
        number = expected[one.id]
        assert sql_store.schedules_named([name]) == [(number, one)]
        [(run, row, _)] = sql_store.runs_of([one.id], True, 9)
        assert (run, row.seq & 0xFF) == (second, number)
    assert pending(sql_store, shards) == len(NAMES)


def test_runs_of_removed_shards_are_forgotten_with_their_timers(sql_store: SqlStore) -> None:
    filled = fill_schedules(sql_store)
    stay = {second.timer_id for _, _, second in filled.values()}
    stay |= {first.timer_id for name, (_, first, _) in filled.items() if shard_of(name, "", 2) == 0}
    sql_store.maintenance.reshard(1, shard_of, DUE_LATER)
    assert {row["timer_id"] for row in rows_of(sql_store, schema.run)} == stay
    assert {row["id"] for row in rows_of(sql_store, schema.timer)} == stay
    assert len(rows_of(sql_store, schema.revision)) == len(NAMES)


def test_a_run_is_in_the_shard_of_its_row_and_in_flight_in_that_of_its_group(sql_store: SqlStore) -> None:
    """Its row is history, and stays where it is."""
    filled = fill_schedules(sql_store)
    flying: dict[int, str] = {}
    for number in range(sql_store.shards):
        holder = Holder(sql_store, shard=number)
        names = [name for name in NAMES if shard_of(name, "", sql_store.shards) == number]
        rows = holder.accept(*[NOW] * len(names))
        holder.apply(runs=[Run(row.id, group=name, until_ms=LATER) for row, name in zip(rows, names, strict=True)])
        holder.settle(Position(NOW, holder.highest_seq - 1), Position(NOW, holder.highest_seq))
        flying |= {row.id: name for row, name in zip(rows, names, strict=True)}
        sql_store.release(number, holder.epoch)
    sql_store.maintenance.reshard(3, shard_of, DUE_LATER)
    for name, (_, first, second) in filled.items():
        [(shard, found)] = sql_store.runs_at([second.timer_id])
        assert (shard, found) == (shard_of(name, "", 3), second)
        [(shard, found)] = sql_store.runs_at([first.timer_id])
        assert (shard, found) == (first.timer_id & 0xFF, first)
    for number in range(3):
        there = {run.timer_id: run.group for run in sql_store.open_runs(number, NOW)}
        assert there == {id_: name for id_, name in flying.items() if shard_of(name, "", 3) == number}


def test_a_run_that_has_a_slot_outlives_its_shard(sql_store: SqlStore) -> None:
    holder = Holder(sql_store, shard=1)
    [row] = holder.accept(NOW, group="tenant")
    holder.apply(runs=[Run(row.id, group="tenant", until_ms=LATER)])
    holder.settle(Position(NOW, row.seq - 1), Position(NOW, row.seq))
    sql_store.release(1, holder.epoch)
    sql_store.maintenance.reshard(1, shard_of, DUE_LATER)
    assert [run.timer_id for run in sql_store.open_runs(0, NOW)] == [row.id]
    assert rows_of(sql_store, schema.timer) == []


def test_new_holders_go_on_where_the_former_ones_stopped(sql_store: SqlStore) -> None:
    filled = fill_schedules(sql_store)
    sql_store.maintenance.reshard(3, shard_of, DUE_LATER)
    holders = [Holder(sql_store, shard=number) for number in range(3)]
    assert sum(materialise(holder, NOW + 2 * MINUTE) for holder in holders) == len(NAMES)
    for one, _, second in filled.values():
        runs = sql_store.runs_of([one.id], True, 9)
        assert [run.instant_ms for run, *_ in runs] == [NOW + 2 * MINUTE, second.instant_ms]
    first = filled[NAMES[0]][0]
    holder = holders[shard_of(first.name, "", 3)]
    holder.apply(schedule_steps=[step(first)])
    assert create(holder, "new")[0].id not in {one.id for one, _, _ in filled.values()}


def test_a_drain_reads_every_schedule_with_its_changes(sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheel.store.sql.handover.SCHEDULES_AT_ONCE", 3)
    holder = Holder(sql_store)
    made = create(holder, *NAMES[:7], paused=True)
    second = replace(made[0], revision=2, note="changed")
    holder.apply(schedules=[second], revisions=[revision(second, "changed", before="{}")])
    found = list(sql_store.handover.schedules(0))
    assert sql_store.handover.count_schedules(0) == 7
    assert [one.schedule for one in found] == [second, *made[1:]]
    assert [[change.what for change in one.revisions] for one in found] == [["created", "changed"], *[["created"]] * 6]
    assert list(sql_store.handover.schedules(1)) == []
    assert sql_store.handover.count_schedules(1) == 0
