"""Planted bugs of groups; see ``planted``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from celery_wheel.engine import release
from celery_wheel.engine.adoption import Adoption
from celery_wheel.engine.port import Chunk, Published
from celery_wheel.engine.recurring import runs
from celery_wheel.engine.state.depths import Depth
from celery_wheel.engine.state.gates import GateRouter
from celery_wheel.engine.state.groups import Group, Groups, Line
from celery_wheel.engine.state.window import Window
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.store.model import GroupLimit, Row
from celery_wheel.store.schedule_model import Run, RunEnd
from celery_wheel.testing.fence import Fence
from tests.simulation.focused import BriefWorld, CrowdedWorld
from tests.simulation.group_world import GroupRabbitWorld, GroupWorld
from tests.simulation.model_store import ModelStore
from tests.simulation.planted import replaces

replaces_in_groups = functools.partial(replaces, world=GroupWorld)
in_a_crowd = functools.partial(replaces, world=CrowdedWorld)
on_rabbitmq = functools.partial(replaces, world=GroupRabbitWorld)


@replaces_in_groups(Group, "room", seed=0)
def one_more_than_the_limit(right: Callable[..., int | None], group: Group, now_ms: int) -> int | None:
    room = right(group, now_ms)
    return room if room is None or group.limit.concurrency is None else room + 1


@replaces_in_groups(Groups, "set_limit", seed=0)
def own_limits_do_not_take_effect(right: Any, groups: Groups, own: GroupLimit) -> None: ...


@replaces_in_groups(Groups, "clear_limit", seed=6)
def own_limits_last_for_ever(right: Any, groups: Groups, group: str) -> None: ...


@in_a_crowd(ModelStore, "limits", seed=3)
def own_limits_forgotten_at_the_adoption(right: Any, store: ModelStore, shard: int, groups: Any = None) -> list[Any]:
    return []


@replaces_in_groups(ModelStore, "open_runs", seed=6)
def runs_forgotten_at_the_adoption(right: Any, store: ModelStore, shard: int, now_ms: int) -> list[Run]:
    return []


@replaces(ModelStore, "open_runs", seed=18, world=BriefWorld)
def runs_forgotten_with_their_rows(right: Any, store: ModelStore, shard: int, now_ms: int) -> list[Run]:
    return [run for run in right(store, shard, now_ms) if run.timer_id in store.disk.shard(shard).rows]


@replaces_in_groups(UnitOfWork, "settle", seed=6)
def runs_not_stored(right: Any, work: UnitOfWork, lane: Any, done: Any) -> None:
    done.runs.clear()
    right(work, lane, done)


@replaces_in_groups(Adoption, "_runs", seed=5)
def published_rows_not_counted_at_the_adoption(right: Any, adoption: Adoption, rows: Iterable[Row]) -> Iterator[Run]:
    yield from ()


@on_rabbitmq(Groups, "adopt_run", seed=0)
def rows_in_doubt_not_counted_at_the_adoption(right: Any, groups: Groups, row_id: int, group: str, until: Any) -> None:
    if until is not None:
        right(groups, row_id, group, until)


@replaces_in_groups(ModelStore, "rates", seed=35)
def rates_begin_anew_with_each_holder(right: Any, store: ModelStore, shard: int) -> dict[str, int]:
    return {}


@replaces_in_groups(Groups, "adopt_published", seed=33)
def published_rows_have_used_no_rate(right: Any, groups: Groups, names: Iterable[str], *times: int) -> dict[str, int]:
    return {}


@on_rabbitmq(Groups, "adopt_run", seed=138)
def rows_in_doubt_use_no_rate(right: Any, groups: Groups, row_id: int, group: str, until: Any) -> None:
    right(groups, row_id, group, until)
    if until is None:
        groups._groups[group].unpublished -= 1


@replaces_in_groups(Group, "room", seed=12)
def a_rate_forgets_rows_on_their_way(right: Any, group: Group, now_ms: int) -> int | None:
    unpublished, group.unpublished = group.unpublished, 0
    try:
        return right(group, now_ms)  # type: ignore[no-any-return]
    finally:
        group.unpublished = unpublished


@replaces_in_groups(runs, "_end_slots", seed=543)
def an_end_before_its_settlement_is_lost(
    right: Callable[..., list[RunEnd]], work: UnitOfWork, row_ids: Iterable[int], known: Any
) -> list[RunEnd]:
    """The slot is free in memory; the next holder finds the run as one that goes on, and it was reported."""
    return [one for one in right(work, row_ids, known) if one.timer_id in known]


@replaces_in_groups(Groups, "expire", seed=3)
def a_lost_report_keeps_its_slot(right: Any, groups: Groups, now_due_ms: int) -> list[int]:
    return []


@replaces_in_groups(Groups, "give_back", seed=3)
def a_cancelled_row_keeps_its_slot(right: Any, groups: Groups, row_id: int) -> None:
    slot = groups._slots.get(row_id)
    if slot is None or slot.until_ms is not None:
        right(groups, row_id)


@replaces_in_groups(Groups, "may_be_released", seed=1392)
def commands_see_released_rows_in_their_lines(right: Any, groups: Groups, row_id: int, since: int) -> bool:
    return False


@in_a_crowd(release, "_in_order", seed=25)
def cancelled_rows_are_released(right: Any, chosen: list[Line], rows: list[Row], removed: set[int]) -> Any:
    return right(chosen, rows, set())


@replaces_in_groups(ModelStore, "first_waiting", seed=3)
def the_last_rows_first(right: Any, store: ModelStore, shard: int, wanted: Sequence[tuple[int, int]]) -> list[Row]:
    everything = right(store, shard, [(number, 2**31) for number, _ in wanted])
    return list(reversed(everything))


@replaces_in_groups(Groups, "admit", seed=10)
def a_new_row_goes_before_those_that_wait(right: Any, groups: Groups, row: Row, now_ms: int) -> bool:
    group = groups._groups.get(row.group or "")
    lines = {} if group is None else group.lines
    if group is not None and lines and not groups.has_slot(row) and group.room(now_ms) != 0:
        group.lines = {}
        try:
            return bool(right(groups, row, now_ms))
        finally:
            group.lines = lines
    return bool(right(groups, row, now_ms))


@replaces_in_groups(Groups, "has_slot", seed=255)
def released_rows_go_behind_those_of_a_gate(right: Any, groups: Groups, row: Row) -> bool:
    return False


@replaces_in_groups(Groups, "left", seed=0)
def a_line_never_empties(right: Any, groups: Groups, line: Line, count: int) -> None:
    right(groups, line, count - 1)


@replaces_in_groups(Depth, "read", seed=43)
def a_depth_forgets_rows_on_their_way(right: Any, depth: Depth, ready: int, now_ms: int, since: Any = None) -> None:
    users, depth.users = depth.users, set()
    right(depth, ready, now_ms, since)
    depth.users = users


@in_a_crowd(Groups, "not_released", seed=33)
def a_release_without_an_answer_keeps_its_places(right: Any, groups: Groups, lines: Iterable[Line]) -> None:
    return


@replaces_in_groups(Window, "is_being_removed", seed=96)
def a_row_leaves_its_line_twice(right: Any, window: Window, row_id: int) -> bool:
    return False


@replaces_in_groups(GateRouter, "__call__", seed=13)
def released_rows_pass_a_pause(right: Callable[..., Any], router: GateRouter, row: Row) -> Any:
    closed, router.gates.closed_groups = router.gates.closed_groups, set()
    try:
        return right(router, row)
    finally:
        router.gates.closed_groups = closed


@replaces_in_groups(Groups, "gate_opened", seed=14)
def a_resumed_group_waits_for_ever(right: Any, groups: Groups, name: str) -> None: ...


@replaces_in_groups(Fence, "check_chunk", seed=3404)
def a_chunk_hides_that_one_of_another_lane_was_lost(
    right: Callable[[Fence, Chunk], Published | None], fence: Fence, chunk: Chunk
) -> Published | None:
    return right(fence, replace(chunk, confirmed=0))


@replaces_in_groups(UnitOfWork, "release", seed=3568)
def rows_released_before_those_of_the_former_holder(right: Any, work: UnitOfWork, row: Row, line: Line) -> None:
    work.state.adopted_ms = 0
    right(work, row, line)
