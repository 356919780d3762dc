"""Planted bugs of fleets: schedules in the shards of their groups, and rounds in step; see ``planted``."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery_wheel.engine.recurring import change, location, runs
from celery_wheel.engine.recurring.materialise import Occurrences
from celery_wheel.engine.round import Context, SharedCall
from celery_wheel.engine.state.agenda import Agenda
from celery_wheel.errors import Fenced, WheelError
from celery_wheel.store.model import ShardChange
from celery_wheel.store.schedule_model import Run
from tests.simulation.fleet_in_step import FleetInStep
from tests.simulation.model_store import ModelStore
from tests.simulation.planted import replaces
from tests.simulation.schedule_fleet import ScheduleFleet

replaces_in_fleet = functools.partial(replaces, world=ScheduleFleet)
replaces_in_step = functools.partial(replaces, world=FleetInStep)


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


@replaces_in_step(SharedCall, "make_with", seed=0)
def answers_of_a_shared_call_in_another_order(right: Any, call: SharedCall, calls: Sequence[SharedCall]) -> None:
    right(call, calls)
    answers = [one._answers for one in calls]
    for one, answer in zip(calls, reversed(answers), strict=True):
        one._answers = answer


@replaces_in_step(ModelStore, "apply_all", seed=0)
def error_of_a_shared_transaction_is_dropped(right: Any, *args: Any) -> Any:
    return [None for _ in right(*args)]


@replaces_in_step(ModelStore, "apply_all", seed=41)
def shared_transaction_without_a_fence(right: Any, store: ModelStore, changes: Sequence[ShardChange]) -> Any:
    answers: list[WheelError | None] = right(store, changes)
    store.check_epoch = False
    again = [store._tried(one) for one, answer in zip(changes, answers, strict=True) if isinstance(answer, Fenced)]
    del store.check_epoch
    return [None if isinstance(answer, Fenced) else answer for answer in answers] if again else answers
