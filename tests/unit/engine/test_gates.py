"""Paused and rate-limited tasks: meters by themselves, and gates in an engine.

A busy round is followed by the next one the later, the less work it had: a stream is taken in groups.
"""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.engine.round import Limits, Round
from celery_wheel.engine.runner import DISPATCH_S, INGEST_S, Runner, ShardJobs
from celery_wheel.engine.state.gates import BURST_MS, Meter, Rate
from celery_wheel.store.model import ORIGIN
from tests.unit.engine.conftest import Rig, run_until

MINUTE = 60_000


@given(
    rate=st.builds(Rate, st.integers(1, 5_000), st.sampled_from((1_000, 60_000, 3_600_000))),
    pauses=st.lists(st.integers(0, 3_000), max_size=60),
    wanted=st.integers(1, 1_000),
)
def test_in_no_time_more_than_the_rate_and_a_burst(rate: Rate, pauses: list[int], wanted: int) -> None:
    now_ms, passed = 0, list[tuple[int, int]]()
    meter = Meter(rate, now_ms)
    for pause in pauses:
        now_ms += pause
        count = min(wanted, meter.room(now_ms))
        meter.spend(count, now_ms)
        passed.append((now_ms, count))
    burst = max(1, rate.count * BURST_MS / rate.per_ms)
    for first, (from_ms, _) in enumerate(passed):
        total = 0
        for at_ms, count in passed[first:]:
            total += count
            assert total <= (at_ms - from_ms) * rate.count / rate.per_ms * 1.001 + burst + 1


@pytest.mark.slow
@given(rate=st.builds(Rate, st.integers(1, 5_000), st.sampled_from((1_000, 60_000))))
def test_retries_at_the_returned_instants_get_the_whole_rate(rate: Rate) -> None:
    meter, now_ms, passed = Meter(rate, 0), 0, 0
    while now_ms < rate.per_ms:
        room = meter.room(now_ms)
        if room:
            meter.spend(room, now_ms)
            passed += room
        else:
            assert meter.next_ms() > now_ms
            now_ms = meter.next_ms()
    assert passed >= rate.count * 0.99 - 1


