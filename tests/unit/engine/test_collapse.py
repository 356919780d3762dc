"""Calls that become fewer runs: a debounce with a bound, a throttle by its edges, and batches."""

from collections.abc import Iterable

import pytest

from tests.unit.engine.conftest import START_MS, Rig
from tests.unit.engine.test_intake import claims, reasons, states_by_task


def debounce(rig: Rig, task_id: str, delay_ms: int = 100, max_wait_ms: int = 250) -> None:
    latest_ms = rig.clock.now_ms() + max_wait_ms
    rig.send(task_id, delay_ms, unique="k", on_conflict="replace", latest_ms=latest_ms)
    rig.run(rounds=2)


def throttle(rig: Rig, task_id: str, on_conflict: str | None = None, delay_ms: int = 0) -> None:
    rig.send(task_id, delay_ms, unique="k", on_conflict=on_conflict, window_ms=1_000)
    rig.run(rounds=2)


def batch(rig: Rig, task_ids: Iterable[str], wait_ms: int = 500, size: int = 3, delay_ms: int = 0) -> None:
    for task_id in task_ids:
        latest_ms = rig.clock.now_ms() + delay_ms + wait_ms
        rig.send(task_id, delay_ms, unique="b", latest_ms=latest_ms, batch=size)


def settle(rig: Rig) -> None:
    rig.run(rounds=3)


def test_a_debounced_task_is_due_at_the_latest_after_the_first_call(rig: Rig) -> None:
    for n in range(8):
        debounce(rig, str(n))
        rig.run(rounds=2, after_ms=60)
    assert rig.pushed == ["4"], "called at 0, 60, 120, 180 and 240 ms, due at 250 ms"
    rig.run(rounds=2, after_ms=40)
    assert rig.pushed == ["4", "7"]


def test_the_bound_holds_for_calls_of_one_round_and_over_a_takeover(rig: Rig) -> None:
    for task_id in "ab":
        rig.send(task_id, 100, unique="k", on_conflict="replace", latest_ms=rig.clock.now_ms() + 150)
    settle(rig)
    rig.take_over(after_ms=0)
    rig.pass_time(10_000)
    settle(rig)
    assert rig.pushed == ["b"]
    debounce(rig, "c", 100, 150)
    rig.pass_time(100)
    assert states_by_task(rig)["c"] == "waits", "the bound of the first one has ended with it"


def test_a_bound_does_not_make_a_plain_task_earlier(rig: Rig) -> None:
    rig.send("plain", 1_000, unique="k")
    rig.run(rounds=2)
    debounce(rig, "bounded", 800, 900)
    rig.run(rounds=2, after_ms=799)
    assert rig.pushed == []
    rig.run(rounds=2, after_ms=1)
    assert rig.pushed == ["bounded"]


@pytest.mark.parametrize("on_conflict", ["keep", "reject"])
def test_the_leading_edge_keeps_the_name_for_the_window(rig: Rig, on_conflict: str) -> None:
    throttle(rig, "first", on_conflict)
    rig.pass_time(999)
    throttle(rig, "within", on_conflict)
    rig.pass_time(1)
    throttle(rig, "after", on_conflict)
    assert rig.pushed == ["first", "after"]
    assert reasons(rig) == ["another task with the unique key 'k' has begun its window: first"]
    assert [one.timer_id for one in claims(rig)] == [one.row.id for one in rig.data.rows.values()][-1:]


def test_a_window_holds_over_a_takeover(rig: Rig) -> None:
    throttle(rig, "first", delay_ms=20_000)
    rig.run(rounds=2, after_ms=20_000)
    rig.take_over(after_ms=0)
    rig.clock.advance(900)
    settle(rig)
    throttle(rig, "within")
    assert rig.pushed == ["first"]


