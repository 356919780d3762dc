"""The figures of groups in a holder's snapshot: the largest, those that starve, and those whose ends nobody reports."""

from __future__ import annotations

from typing import Any

import pytest

from celery_wheel.engine.state.gates import Gates, Rate
from celery_wheel.engine.state.group_figures import NAMED, PACE, STARVING_MS, UNREPORTED, GroupFigures
from celery_wheel.engine.state.groups import MOST_UNREPORTED, Groups, Limit
from celery_wheel.store.model import LineState
from celery_wheel.store.ports.pages import LARGEST
from celery_wheel.timing import ManualClock
from tests.kit.holder import NOW
from tests.unit.engine.test_groups import row, wait

ONE = Limit(concurrency=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def groups(clock: ManualClock) -> Groups:
    return Groups({"tenant": ONE, "slow": Limit(rate=Rate(1, 3_600_000))}, now_ms=clock.monotonic_ms())


def read(groups: Groups, clock: ManualClock) -> dict[str, Any]:
    found = GroupFigures(groups).read(clock)
    assert found is not None
    return found


def run(groups: Groups, clock: ManualClock, group: str) -> int:
    """Publish a task of a group, at once."""
    one = row(group)
    assert groups.admit(one, clock.monotonic_ms())
    groups.published([one.id], clock.now_ms(), clock.monotonic_ms())
    return one.id


def time_out(groups: Groups, clock: ManualClock, group: str, ends: int) -> None:
    for _ in range(ends):
        run(groups, clock, group)
        groups.expire(clock.now_ms() + ONE.max_runtime_ms)


def test_without_limits_there_are_no_figures(clock: ManualClock) -> None:
    assert GroupFigures(Groups()).read(clock) is None


def test_the_largest_groups_are_those_with_the_most_waiting_rows(groups: Groups, clock: ManualClock) -> None:
    counts = [1] * LARGEST + [7, 5]
    groups.adopt([LineState(number, f"tenant:{number}", "mail", count) for number, count in enumerate(counts)])
    groups.adopt([LineState(900, f"tenant:{LARGEST}", "print", 2)])
    groups.adopt_run(1, f"tenant:{LARGEST}", NOW + 1)
    groups.adopt_run(2, "tenant:idle", NOW + 1)
    found = read(groups, clock)
    assert (found["count"], found["waiting"]) == (LARGEST + 3, sum(counts) + 2)
    assert len(found["largest"]) == LARGEST
    assert found["largest"][:2] == [
        [f"tenant:{LARGEST}", 9, 1, [LARGEST, 900]],
        [f"tenant:{LARGEST + 1}", 5, 0, [LARGEST + 1]],
    ]


def test_groups_in_flight_come_after_those_that_wait(groups: Groups, clock: ManualClock) -> None:
    for name in ("tenant:1", "tenant:2"):
        run(groups, clock, name)
    wait(groups, row("tenant:2"))
    assert [one[:3] for one in read(groups, clock)["largest"]] == [["tenant:2", 1, 1], ["tenant:1", 0, 1]]


def test_a_group_starves_whose_slots_stay_taken_while_others_are_served(groups: Groups, clock: ManualClock) -> None:
    run(groups, clock, "tenant:1")
    wait(groups, row("tenant:1"))
    clock.advance(STARVING_MS - 1)
    run(groups, clock, "tenant:2")
    assert read(groups, clock)["starving"] == []
    clock.advance(1)
    found = read(groups, clock)
    assert found["starving"] == [
        {"name": "tenant:1", "queue": "mail", "waiting": 1, "for_ms": STARVING_MS, "slots": 1},
    ]
    assert found["starving_count"] == 1
    clock.advance(STARVING_MS)  # now the queue serves nobody
    assert read(groups, clock)["starving_count"] == 0


def test_a_release_ends_the_starving(groups: Groups, clock: ManualClock) -> None:
    first = run(groups, clock, "tenant:1")
    line = wait(groups, row("tenant:1"))
    wait(groups, row("tenant:1"))
    clock.advance(STARVING_MS)
    run(groups, clock, "other:1")
    assert read(groups, clock)["starving_count"] == 1
    groups.give_back(first)
    assert groups.choose(5, clock.monotonic_ms(), Gates()) == [line]
    assert read(groups, clock)["starving_count"] == 0


def test_a_group_that_waits_for_its_rate_does_not_starve(groups: Groups, clock: ManualClock) -> None:
    run(groups, clock, "slow:1")
    wait(groups, row("slow:1"))
    clock.advance(2 * STARVING_MS)
    run(groups, clock, "tenant:2")
    assert read(groups, clock)["starving_count"] == 0


def test_few_of_many_starving_groups_are_named_the_longest_first(groups: Groups, clock: ManualClock) -> None:
    for number in range(NAMED + 2):
        run(groups, clock, f"tenant:{number}")
        wait(groups, row(f"tenant:{number}"))
        groups.seen_ms += 1
    clock.advance(STARVING_MS + NAMED + 2)
    run(groups, clock, "tenant:x")
    found = read(groups, clock)
    assert found["starving_count"] == NAMED + 2
    assert [one["name"] for one in found["starving"]] == [f"tenant:{number}" for number in range(NAMED)]


def test_a_group_is_without_reports_until_one_comes(groups: Groups, clock: ManualClock) -> None:
    time_out(groups, clock, "tenant:1", UNREPORTED)
    time_out(groups, clock, "tenant:2", UNREPORTED - 1)
    found = read(groups, clock)
    assert (found["unreported_count"], found["unreported"]) == (1, [("tenant:1", UNREPORTED)])
    groups.reported("tenant:1")
    time_out(groups, clock, "tenant:1", UNREPORTED - 1)
    assert read(groups, clock)["unreported"] == []


def test_groups_without_reports_are_bounded(groups: Groups, clock: ManualClock) -> None:
    for number in range(MOST_UNREPORTED + 5):
        time_out(groups, clock, f"tenant:{number}", 1)
    assert len(groups.unreported) == MOST_UNREPORTED
    assert f"tenant:{MOST_UNREPORTED + 4}" in groups.unreported


def test_a_long_pass_is_made_rarely(groups: Groups) -> None:
    class Slow(ManualClock):
        def monotonic_ms(self) -> int:
            self.advance(40)
            return super().monotonic_ms()

    clock, figures = Slow(NOW), GroupFigures(groups)
    first = figures.read(clock)
    for _ in range(PACE - 2):
        assert figures.read(clock) is first
    clock.advance(200)
    assert figures.read(clock) is not first