def let_run(rig: Rig, ms: int, step_ms: int = 10) -> None:
    for _ in range(ms // step_ms):
        rig.run()
        rig.pass_time(step_ms)
    rig.run()


@pytest.fixture
def held(rig: Rig) -> Iterator[Rig]:
    rig.run()
    yield rig
    assert rig.engine.stats.guard_trips == 0
    let_run(rig, 100)
    pending = {key: n for key, n in rig.data.tally.items() if n}
    assert sum(pending.values()) == rig.sent - len(rig.pushed) - len(rig.data.order.get(-1, []))


def test_paused_tasks_wait_and_delay_no_other(held: Rig) -> None:
    held.ask("pause", gates=["queue:mail"])
    for n in range(3):
        held.send(f"mail-{n}", 10 * n, queue="mail")
        held.send(f"other-{n}", 10 * n)
    let_run(held, 100)
    assert held.pushed == ["other-0", "other-1", "other-2"]
    assert held.engine.wait_ms() > 0, "no task may be dispatched: no reason for another round at once"
    held.ask("resume", gates=["queue:mail"])
    let_run(held, 10)
    assert held.pushed[3:] == ["mail-0", "mail-1", "mail-2"]


@pytest.mark.parametrize("gate", ["task:tasks.add", "all:"])
def test_order_is_kept_when_the_pause_is_over_and_more_comes(held: Rig, gate: str) -> None:
    held.ask("pause", gates=[gate])
    held.send_all([f"task-{n}" for n in range(5)], 0)
    let_run(held, 50)
    assert held.pushed == []
    assert held.engine.wait_ms() > 0
    held.ask("resume", gates=[gate])
    held.send("task-5", 0, queue="mail")
    let_run(held, 50)
    assert held.pushed == [f"task-{n}" for n in range(6)]


def test_pauses_and_resumes_are_logged(held: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "celery_wheel.engine.commands"):
        held.ask("pause", gates=["queue:mail"])
        held.ask("resume", gates=["queue:mail"], per_ms=60_000)
        held.ask("pause", gates=["all:"])
        held.ask("resume", gates=["task:unknown"])
    said = [(vars(line)["action"], vars(line)["gate"], vars(line)["per_ms"]) for line in caplog.records]
    assert said == [("pause", "queue:mail", None), ("resume", "queue:mail", 60_000), ("pause", "all:", None)]
    assert [line.getMessage().split(" by ")[0] for line in caplog.records] == [
        "shard 0: queue mail is paused",
        "shard 0: queue mail is resumed over 60 s",
        "shard 0: everything is paused",
    ]


def test_a_pause_outlives_its_holder(held: Rig) -> None:
    held.ask("pause", gates=["queue:celery"])
    held.send("a", 0)
    let_run(held, 30)
    held.take_over(after_ms=5_000)
    let_run(held, 50)
    assert held.pushed == []
    held.ask("resume", gates=["queue:celery"])
    let_run(held, 10)
    assert held.pushed == ["a"]


def test_paused_tasks_can_be_cancelled_and_moved(held: Rig) -> None:
    held.ask("pause", gates=["queue:celery"])
    held.send_all(["a", "b", "c"], 0)
    let_run(held, 30)
    held.put("cancel", task_ids=["a"])
    held.put("move", task_ids=["b"])
    let_run(held, 30)
    held.ask("resume", gates=["queue:celery"])
    let_run(held, 30)
    assert held.pushed == ["c", "b"]


@pytest.mark.parametrize("moves", ["before the cancel ends", "while the cancel is carried out"])
def test_a_task_that_moves_to_the_lane_of_a_gate_meanwhile_is_cancelled(held: Rig, moves: str) -> None:
    """The row that the cancel has found is at its old position, which dispatch has passed."""
    held.send("a", 5)
    pause_what_is_due(held)
    number = held.put("cancel", task_ids=["a"])
    cancel, diversion = held.engine.ingest(), held.engine.dispatch()
    if moves == "before the cancel ends":
        run_until(cancel, "found")
        list(diversion)
        list(cancel)
    else:
        run_until(diversion, "taken")
        list(cancel)
        list(diversion)
    let_run(held, 50)
    assert held.store.answer(number) == {"a": "done"}
    held.ask("resume", gates=["queue:celery"])
    let_run(held, 50)
    assert held.pushed == []


def pause_what_is_due(held: Rig) -> None:
    """Pause the queue of tasks in memory that are due: the next dispatch moves them to the lane of the gate."""
    held.run("tend", "ingest", "prefetch")
    held.ask("pause", gates=["queue:celery"])
    held.pass_time(10)


def test_a_task_that_moves_to_the_lane_of_a_gate_meanwhile_is_completed(held: Rig) -> None:
    held.send("a", 5, watch=["order:42"])
    pause_what_is_due(held)
    number = held.put("complete", keys=["order:42"])
    completion = held.stopped_at("ingest", "watchers found")
    held.run("dispatch")
    list(completion)
    let_run(held, 50)
    assert held.store.answer(number) == {"order:42": {"done": 1, "too_late": 0}}


def test_a_task_that_moves_to_the_lane_of_a_gate_meanwhile_keeps_its_unique_key(held: Rig) -> None:
    held.send("a", 5, unique="daily")
    pause_what_is_due(held)
    held.send("b", 5, unique="daily", on_conflict="keep")
    intake = held.stopped_at("ingest", "claimants found")
    held.run("dispatch")
    list(intake)
    let_run(held, 50)
    held.ask("resume", gates=["queue:celery"])
    let_run(held, 50)
    assert held.pushed == ["a"]


def test_a_backlog_leaves_evenly_over_a_time(held: Rig) -> None:
    held.ask("pause", gates=["queue:mail"])
    held.send_all([f"mail-{n}" for n in range(100)], 0, queue="mail")
    let_run(held, 20)
    held.ask("resume", gates=["queue:mail"], per_ms=10_000)
    let_run(held, 5_000, 50)
    assert 45 <= len(held.pushed) <= 56
    let_run(held, 5_500, 50)
    assert held.pushed == [f"mail-{n}" for n in range(100)]


def test_a_spread_goes_on_after_a_takeover(held: Rig) -> None:
    held.ask("pause", gates=["all:"])
    held.send_all([f"task-{n}" for n in range(100)], 0)
    let_run(held, 20)
    held.ask("resume", gates=["all:"], per_ms=20_000)
    let_run(held, 5_000, 50)
    assert 20 <= len(held.pushed) <= 30
    held.take_over(after_ms=5_000)
    let_run(held, 5_000, 50)
    assert len(held.pushed) < 70
    let_run(held, 6_000, 50)
    assert held.pushed == [f"task-{n}" for n in range(100)]


def test_resuming_a_gate_that_was_not_paused_is_unknown(held: Rig) -> None:
    assert held.ask("resume", gates=["queue:mail"]) == {"queue:mail": "unknown"}
    answer = held.ask("pause", gates=["queue:mail", "all:"], reason="outage", actor="anna")
    assert answer == {"queue:mail": "done", "all:": "done"}
    assert [(gate.scope, gate.name, gate.reason, gate.actor) for gate in held.store.gates(0)] == [
        ("queue", "mail", "outage", "anna"),
        ("all", "", "outage", "anna"),
    ]
    held.ask("resume", gates=["all:", "queue:mail"])
    assert held.store.gates(0) == []


def limited(**rates: tuple[int, int]) -> Rig:
    rig = Rig(Limits(rates={name.replace("__", "."): Rate(*rate) for name, rate in rates.items()}))
    rig.run()
    return rig


def test_below_its_rate_no_row_is_moved() -> None:
    rig = limited(mail=(100, 1_000))
    for n in range(20):
        rig.send(f"mail-{n}", 100 * n, queue="mail")
    let_run(rig, 2_100)
    assert len(rig.pushed) == 20
    assert len(rig.data.lanes) == 1


def test_above_its_rate_a_queue_waits_in_order_and_holds_up_no_other() -> None:
    rig = limited(mail=(10, 1_000))
    for n in range(30):
        rig.send(f"mail-{n}", 0, queue="mail")
        rig.send(f"other-{n}", 0)
    let_run(rig, 1_000)
    mails = [name for name in rig.pushed if name.startswith("mail")]
    assert [name for name in rig.pushed if name.startswith("other")] == [f"other-{n}" for n in range(30)]
    assert 10 <= len(mails) <= 12
    rig.run("dispatch")
    assert 0 < rig.engine.wait_ms() <= 100
    let_run(rig, 2_200)
    assert [name for name in rig.pushed if name.startswith("mail")] == [f"mail-{n}" for n in range(30)]
    assert rig.engine.stats.guard_trips == 0


@pytest.mark.slow
def test_a_tasks_limit_and_its_queues_both_hold() -> None:
    rig = limited(tasks__heavy=(5, 1_000), celery=(10, 1_000))
    for n in range(40):
        rig.send(f"heavy-{n}", 0, task="tasks.heavy")
        rig.send(f"light-{n}", 0)
    for second in range(1, 14):
        before, heavy_before = len(rig.pushed), sum(name.startswith("heavy") for name in rig.pushed)
        let_run(rig, 1_000)
        assert len(rig.pushed) - before <= 12, second
        assert sum(name.startswith("heavy") for name in rig.pushed) - heavy_before <= 7, second
    assert len(rig.pushed) == 80
    assert [name for name in rig.pushed if name.startswith("heavy")] == [f"heavy-{n}" for n in range(40)]


def test_a_limited_crowd_does_not_fill_the_window() -> None:
    rig = Rig(Limits(rates={"mail": Rate(1, MINUTE)}, window_count=40, load_count=10, chunk_count=10))
    rig.run()
    rig.send_all([f"mail-{n}" for n in range(200)], 0, queue="mail")
    let_run(rig, 500)
    for n in range(30):
        rig.send(f"other-{n}", 100 + n)
    let_run(rig, 500)
    assert [name for name in rig.pushed if name.startswith("other")] == [f"other-{n}" for n in range(30)]
    assert [name for name in rig.pushed if name.startswith("mail")] == ["mail-0"]
    let_run(rig, 3 * MINUTE, 1_000)
    assert [name for name in rig.pushed if name.startswith("mail")] == [f"mail-{n}" for n in range(4)]


def test_a_task_later_than_its_misfire_option_expires(held: Rig) -> None:
    held.send("skip", 0, misfire_ms=60_000)
    held.send("run", 0)
    held.send("soon", 3_000, misfire_ms=60_000)
    held.run("ingest")
    held.pass_time(61_000)
    let_run(held, 20)
    assert held.pushed == ["run", "soon"]
    [outcome] = held.data.outcomes
    assert (outcome.kind, outcome.actor) == ("expired", "wheel")
    assert outcome.reason == "it was found 61.000 s late, and its misfire option allows 60 s"
    assert held.data.lanes[0].offset > ORIGIN


def test_a_pause_makes_late_as_an_outage_does(held: Rig) -> None:
    held.ask("pause", gates=["all:"])
    held.send("skip", 0, misfire_ms=0)
    let_run(held, 50)
    held.ask("resume", gates=["all:"])
    let_run(held, 10)
    assert held.pushed == []


@pytest.fixture
def jobs(rig: Rig) -> ShardJobs:
    rig.run("tend", "ingest", "listen")
    [found] = Runner(rig.engine, lease_ms=2_000, poll_ms=50).shards
    return found


@pytest.mark.parametrize(
    ("end", "took_s", "least_s", "most_s"),
    [(Round.BUSY, 0.1, 0.8, 0.8), (Round.BUSY, 0.5, 0.0, 0.0), (Round.IDLE, 0.1, 0.0, None)],
    ids=["few messages: a pause that no message ends", "many messages: at once", "a message that comes alone: at once"],
)
def test_a_round_is_followed_by_the_next_the_later_the_less_work_it_had(
    jobs: ShardJobs, end: Round, took_s: float, least_s: float, most_s: float | None
) -> None:
    """The times are parts of the shortest time between two rounds."""
    for after, group_s in ((jobs._after_ingest, INGEST_S), (jobs._after_dispatch, DISPATCH_S)):
        assert after(end, took_s * group_s).least_s == pytest.approx(least_s * group_s)
    assert most_s is None or max(jobs._after_ingest(end, took_s * INGEST_S)) == pytest.approx(most_s * INGEST_S)


def test_after_a_busy_round_dispatch_waits_for_the_next_row(rig: Rig, jobs: ShardJobs) -> None:
    assert max(jobs._after_dispatch(Round.BUSY, 0.0)) == pytest.approx(1.0)
    rig.send("soon", 200)
    rig.run("ingest", "prefetch")
    assert max(jobs._after_dispatch(Round.BUSY, 0.0)) == pytest.approx(0.2, abs=0.05)
    jobs.engine.ctx.delivery.prepares = True  # the next round settles what this one has published
    assert max(jobs._after_dispatch(Round.BUSY, 0.0)) == DISPATCH_S