def test_a_cancelled_task_begins_no_window(rig: Rig) -> None:
    throttle(rig, "first", delay_ms=100)
    assert rig.ask("cancel", task_ids=["first"])["first"] == "done"
    throttle(rig, "second")
    assert rig.pushed == ["second"]


def test_a_moved_task_takes_its_window_along(rig: Rig) -> None:
    throttle(rig, "first", delay_ms=100)
    rig.ask("move", task_ids=["first"], eta_ms=rig.clock.now_ms() + 5_000)
    rig.run(rounds=2, after_ms=5_500)
    throttle(rig, "within")
    assert rig.pushed == ["first"]


def test_completing_another_key_leaves_the_window(rig: Rig) -> None:
    rig.send("first", 0, unique="k", window_ms=1_000, watch=["order:1"])
    settle(rig)
    rig.ask("complete", keys=["order:1"], how="cancel")
    throttle(rig, "within")
    assert rig.pushed == ["first"]


def test_both_edges_run_the_first_call_and_the_last_one_of_each_window(rig: Rig) -> None:
    for n in range(30):
        throttle(rig, str(n), "follow")
        rig.pass_time(100)
    settle(rig)
    assert rig.pushed == ["0", "10", "20", "29"], "the last call until each second has passed"
    rig.run(rounds=2, after_ms=1_000)
    throttle(rig, "alone", "follow")
    assert rig.pushed[4:] == ["alone"], "its window has ended"


def test_both_edges_of_calls_that_come_in_one_round(rig: Rig) -> None:
    for n in range(5):
        rig.send(str(n), 0, unique="k", on_conflict="follow", window_ms=1_000)
    settle(rig)
    assert states_by_task(rig) == {"0": "left", "1": "cancelled", "2": "cancelled", "3": "cancelled", "4": "waits"}
    rig.run(rounds=2, after_ms=1_000)
    assert rig.pushed == ["0", "4"]


def test_calls_of_a_batch_are_due_together_when_the_first_has_waited(rig: Rig) -> None:
    batch(rig, "a")
    rig.run(rounds=2, after_ms=300)
    batch(rig, "b")
    settle(rig)
    assert rig.pushed == []
    rig.run(rounds=2, after_ms=199)
    assert rig.pushed == []
    rig.run(rounds=2, after_ms=1)
    assert rig.pushed == ["a", "b"]


@pytest.mark.parametrize("rounds", [0, 2], ids=["in one round", "one after the other"])
def test_a_full_batch_is_due_at_once(rig: Rig, rounds: int) -> None:
    for task_id in "abcd":
        batch(rig, task_id)
        rig.run(rounds=rounds)
    settle(rig)
    assert rig.pushed == ["a", "b", "c"]
    rig.run(rounds=2, after_ms=500)
    assert rig.pushed == ["a", "b", "c", "d"]
    assert rig.pending() == 0
    assert rig.engine.stats.guard_trips == 0


def test_no_call_of_a_batch_is_early(rig: Rig) -> None:
    """Calls with a delay wait for others of their own time; a full batch is due when the latest of its calls is."""
    batch(rig, "abc", delay_ms=2_000)
    settle(rig)
    batch(rig, "x", delay_ms=0)
    settle(rig)
    assert rig.pushed == []
    rig.run(rounds=3, after_ms=1_999)
    assert rig.pushed == ["x"]
    rig.run(rounds=3, after_ms=1)
    assert rig.pushed == ["x", "a", "b", "c"]


def test_a_full_batch_takes_no_more_calls(rig: Rig) -> None:
    """Its last call may run no sooner than the batch is due anyway."""
    batch(rig, "ab")
    settle(rig)
    batch(rig, "c", delay_ms=500 - (rig.clock.now_ms() - START_MS))
    settle(rig)
    batch(rig, "d", delay_ms=400)
    settle(rig)
    rig.run(rounds=3, after_ms=START_MS + 500 - rig.clock.now_ms())
    assert rig.pushed == ["a", "b", "c"]
    rig.run(rounds=3, after_ms=500)
    assert rig.pushed == ["a", "b", "c", "d"]


