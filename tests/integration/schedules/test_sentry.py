"""Sentry's own integration patches Beat, and its Crons see every occurrence of the wheel."""

from __future__ import annotations

from typing import Any

from tests.kit.patience import wait_until
from tests.kit.project import read_lines
from tests.kit.stack import Stack


def test_a_check_in_begins_with_each_occurrence_and_ends_with_its_run(stack: Stack) -> None:
    entry = {"task": "tick", "schedule": 60.0}
    stack.change(imports=["tests.kit.check_ins"], beat_schedule={"minutely": entry})
    stack.beat()
    wait_until(lambda: stack.holders().get(0), "a scheduler holds the shard")
    wait_until(lambda: stack.app.wheel.schedules.get("minutely"), "the entry is followed")
    assert stack.app.wheel.schedules.trigger("minutely").result == "done"
    stack.worker("-P", "solo")

    def check_ins() -> list[dict[str, Any]]:
        return [one for one in read_lines(stack.folder / "check_ins") if one["monitor_slug"] == "minutely"]

    wait_until(lambda: {one["status"] for one in check_ins()} == {"in_progress", "ok"}, "both check-ins are there")
    begun, ended = (next(one for one in check_ins() if one["status"] == of) for of in ("in_progress", "ok"))
    assert begun["check_in_id"] == ended["check_in_id"]
    assert begun["monitor_config"]["schedule"] == {"type": "interval", "value": 1, "unit": "minute"}
    assert begun["monitor_config"]["timezone"] == "UTC"
