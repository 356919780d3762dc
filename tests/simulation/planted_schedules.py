"""Planted bugs of schedules that are in the shards of their groups; see ``planted``."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from celery_wheel.engine.recurring import change, location, runs
from celery_wheel.engine.recurring.materialise import Occurrences
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.agenda import Agenda
from celery_wheel.store.schedule_model import Run
from tests.simulation.planted import replaces
from tests.simulation.schedule_fleet import ScheduleFleet

replaces_in_fleet = functools.partial(replaces, world=ScheduleFleet)


@replaces_in_fleet(Occurrences, "_has_left", seed=1)
def a_schedule_stays_in_the_shard_of_its_name(right: Any, found: Occurrences, *args: Any) -> bool:
    return False


@replaces_in_fleet(Agenda, "may_leave", seed=122)
def a_schedule_moves_once(right: Any, agenda: Agenda, schedule: Any) -> bool:
    return schedule.id not in agenda._left


@replaces_in_fleet(runs, "_known", seed=99)
def runs_of_the_former_shard_are_over(right: Any, state: Any, found: Iterable[tuple[Run, Any, int]]) -> list[Any]:
    return list(right(state, [one for one in found if one[2] == state.shard]))


@replaces_in_fleet(location, "_rest", seed=1)
def results_are_lost_on_the_way(right: Any, payload: bytes, names: Mapping[str, int], results: Any) -> bytes:
    return bytes(right(payload, names, {}))


@replaces_in_fleet(change, "locate", seed=0)
def each_shard_changes_its_own_schedules_alone(right: Any, ctx: Context, command: Any) -> Any:
    here, _ = right(ctx, command)
    return here, {}