@pytest.mark.parametrize("ahead_ms", [0, 100, 2_000], ids=["clocks agree", "a producer's clock is ahead", "a delay"])
def test_calls_that_follow_one_another_are_one_batch(rig: Rig, ahead_ms: int) -> None:
    """The scheduler reads each call before its own eta, where the clock of its producer is ahead."""
    for task_id in "abc":
        batch(rig, task_id, delay_ms=ahead_ms)
        rig.run(rounds=2, after_ms=10)
    rig.run(rounds=3, after_ms=max(0, ahead_ms - 11))
    assert rig.pushed == ([] if ahead_ms else ["a", "b", "c"])
    rig.run(rounds=3, after_ms=1)
    assert rig.pushed == ["a", "b", "c"]


def test_a_call_joins_no_batch_that_is_due_after_its_time(rig: Rig) -> None:
    """A call without a delay does not wait for one that has an hour of it."""
    batch(rig, "a", delay_ms=3_600_000)
    settle(rig)
    batch(rig, "x")
    settle(rig)
    rig.run(rounds=3, after_ms=500)
    assert rig.pushed == ["x"]


@pytest.mark.parametrize(("kind", "more"), [("cancel", {}), ("move", {"eta_ms": START_MS + 60_000})])
def test_a_call_that_is_cancelled_or_moved_leaves_its_batch(rig: Rig, kind: str, more: dict[str, int]) -> None:
    batch(rig, "ab")
    settle(rig)
    assert rig.ask(kind, task_ids=["a"], **more) == {"a": "done"}
    batch(rig, "c")
    settle(rig)
    assert rig.pushed == [], "two of three"
    batch(rig, "d")
    settle(rig)
    assert rig.pushed == ["b", "c", "d"]


def test_a_commit_that_failed_changes_no_batch(rig: Rig) -> None:
    batch(rig, "ab")
    settle(rig)
    rig.fail_once("before commit")
    batch(rig, "c")
    for _ in range(3):
        rig.pass_time(20)
        settle(rig)
    assert rig.pushed == ["a", "b", "c"]


def test_calls_of_one_window_that_come_late_are_of_one_window(rig: Rig) -> None:
    """The wheel queue had nobody for a minute; each call comes in a round of its own."""
    sent_ms = rig.clock.now_ms()
    rig.pass_time(60_000)
    for n in range(5):
        at_ms = sent_ms + 200 * n
        rig.send(str(n), 0, unique="k", window_ms=1_000, eta_ms=at_ms, created_ms=at_ms)
        rig.run(rounds=2)
    rig.send("later", 0, unique="k", window_ms=1_000)
    rig.run(rounds=2)
    assert rig.pushed == ["0", "later"]
    rig.send("clock far behind", 0, unique="k", window_ms=1_000, created_ms=sent_ms - 86_400_000)
    rig.run(rounds=2, after_ms=1_000)
    assert rig.pushed[2:] == ["clock far behind"]


@pytest.mark.parametrize("both", [True, False], ids=["the first one leaves", "both stay"])
def test_calls_with_different_waits_are_not_early(rig: Rig, both: bool) -> None:
    """A deployment changes ``flush_interval``."""
    batch(rig, "a", wait_ms=100, delay_ms=1_400, size=2)
    settle(rig)
    batch(rig, "b", wait_ms=500, delay_ms=1_000, size=2)
    settle(rig)
    if both:
        rig.ask("cancel", task_ids=["a"])
        batch(rig, "c", wait_ms=300, delay_ms=1_200, size=2)
        settle(rig)
    rig.run(rounds=3, after_ms=1_199 if both else 1_399)
    assert rig.pushed == []
    rig.run(rounds=3, after_ms=301)
    assert sorted(rig.pushed) == (["b", "c"] if both else ["a", "b"])
