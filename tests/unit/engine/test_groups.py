"""Groups by themselves: shares, slots, rates and depths; the simulation has their histories (``group_world``)."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from itertools import count, pairwise

import pytest

from celery_wheel.engine.state.depths import DEPTH_IDLE_MS, DEPTH_MS, depths_of
from celery_wheel.engine.state.gates import EVERYTHING, LINE, QUEUE, GateRouter, Gates, Rate
from celery_wheel.engine.state.groups import ROUNDS, SPARE, Groups, Limit, Line
from celery_wheel.store.model import MAX_RUNTIME_MS, PAUSED, Gate, GroupLimit, LineState, Row
from tests.kit.holder import NOW, message

OPEN = Gates()
_ids = count(256, 256)


def row(group: str | None, queue: str = "mail", priority: int | None = None) -> Row:
    number = next(_ids)
    sent = message(group=group, queue=queue, routing_key=queue, priority=priority)
    return Row.of(sent, number, 0, NOW, number)


def waiting(groups: Groups, **lines: int) -> None:
    """Let rows of ``tenant:NAME`` wait for queue mail."""
    groups.adopt([LineState(number, f"tenant:{name}", "mail", n) for number, (name, n) in enumerate(lines.items())])


def released(groups: Groups, most: int, now_ms: int = 0, gates: Gates = OPEN) -> list[str]:
    """Release rows, publish them, and end their runs; returns their groups in order."""
    chosen = groups.choose(most, now_ms, gates)
    rows = [(row(line.group.name), line) for line in chosen]
    groups.released(rows)
    for line, n in Counter(chosen).items():
        groups.left(line, n)
    groups.published([one.id for one, _ in rows], NOW, now_ms)
    for one, _ in rows:
        groups.over(one.id)
    return [line.group.name.removeprefix("tenant:") for line in chosen]


def counts(groups: Groups) -> list[tuple[str, int, int]]:
    """Return (group, waiting, in flight) of each group with either."""
    return [(one.name, one.waiting, one.in_flight) for one in groups.groups() if one.waiting or one.in_flight]


def wait(groups: Groups, one: Row) -> Line:
    """A dispatch moves the row into its line."""
    assert not groups.admit(one, 0)
    line = groups.line_for(one)
    line.entering += 1
    groups.entered(line, 1)
    return line


def test_without_a_limit_nothing_is_counted() -> None:
    groups = Groups({"tenant": Limit(concurrency=1)})
    assert not Groups()
    for _ in range(3):
        assert groups.admit(row(None), 0)
        assert groups.admit(row("other:1"), 0)
    assert counts(groups) == []


@pytest.mark.parametrize("most", [1, 7, 100])
def test_weights_are_shares(most: int) -> None:
    own = [GroupLimit(f"tenant:{name}", None, None, None, weight, None, "", 0) for name, weight in (("b", 2), ("c", 5))]
    groups = Groups({"tenant": Limit()}, depths_of({"mail": 100_000}), own)
    waiting(groups, a=9_000, b=9_000, c=9_000)
    groups.depths_read({"mail": 0}, 0)
    shares = Counter[str]()
    while sum(shares.values()) < 8_000:
        shares.update(released(groups, most))
    assert [round(shares[name] / 1_000, 1) for name in "abc"] == pytest.approx([1, 2, 5], rel=0.05)


def test_a_backlog_of_one_delays_no_other() -> None:
    groups = Groups({"tenant": Limit(concurrency=1_000)})
    waiting(groups, storm=1_000_000, a=1, b=2)
    assert Counter(released(groups, 10)) == {"storm": 7, "a": 1, "b": 2}


def test_no_more_in_flight_than_the_limit() -> None:
    groups = Groups({"tenant": Limit(concurrency=2, max_runtime_ms=500)})
    first, second, third = (row("tenant:1") for _ in range(3))
    assert groups.admit(first, 0)
    assert groups.admit(second, 0)
    assert groups.reports(first)
    line = wait(groups, third)
    assert groups.published([first.id, second.id], NOW, 0)[0] == {
        one.id: ("tenant:1", NOW + 500) for one in (first, second)
    }
    assert groups.choose(9, 0, OPEN) == []
    groups.over(second.id)
    groups.over(second.id)  # a report may come twice
    assert groups.choose(9, 0, OPEN) == [line]
    groups.not_released([line])
    assert groups.expire(NOW + 499) == []
    assert groups.expire(NOW + 500) == [first.id]
    assert counts(groups) == [("tenant:1", 1, 0)]


def test_a_new_row_waits_behind_its_group() -> None:
    groups = Groups({"tenant": Limit(concurrency=1)})
    first, second, third = (row("tenant:1") for _ in range(3))
    assert groups.admit(first, 0)
    line = wait(groups, second)
    groups.published([first.id], NOW, 0)
    groups.over(first.id)
    assert not groups.admit(third, 0)
    assert groups.choose(9, 0, OPEN) == [line]
    groups.released([(second, line)])
    groups.left(line, 1)
    assert groups.admit(second, 0)
    assert not groups.admit(third, 0), "a released row that is not published yet is before it"
    groups.published([second.id], NOW, 0)
    groups.over(second.id)
    assert groups.admit(third, 0)


def test_a_rate_holds_for_releases_too() -> None:
    groups = Groups({"tenant": Limit(rate=Rate(10, 1_000))})
    waiting(groups, a=1_000)
    times = [now_ms for now_ms in range(0, 2_001, 10) for _ in released(groups, 100, now_ms)]
    assert len(times) == 21
    assert min(later - earlier for earlier, later in pairwise(times)) >= 100


@pytest.mark.parametrize(
    "rate", [Rate(1, 1_000), Rate(7, 1_000), Rate(100, 1_000), Rate(5_000, 1_000), Rate(900, 60_000)]
)
def test_no_time_of_a_rate_has_more_publications_however_late_they_are(rate: Rate) -> None:
    groups, rng, pushed = Groups({"tenant": Limit(rate=rate)}), random.Random(7), list[int]()
    admitted = list[Row]()
    for now_ms in range(0, 3 * rate.per_ms, 5):
        while groups.admit(one := row("tenant:1"), now_ms):
            admitted.append(one)
        if rng.random() < 0.5:  # a publication takes its time
            groups.published([one.id for one in admitted], NOW + now_ms, now_ms)
            pushed += [now_ms] * len(admitted)
            admitted.clear()
    assert max(bisect_left(pushed, at_ms + rate.per_ms) - n for n, at_ms in enumerate(pushed)) <= rate.count
    assert len(pushed) > 3 * rate.count * 0.8


def test_the_next_holder_goes_on_with_a_rate() -> None:
    classes = {"tenant": Limit(rate=Rate(1, 3_600_000), concurrency=9)}
    groups, first, second = Groups(classes), row("tenant:1"), row("tenant:2")
    assert all(groups.admit(one, 5_000) for one in (first, second))
    _, rates = groups.published([first.id, second.id], NOW, 5_000)
    assert rates == {"tenant:1": NOW + 3_600_000, "tenant:2": NOW + 3_600_000}
    later = Groups(classes)
    later.adopt_rates({**rates, "tenant:2": 2 * NOW, "user:1": 2 * NOW}, NOW + 60_000, 0)
    assert not later.admit(row("tenant:1"), 3_539_999)
    assert later.admit(row("tenant:1"), 3_540_000)
    assert not later.admit(row("tenant:2"), 3_599_999), "the clock of the former holder was wrong"
    assert later.admit(row("tenant:2"), 3_600_000)
    assert later.adopt_published(["tenant:3", "user:1"], NOW, 0) == {"tenant:3": NOW + 3_600_000}
    assert not later.admit(row("tenant:3"), 3_599_999)


def test_rows_in_doubt_keep_their_places_in_a_rate() -> None:
    groups, doubtful = Groups({"tenant": Limit(rate=Rate(1, 1_000))}), row("tenant:1")
    groups.adopt_run(doubtful.id, "tenant:1", None)
    assert not groups.admit(row("tenant:1"), 10_000), "it may be published at any time"
    assert groups.published([doubtful.id], NOW, 10_000) == ({}, {"tenant:1": NOW + 1_000})
    assert not groups.admit(row("tenant:1"), 10_999)
    assert groups.admit(row("tenant:1"), 11_000)


def test_a_row_that_is_not_published_uses_no_rate() -> None:
    groups = Groups({"tenant": Limit(rate=Rate(1, 3_600_000))})
    first, second = row("tenant:1"), row("tenant:1")
    assert groups.admit(first, 0)
    assert not groups.admit(second, 0)
    groups.give_back(first.id)
    assert groups.admit(second, 0)


def test_a_run_may_be_over_before_its_publication_is_known() -> None:
    groups, first = Groups({"tenant": Limit(concurrency=1, rate=Rate(1, 1_000))}), row("tenant:1")
    assert groups.admit(first, 0)
    groups.over(first.id)
    groups.over(first.id)  # a report may come twice
    assert counts(groups) == []
    assert not groups.is_in_flight(first.id)
    assert groups.published([first.id], NOW, 0) == ({}, {"tenant:1": NOW + 1_000})
    assert not groups.admit(row("tenant:1"), 999)
    assert groups.admit(row("tenant:1"), 1_000)


def test_a_depth_bounds_the_queue_and_is_read_again() -> None:
    groups = Groups({}, depths_of({"mail": 5}))
    groups.join()
    assert groups.queues_to_read(0) == ["mail"]
    waiting_row = row(None)
    assert not groups.admit(waiting_row, 0), "the depth is not known yet"
    groups.depths_read({"mail": 3}, 0)
    rows = [row(None) for _ in range(4)]
    assert [groups.admit(one, 0) for one in rows] == [True, True, False, False]
    groups.depths_read({"mail": 3}, 0)
    assert not groups.admit(row(None), 0), "two are on their way"
    groups.published([one.id for one in rows[:2]], NOW, 0)
    assert groups.admit(row(None, "reports"), 0)
    wait(groups, row("tenant:1"))
    assert groups.queues_to_read(DEPTH_MS - 1) == []
    assert groups.queues_to_read(DEPTH_MS) == ["mail"]
    groups.depths_read({"mail": 0}, DEPTH_MS)
    assert len(groups.choose(9, DEPTH_MS, OPEN)) == 1
    assert not groups.admit(row(None), DEPTH_MS), "rows before it wait for the queue"


def test_a_shard_whose_groups_wait_alone_fills_the_queue_and_others_share_it() -> None:
    depths = depths_of({"mail": 500})
    shards = [Groups({}, depths) for _ in range(16)]
    for groups in shards:
        groups.join()
    waiting(shards[0], a=1_000)
    assert [groups.queues_to_read(0) for groups in shards] == [["mail"], *[[]] * 15], "one reads for all"
    shards[0].depths_read({"mail": 0}, 0)
    assert len(shards[0].choose(1_000, 0, OPEN)) == 500
    assert not shards[1].admit(row(None), 0)
    waiting(shards[1], b=1_000)
    waiting(shards[2], c=1)
    assert shards[1].queues_to_read(DEPTH_MS) == ["mail"]
    shards[1].depths_read({"mail": 0}, DEPTH_MS)
    assert shards[1].choose(1_000, DEPTH_MS, OPEN) == [], "all of them are on their way"
    shards[0].leave_depths()
    assert shards[2].queues_to_read(2 * DEPTH_MS) == ["mail"]
    shards[2].depths_read({"mail": 0}, 2 * DEPTH_MS)
    assert len(shards[1].choose(1_000, 2 * DEPTH_MS, OPEN)) == 250
    assert len(shards[2].choose(1_000, 2 * DEPTH_MS, OPEN)) == 1


def test_a_shard_that_joins_reads_the_depth_again() -> None:
    """The process that had it may have filled the queue since this one has read it last."""
    depths = depths_of({"mail": 5})
    first, second = Groups({}, depths), Groups({}, depths)
    first.join()
    first.depths_read({"mail": 0}, 0)
    second.join()
    assert not second.admit(row(None), DEPTH_MS)
    assert second.queues_to_read(DEPTH_MS) == ["mail"]
    second.depths_read({"mail": 4}, DEPTH_MS)
    assert [second.admit(row(None), DEPTH_MS) for _ in range(2)] == [True, False]


def test_a_publication_tells_the_depth_so_that_it_need_not_be_read() -> None:
    groups = Groups({}, depths_of({"mail": 5}))
    groups.join()
    assert groups.queues_to_read(0) == ["mail"]
    first = row(None)
    groups.depths_read({"mail": 0}, 0)
    assert groups.admit(first, 0)
    assert groups.queues_with_depth([first, row(None, "news")]) == ["mail"]
    groups.published([first.id], NOW, 900)
    groups.depths_read({"mail": 1}, 900, at_once=True)
    assert groups.queues_to_read(5_000) == [], "nobody waits for the queue"
    second = row(None)
    assert groups.admit(second, 900)
    assert groups.queues_to_read(900 + DEPTH_IDLE_MS) == ["mail"]
    groups.published([second.id], NOW, 1_900)
    groups.depths_read({"mail": 1}, 1_900)
    assert [groups.admit(row(None), 1_900) for _ in range(4)] == [True, True, True, False], (
        "one came since it was counted"
    )


@pytest.mark.parametrize("place", [(QUEUE, "mail"), EVERYTHING])
def test_nothing_is_released_to_a_paused_queue(place: tuple[str, str]) -> None:
    groups, gates = Groups({"tenant": Limit(concurrency=9)}), Gates()
    waiting(groups, a=3)
    gates.set(Gate(*place, PAUSED, 0, "", "", 0), 0, 0, 0)  # type: ignore[arg-type]
    assert released(groups, 9, gates=gates) == []
    assert groups.next_ms(0, NOW) is None
    gates.open(place)
    assert released(groups, 9, gates=gates) == ["a", "a", "a"]


def test_groups_share_the_rate_of_a_queue() -> None:
    groups, gates = Groups({"tenant": Limit(concurrency=1_000)}), Gates({"mail": Rate(100, 1_000)})
    waiting(groups, storm=1_000, a=5)
    assert released(groups, 100, 0, gates).count("a") == 5
    assert groups.next_ms(0, NOW) == 0


@pytest.mark.parametrize(("lowest_first", "order"), [(True, [0, 3, 9]), (False, [9, 3, 0])])
def test_priorities_are_those_of_the_broker(lowest_first: bool, order: list[int]) -> None:
    groups = Groups({"tenant": Limit(concurrency=1)}, lowest_first=lowest_first)
    assert groups.admit(row("tenant:1"), 0)
    rows = [row("tenant:1", priority=priority) for priority in (3, 0, 9)]
    line = wait(groups, rows[0])
    by_rank = sorted(rows, key=lambda one: groups.code(line, one, redelivered=False))
    assert [one.route.priority for one in by_rank] == order
    assert groups.code(line, rows[0], redelivered=True) < min(groups.code(line, one, redelivered=False) for one in rows)


def test_limits_of_a_group_take_effect_at_once() -> None:
    groups = Groups({"tenant": Limit(concurrency=1)})
    assert groups.admit(row("tenant:1"), 0)
    line = wait(groups, row("tenant:1"))
    assert groups.choose(9, 0, OPEN) == []
    groups.set_limit(GroupLimit("tenant:1", 3, None, None, None, None, "api", NOW))
    assert groups.choose(9, 0, OPEN) == [line]
    assert groups.limit_of("tenant:1") == Limit(concurrency=3, max_runtime_ms=MAX_RUNTIME_MS)
    groups.clear_limit("tenant:1")
    assert groups.limit_of("tenant:1") == Limit(concurrency=1)


def test_a_command_knows_a_row_that_was_released_after_it_was_read() -> None:
    groups = Groups()
    mark = groups.releases
    groups.moved({1})
    assert groups.may_be_released(1, mark)
    assert not groups.may_be_released(2, mark)
    assert not groups.may_be_released(1, groups.releases)
    for _ in range(ROUNDS):
        groups.moved({3})
    assert groups.may_be_released(2, mark), "what is not remembered may have been"


def test_runs_that_ended_leave_nothing() -> None:
    groups = Groups({"tenant": Limit(concurrency=5)})
    for _ in range(3 * SPARE):
        one = row("tenant:1")
        assert groups.admit(one, 0)
        groups.published([one.id], NOW, 0)
        groups.over(one.id)
    assert len(groups._ends) <= SPARE + 1


def test_a_line_waits_for_its_rate_once() -> None:
    groups = Groups({"tenant": Limit(rate=Rate(1, 3_600_000))})
    waiting(groups, a=1)
    line = groups.line_for(row("tenant:a"))
    for now_ms in range(1, 500):
        line.entering += 1
        groups.entered(line, 1)
        released(groups, 9, now_ms)
    assert len(groups._rated) == 1


def test_groups_that_come_and_go_leave_nothing() -> None:
    groups = Groups({"tenant": Limit(concurrency=1), "paced": Limit(rate=Rate(1, 1_000))})
    for number in range(3_000):
        one, other, third = row(f"tenant:{number}"), row(f"tenant:{number}"), row(f"paced:{number}")
        assert groups.admit(one, 0)
        assert groups.admit(third, number)
        line = wait(groups, other)
        groups.published([one.id, third.id], NOW, number)
        groups.over(one.id)
        assert groups.choose(1, number, OPEN) == [line]
        groups.released([(other, line)])
        groups.left(line, 1)
        groups.published([other.id], NOW, 0)
        groups.over(other.id)
    groups.choose(1, 3_000_000, OPEN)
    groups.expire(NOW + MAX_RUNTIME_MS)
    sizes = {name: len(value) for name, value in vars(groups).items() if hasattr(value, "__len__")}
    assert max(sizes.values()) <= ROUNDS


def test_a_run_that_was_published_without_a_report_is_not_counted_by_a_later_limit() -> None:
    groups = Groups({"tenant": Limit(rate=Rate(100, 1_000))})
    first = row("tenant:1")
    assert groups.admit(first, 0)
    assert not groups.reports(first), "its message is on the way to the broker"
    groups.set_limit(own(concurrency=1))
    assert groups.published([first.id], NOW, 0) == ({}, {"tenant:1": NOW + 11})
    second = row("tenant:1")
    assert groups.admit(second, 1_000)
    assert groups.reports(second)
    groups.clear_limit("tenant:1")
    assert list(groups.published([second.id], NOW, 1_000)[0]) == [second.id], "its worker reports it"


def test_slots_end_after_the_last_limit_is_cleared() -> None:
    groups, first = Groups(), row("tenant:1")
    groups.set_limit(own(concurrency=1))
    assert groups.admit(first, 0)
    groups.published([first.id], NOW, 0)
    groups.clear_limit("tenant:1")
    assert groups, "a run is in flight"
    groups.over(first.id)
    assert not groups


def test_a_line_that_waits_for_its_rate_does_not_wait_for_the_former_one() -> None:
    groups = Groups({"tenant": Limit(rate=Rate(1, 3_600_000))})
    waiting(groups, one=5)
    assert released(groups, 9) == ["one"]
    assert groups.choose(9, 1, OPEN) == []
    groups.set_limit(GroupLimit("tenant:one", None, 1, 1_000, None, None, "api", NOW))
    assert released(groups, 9, 2) == ["one"]
    assert groups.choose(9, 3, OPEN) == []
    assert released(groups, 9, 1_100) == ["one"]


def own(concurrency: int | None = None) -> GroupLimit:
    return GroupLimit("tenant:1", concurrency, None, None, None, None, "anna", NOW)


def gate(group: str, state: str = PAUSED, per_ms: int = 0) -> Gate:
    return Gate("group", group, state, per_ms, "", "", 0)


def test_a_paused_group_releases_nothing_and_the_others_go_on() -> None:
    groups, gates = Groups({"tenant": Limit(rate=Rate(1_000, 1_000))}), Gates()
    waiting(groups, a=3, b=3)
    gates.set(gate("tenant:a"), 0, 0, 0)
    assert released(groups, 9, 0, gates) == ["b", "b", "b"]
    assert released(groups, 9, 60_000, gates) == []
    assert groups.next_ms(60_000, NOW) is None, "a paused group costs no round"
    gates.open(("group", "tenant:a"))
    groups.gate_opened("tenant:a")
    assert released(groups, 9, 60_000, gates) == ["a", "a", "a"]


def test_a_group_is_resumed_evenly_over_a_time() -> None:
    groups, gates = Groups(), Gates()
    waiting(groups, a=5)
    gates.set(gate("tenant:a"), 0, 0, 0)
    assert released(groups, 9, 0, gates) == []
    gates.set(gate("tenant:a", "slow", 5_000), groups.waiting("tenant:a"), 0, 0)
    groups.gate_opened("tenant:a")
    found: list[int] = []
    now_ms = 0
    while groups.waiting("tenant:a"):
        found += [now_ms] * len(released(groups, 9, now_ms, gates))
        now_ms += groups.next_ms(now_ms, NOW) or 1
    assert found == [0, 1_000, 2_000, 3_000, 4_000]


def test_a_row_that_was_released_before_a_pause_goes_back_to_its_line_without_its_slot() -> None:
    groups, gates = Groups({"tenant": Limit(concurrency=1)}), Gates()
    waiting(groups, a=1)
    [line] = groups.choose(9, 0, gates)
    one = row("tenant:a")
    groups.released([(one, line)])
    groups.left(line, 1)
    route = GateRouter(gates, None, set(), 0, groups=groups)
    assert route(one) is None
    gates.set(gate("tenant:a"), 0, 0, 0)
    assert route(one) is LINE
    line.entering += 1
    groups.give_back(one.id)
    groups.entered(line, 1)
    assert counts(groups) == [("tenant:a", 1, 0)]
    assert route(row("tenant:b")) is None


def test_a_group_without_limits_can_be_paused() -> None:
    gates = Gates()
    route = GateRouter(gates, None, set(), 0, groups=None)
    assert route(row("x")) is None
    gates.set(gate("x"), 0, 0, 0)
    assert gates
    assert route(row("x")) is LINE
    assert route(row(None)) is None
