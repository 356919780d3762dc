"""Recurring schedules after a resharding: each is in the shard of its name, with its pending runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import select

from celery_wheel.broker import shard_of
from celery_wheel.store.model import HOUR_MS, ORIGIN, Position, TallyKey
from celery_wheel.store.schedule_model import MISSED, Run, Schedule, Skip
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.test_tables import rows_of
from tests.kit.holder import NOW, Holder
from tests.kit.schedules import MINUTE, create, materialise, occurrence, revision, step

LATER = NOW + HOUR_MS
MakeSqlStore = Callable[[], SqlStore]
NAMES = [f"schedule-{n}" for n in range(40)]


def fill(store: SqlStore) -> dict[str, tuple[Schedule, Run, Run]]:
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
            hour = TallyKey(waits.due_ms // HOUR_MS, "celery", waits.message.task)
            skips = [Skip(one.id, NOW - 9, NOW - 1, 9, MISSED, NOW)]
            holder.apply(rows=[gone, waits], runs=[first, second], skips=skips, tally={hour: 1})
            filled[name] = one, first, second
        holder.settle(ORIGIN, Position(NOW, holder.highest_seq))
        store.release(number, holder.epoch)
    return filled


def shards_in(store: SqlStore, name: str) -> dict[int, int]:
    """Return schedule → shard, in the table of that name."""
    table = getattr(schema, name)
    number = table.c.id if name == "schedule" else table.c.schedule
    with store.database.reading() as connection:
        return dict(map(tuple, connection.execute(select(number, table.c.shard))))


@pytest.mark.parametrize("shards", [1, 3, 5])
def test_a_schedule_goes_to_the_shard_of_its_name_with_its_pending_runs(
    make_sql_store: MakeSqlStore, shards: int
) -> None:
    store = make_sql_store()
    filled = fill(store)
    store.maintenance.reshard(shards, shard_of, LATER)
    expected = {one.id: shard_of(name, "", shards) for name, (one, _, _) in filled.items()}
    assert shards_in(store, "schedule") == shards_in(store, "schedule_skip") == expected
    for name, (one, _, second) in filled.items():
        number = expected[one.id]
        assert store.schedules_named(number, [name]) == [one]
        [(run, task)] = store.runs_of(number, [one.id], True, 9)
        assert (run, task.row.seq & 0xFF) == (second, number)
    assert sum(sum(store.pending(number).values()) for number in range(shards)) == len(NAMES)


def test_runs_of_removed_shards_are_forgotten_with_their_timers(make_sql_store: MakeSqlStore) -> None:
    store = make_sql_store()
    filled = fill(store)
    stay = {second.timer_id for _, _, second in filled.values()}
    stay |= {first.timer_id for name, (_, first, _) in filled.items() if shard_of(name, "", 2) == 0}
    store.maintenance.reshard(1, shard_of, LATER)
    assert {row["timer_id"] for row in rows_of(store, schema.schedule_run)} == stay
    assert {row["id"] for row in rows_of(store, schema.timer)} == stay
    assert len(rows_of(store, schema.revision)) == len(NAMES)


def test_new_holders_go_on_where_the_former_ones_stopped(make_sql_store: MakeSqlStore) -> None:
    store = make_sql_store()
    filled = fill(store)
    store.maintenance.reshard(3, shard_of, LATER)
    holders = [Holder(store, shard=number) for number in range(3)]
    assert sum(materialise(holder, NOW + 2 * MINUTE) for holder in holders) == len(NAMES)
    for name, (one, _, second) in filled.items():
        holder = holders[shard_of(name, "", 3)]
        pending = store.runs_of(holder.shard, [one.id], True, 9)
        assert [run.instant_ms for run, _ in pending] == [NOW + 2 * MINUTE, second.instant_ms]
    first = filled[NAMES[0]][0]
    holder = holders[shard_of(first.name, "", 3)]
    holder.apply(schedule_steps=[step(first)])
    assert create(holder, "new")[0].id not in {one.id for one, _, _ in filled.values()}


def test_a_drain_reads_every_schedule_of_a_shard_with_its_changes(
    make_sql_store: MakeSqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_wheel.store.sql.handover.SCHEDULES_AT_ONCE", 3)
    store = make_sql_store()
    holder = Holder(store)
    made = create(holder, *NAMES[:7], paused=True)
    second = replace(made[0], revision=2, note="changed")
    holder.apply(schedules=[second], revisions=[revision(second, "changed", before="{}")])
    found = list(store.handover.schedules(0))
    assert store.handover.count_schedules(0) == 7
    assert [one.schedule for one in found] == [second, *made[1:]]
    assert [[change.what for change in one.revisions] for one in found] == [["created", "changed"], *[["created"]] * 6]
    assert list(store.handover.schedules(1)) == []
    assert store.handover.count_schedules(1) == 0
