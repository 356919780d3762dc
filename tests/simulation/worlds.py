"""The worlds by name: each class takes a seed, and its ``run`` raises ``Violation`` where a promise breaks."""

from typing import Any

from tests.simulation.fleet import Fleet
from tests.simulation.fleet_in_step import FleetInStep
from tests.simulation.group_world import GroupRabbitWorld, GroupWorld
from tests.simulation.happenings import Violation
from tests.simulation.rabbit_world import PackWorld, RabbitPackWorld, RabbitWorld
from tests.simulation.recurring_world import RecurringRabbitWorld, RecurringWorld
from tests.simulation.schedule_fleet import ScheduleFleet
from tests.simulation.world import World

WORLDS: dict[str, type[Any]] = {
    "redis": World,
    "rabbitmq": RabbitWorld,
    "recurring": RecurringWorld,
    "recurring-rabbitmq": RecurringRabbitWorld,
    "groups": GroupWorld,
    "groups-rabbitmq": GroupRabbitWorld,
    "packs": PackWorld,
    "packs-rabbitmq": RabbitPackWorld,
    "processes": Fleet,
    "processes-in-step": FleetInStep,
    "processes-schedules": ScheduleFleet,
}


def violation_of(world: type[Any], seed: int) -> tuple[int, Violation] | None:
    try:
        world(seed).run()
    except Violation as violation:
        return seed, violation
    return None
