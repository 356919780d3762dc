"""A real Beat on a real Redis: entries of beat_schedule are followed, run once, and go back to Beat where they must."""

import json
from collections import Counter
from typing import Any

from celery_wheel.store.schedule_model import ScheduleCriteria
from tests.kit.patience import wait_until
from tests.kit.stack import Stack

TICK = {"task": "tick", "schedule": 0.5}


def sent(stack: Stack) -> list[dict[str, Any]]:
    return [json.loads(raw)["headers"] for raw in reversed(stack.redis.lrange("celery", 0, -1))]


def instants(stack: Stack, who: str) -> list[int | None]:
    """Return the intended times of the messages that the wheel has sent; those of the base scheduler have None."""
    occurrences = [one.get("wheel_occurrence") for one in sent(stack)]
    return [one and one["scheduled_for"] for one in occurrences if bool(one) == (who == "wheel")]


def definition(stack: Stack, name: str) -> Any:
    return json.loads(stack.app.wheel.store.browse.schedule(name).schedule.definition)


def names(stack: Stack) -> dict[str, str]:
    page = stack.app.wheel.store.browse.schedules(ScheduleCriteria(source="beat"))
    found = {one.name: one.note for one in page.items}
    assert found.pop("celery.backend_cleanup", "") == ""
    return found


def wait_for_names(stack: Stack, *expected: str) -> None:
    wait_until(lambda: stack.holders().get(0) and set(names(stack)) == set(expected), f"the schedules are {expected}")


def test_entries_are_followed_over_restarts_and_each_instant_is_sent_once(stack: Stack) -> None:
    entries = {"tick": TICK, "gone": {"task": "tick", "schedule": 3_600.0}}
    stack.change(beat_schedule=entries, result_expires=86_400)
    beat = stack.beat()
    wait_until(lambda: stack.ticks() >= 3, "the entry is sent")
    assert set(names(stack)) == {"tick", "gone"}
    assert definition(stack, "celery.backend_cleanup")["recurrence"]["spec"]["hour"] == "4", "Celery's own entry is one"
    anchor = definition(stack, "tick")["recurrence"]
    beat.kill()
    stack.change(
        beat_schedule={
            "tick": {**TICK, "options": {"headers": {"tenant": "acme"}}},
            "new": {"task": "tick", "schedule": 3_600.0},
        }
    )
    beat = stack.beat()
    wait_for_names(stack, "tick", "new")
    count = stack.ticks()
    wait_until(lambda: stack.ticks() >= count + 3, "the entry goes on")
    beat.terminate()
    headers = sent(stack)
    instants = Counter(one["wheel_occurrence"]["scheduled_for"] for one in headers)
    assert max(instants.values()) == 1
    assert {at_ms % 500 for at_ms in instants} == {anchor["spec"]["anchor_ms"] % 500}, "the interval keeps its anchor"
    assert all(one["celery_beat_task"] for one in headers)
    assert headers[-1]["tenant"] == "acme"


def test_entries_that_only_beat_can_run_stay_with_it_and_are_shown(stack: Stack) -> None:
    stack.change(
        beat_schedule={
            "wheel": TICK,
            "base": {**TICK, "options": {"shadow": "own", "retry": False}},
        }
    )
    stack.beat()
    wait_until(lambda: {bool(one.get("wheel_occurrence")) for one in sent(stack)} == {True, False}, "both run")
    found = names(stack)
    assert found["wheel"] == ""
    assert found["base"].startswith("it runs in Beat's own scheduler: options.retry must be an option of a schedule")
    own = [one for one in sent(stack) if one.get("shadow") == "own"]
    assert not any("wheel_occurrence" in one for one in own)


def test_entries_go_to_the_base_scheduler_and_back_without_a_second_run(stack: Stack) -> None:
    stack.change(beat_schedule={"slow": {"task": "tick", "schedule": 3.0}})
    for who in ("base", "wheel", "base", "wheel"):
        beat = stack.beat(wheel_periodic=who)
        stack.wait_for_holder(beat)
        expected = {"slow"} if who == "wheel" else set()
        wait_until(lambda expected=expected: set(names(stack)) == expected, f"{who} runs the entry")  # type: ignore[misc]
        count = len(instants(stack, who))
        wait_until(lambda who=who, count=count: len(instants(stack, who)) > count, f"{who} sends it")  # type: ignore[misc]
        assert beat.terminate() == 0, beat.said()
    stamps = instants(stack, "wheel")
    assert len(stamps) == len(set(stamps))


def test_a_name_that_the_api_uses_is_refused_and_said_in_the_status(stack: Stack) -> None:
    first = stack.beat()
    stack.wait_for_holder(first)
    stack.app.wheel.schedules.create("tick", 3_600, "note")
    first.terminate()
    stack.change(beat_schedule={"tick": TICK, "other": TICK})
    stack.beat()
    wait_until(lambda: stack.ticks() >= 2, "the other entry is sent")

    def clashes() -> Any:
        snapshot = stack.app.wheel.status()[0].snapshot or {}
        return snapshot.get("sources", {}).get("beat", {}).get("clashes")

    wait_until(lambda: clashes() == ["tick"], "the status names the clash")
    stack["beat"].wait_for("a schedule of api has that name")
    assert set(names(stack)) == {"other"}
