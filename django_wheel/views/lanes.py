"""A lane of a shard in words: its tasks, the instant up to which it is published, and what holds it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from celery_wheel.overview import ShardStatus
from celery_wheel.store.model import PAUSED
from celery_wheel.values.format import format_duration
from django_wheel.drawing.times import Moments
from django_wheel.formats import gate_label, number, printable


class LaneLine(NamedTuple):
    name: str
    state: str
    offset: str  #: the instant up to which the lane is published
    ready: int | None  #: rows in memory that are due; None where the holder's snapshot has no such lane


#: Rates by the name of a queue or a task, as the setting ``wheel_rate_limits`` has them.
Rates = Mapping[str, tuple[int, int]]


def lane_row(lane: Mapping[str, Any], shard: ShardStatus, rates: Rates, times: Moments) -> LaneLine:
    known = {one["lane"]: one for one in (shard.snapshot or {}).get("lanes", ())}
    target, scope = lane["target"], lane["scope"]
    if scope is not None:
        name, state = gate_label(scope, target or ""), _gate_state(shard, scope, target, rates)
    elif target is not None:
        name, state = printable(target), _("waits until its queue accepts messages")
    else:
        name, state = (_("beside the main lane") if lane["lane"] else _("main lane")), ""
    offset_ms = lane["offset"][0]
    offset = f"{times.moment(offset_ms)} ({times.distance(offset_ms)})" if offset_ms else "-"
    return LaneLine(name, state, offset, known.get(lane["lane"], {}).get("ready"))


def _gate_state(shard: ShardStatus, scope: str, target: str | None, rates: Rates) -> str:
    for gate in shard.gates:
        if (gate.scope, gate.name) == (scope, target):
            return (
                _("paused")
                if gate.state == PAUSED
                else _("resumed evenly over %(duration)s") % {"duration": format_duration(gate.per_ms)}
            )
    rate = rates.get(target or "")
    if rate is None:
        return ""
    return _("at most %(number)s in %(duration)s") % {"number": number(rate[0]), "duration": format_duration(rate[1])}
