"""The page of a schedule: its definition and policies, its next instants, its last runs and its revisions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from celery_wheel.recurring.definition import read_definition
from celery_wheel.store.schedule_model import AHEAD_MS, Schedule, ScheduleDetail
from celery_wheel.values import json_object
from django_wheel.formats import format_duration
from django_wheel.views.payload import Sight, error_text
from django_wheel.views.schedules.actions import EDITABLE, for_schedule
from django_wheel.views.schedules.history import revision_lines
from django_wheel.views.schedules.listing import line_of
from django_wheel.views.schedules.runs import run_chart
from django_wheel.views.schedules.upcoming import upcoming_values

CATCH_UP: dict[str, Promise] = {
    "latest": _("the latest missed instant runs"),
    "all": _("all missed instants run"),
    "none": _("missed instants do not run"),
}
OVERLAP: dict[str, Promise] = {
    "allow": _("runs may overlap"),
    "skip": _("an instant is skipped while an earlier run is not over"),
    "queue_one": _("one instant waits while an earlier run is not over"),
    "cancel_running": _("the earlier run is cancelled"),
}


@dataclass(frozen=True, slots=True)
class DefinitionPart:
    """A value of the definition, as JSON."""

    name: str
    text: str


def schedule_values(wheel: Wheel, name: str, detail: ScheduleDetail, sight: Sight) -> dict[str, Any]:
    schedule = detail.schedule
    values: dict[str, Any] = {
        "name": name,
        "schedule": schedule,
        "now_ms": now_ms(),
        "chart": run_chart(detail),
        "revisions": revision_lines(detail, sight),
    }
    if schedule is None:
        return values
    pending = wheel.store.browse.pending_runs([schedule.id])
    line = line_of(schedule, pending.get(schedule.id, 0))
    return {
        **values,
        "line": line,
        "silent_until_ms": schedule.silent_until_ms(now_ms() + AHEAD_MS),
        "is_editable": schedule.source in EDITABLE and sight.may,
        "actions": () if line.is_of_base else for_schedule(schedule),
        **_of_definition(schedule, sight),
    }


def _of_definition(schedule: Schedule, sight: Sight) -> dict[str, Any]:
    document = sight.document(json_object(schedule.definition))
    parts = [
        DefinitionPart(part, json.dumps(document[part], indent=2, ensure_ascii=False))
        for part in ("args", "kwargs", "options", "recurrence")
        if document.get(part)
    ]
    raw = "" if document or not sight.may else sight.mask.part(schedule.definition.encode()).decode()
    values: dict[str, Any] = {"document": document, "parts": parts, "raw": raw}
    try:
        definition = read_definition(schedule.definition)
    except WheelError as error:
        return {**values, "problem": error_text(str(error), sight.may)}
    values["policies"] = {
        "catch_up": CATCH_UP.get(definition.catch_up, definition.catch_up),
        "catch_up_within": format_duration(definition.catch_up_ms) if definition.catch_up_ms else "",
        "overlap": OVERLAP.get(definition.overlap, definition.overlap),
        "max_runtime": format_duration(definition.max_runtime_ms),
        "jitter": format_duration(document["jitter_ms"]) if document.get("jitter_ms") else "",
    }
    try:
        values |= upcoming_values(definition.recurrence, now_ms(), schedule.made)
    except WheelError as error:  # a calendar that leaves nothing
        values["problem"] = error_text(str(error), sight.may)
    return {**values, "recurrence": definition.recurrence}
