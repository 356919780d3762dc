"""A stack for schedules of ``app.wheel.schedules`` and of Beat.

A real Beat on a real Redis: entries of beat_schedule are followed, run once, and go back to Beat where they must.

Real schedulers and workers: runs overlap as the policy says, and workers report their ends. See ``tests.faults``.

For reports, each schedule has a backfill whose second instant runs only once the end of the first is reported: by
itself a run would count for a day. Sentry's Crons see every occurrence.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import amqp
import pytest

from celery_wheel.store.schedule_model import ScheduleCriteria
from tests.kit.patience import wait_until
from tests.kit.project import read_lines
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.servers.sqs import SqsServer
from tests.kit.stack import Stack


@pytest.fixture
def stack(tmp_path: Path, redis_server: RedisServer) -> Iterator[Stack]:
    with Stack(tmp_path, redis_server) as found:
        yield found


HALF = timedelta(seconds=0.5)


def test_a_task_knows_its_instant_and_a_retry_has_the_same(stack: Stack) -> None:
    stack.wait_for_holder(stack.beat())
    stack.worker("-c", "2")
    answer = stack.app.wheel.schedules.create("report", HALF, "occurrence", ["retried"], {"times": 1}, times=3)
    assert answer.result == "done"
    stack.app.send_task("occurrence", ["plain"])
    stack.wait_for("plain", counts={"retried": 6})
    assert stack.notes()["plain"][0]["args"] == []
    notes = stack.notes()["retried"]
    assert {note["args"][0] for note in notes} == {"report"}
    seen = {(note["args"][1], note["args"][3]): note for note in notes}
    instants = sorted({at for at, _ in seen})
    assert sorted(seen) == [(at, attempt) for at in instants for attempt in ("1", "2")]
    previous = [seen[at, "1"]["args"][2] for at in instants]
    assert previous == ["None", *instants[:2]]
    times = [datetime.fromisoformat(at) for at in instants]
    assert [after - before for before, after in itertools.pairwise(times)] == [HALF, HALF]
    assert all(at.utcoffset() == timedelta(0) for at in times)


def history_of(stack: Stack, name: str) -> Any:
    history = stack.app.wheel.schedules.history(name)
    assert history is not None
    return history


def test_a_run_that_goes_on_keeps_later_instants_from_running(stack: Stack) -> None:
    """The next run begins because the worker reports the end: by itself the run would count for a day."""
    stack.wait_for_holder(stack.beat())
    stack.worker("-c", "2")
    schedules = stack.app.wheel.schedules
    schedules.create("report", HALF, "occurrence", ["held"], {"holds": True, "times": 1}, overlap="skip")
    stack.wait_for("held")
    wait_until(lambda: sum(one.count for one in history_of(stack, "report").skips) >= 3, "instants are skipped")
    assert {one.reason for one in history_of(stack, "report").skips} == {"overlapped"}
    assert len(stack.notes()["held"]) == 1
    assert history_of(stack, "report").runs[-1].ended_at is None
    (stack.folder / "released").touch()
    wait_until(lambda: history_of(stack, "report").runs[-1].ended_at is not None, "the worker reports the end")
    wait_until(lambda: len({note["id"] for note in stack.notes()["held"]}) > 1, "a later instant runs")
    first, second = stack.notes()["held"][:2]
    assert (first["id"], first["args"][3], second["args"][3]) == (second["id"], "1", "2"), "a retry is part of the run"


@pytest.mark.slow
def test_a_later_run_cancels_the_one_before(stack: Stack) -> None:
    stack.wait_for_holder(stack.beat())
    stack.worker("-c", "2")
    stack.app.wheel.schedules.create(
        "report", timedelta(seconds=2), "occurrence", ["held"], {"holds": True}, overlap="cancel_running"
    )
    stack.wait_for(counts={"held": 3})
    ran = [note["id"] for note in stack.notes()["held"]]
    # A machine that stood still may also have revoked runs before they began.
    terminated = {(one, True) for one in ran[:2]}
    wait_until(lambda: terminated <= {(one[1], one[2]) for one in stack.revoked()}, "earlier runs are terminated")


def test_the_declaration_of_a_task_is_followed_when_a_scheduler_starts(stack: Stack) -> None:
    def declared(recurrence: int) -> dict[str, Any]:
        return {"note": {"wheel_schedule": {"name": "declared", "recurrence": recurrence, "queue": "slow"}}}

    def minutes() -> float | None:
        found = stack.app.wheel.schedules.get("declared")
        return None if found is None else found.recurrence.spec.every_ms / 60_000

    beat = stack.beat(task_annotations=declared(3_600))
    wait_until(lambda: stack.holders() != {}, "a scheduler holds the shard")
    wait_until(lambda: minutes() == 60, "the schedule is created")
    assert stack.app.wheel.schedules.get("declared").source == "code"
    beat.kill()
    beat = stack.beat(task_annotations=declared(7_200))
    wait_until(lambda: minutes() == 120, "the schedule is updated")
    beat.kill()
    stack.beat()
    wait_until(lambda: minutes() is None, "the schedule is deleted")


def test_an_occurrence_waits_in_a_queue_that_no_worker_has_declared(tmp_path: Path) -> None:
    queues = [("celery", "celery", "direct", "celery"), ("mail", "mails", "topic", "mail.#")]
    with RedisServer(tmp_path / "redis") as server, Stack(tmp_path, server, queues=queues) as stack:
        stack.wait_for_holder(stack.beat())
        stack.app.wheel.schedules.create("report", HALF, "note", ["bound"], queue="mail", times=3)
        wait_until(
            lambda: [one.state for one in history_of(stack, "report").runs] == ["dispatched"] * 3, "all are sent"
        )
        assert stack.redis.llen("mail") == 3


@ON_RABBITMQ
def test_a_queue_that_was_deleted_is_declared_again(tmp_path: Path, rabbit_server: RabbitServer) -> None:
    with stack_on("rabbitmq", tmp_path, rabbit_server) as stack, stack.app.connection_for_write() as connection:
        stack.wait_for_holder(stack.beat())
        stack.app.wheel.schedules.create("report", HALF, "note", ["lost"], queue="reports")

        def holds_runs() -> bool:
            with suppress(amqp.NotFound), connection.channel() as channel:
                return channel.queue_declare("reports", passive=True).message_count > 3
            return False

        wait_until(holds_runs, "the queue was declared")
        connection.default_channel.queue_delete("reports")
        wait_until(lambda: stack.app.wheel.outcomes("rejected").items, "a run has found no queue")
        wait_until(holds_runs, "the queue was declared again")


#: Name → task, arguments and options of a schedule.
ENDS: dict[str, tuple[str, list[Any], dict[str, Any], dict[str, Any]]] = {
    "succeeds": ("occurrence", ["succeeds"], {}, {}),
    "fails": ("failing", ["fails"], {}, {}),
    "is retried": ("occurrence", ["is retried"], {"times": 1}, {}),
    "is unknown": ("no.such.task", [], {}, {}),
}
#: A pool of processes can end a run.
KILLED = ("occurrence", ["is killed"], {"holds": True}, {"time_limit": 1})


@contextmanager
def stack_on(broker: str, folder: Path, rabbit: RabbitServer | None) -> Iterator[Stack]:
    if broker == "rabbitmq":
        with Stack(folder, rabbit.fresh()) as stack:
            yield stack
    elif broker == "sqs":
        with SqsServer(folder / "sqs") as server:
            server.make_queue("wheel-0")
            server.make_queue("celery")
            options = {**server.options, "polling_interval": 0.05}
            with Stack(folder, server, broker_transport_options=options) as stack:
                yield stack
    else:
        with RedisServer(folder / "redis") as redis, Stack(folder, redis) as stack:
            yield stack


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broker", "pool"),
    [
        pytest.param("rabbitmq", ("-c", "2"), marks=ON_RABBITMQ),
        ("sqs", ("-P", "threads", "-c", "2")),
        ("redis", ("-P", "solo")),
    ],
    ids=["RabbitMQ, prefork", "SQS, threads", "Redis, solo"],
)
def test_each_end_makes_the_next_due(
    tmp_path: Path, request: pytest.FixtureRequest, broker: str, pool: tuple[str, ...]
) -> None:
    rabbit = request.getfixturevalue("rabbit_server") if broker == "rabbitmq" else None
    ends = {**ENDS, "is killed": KILLED} if broker == "rabbitmq" else ENDS
    with stack_on(broker, tmp_path, rabbit) as stack:
        stack.wait_for_holder(stack.beat())
        stack.worker(*pool)
        schedules, now = stack.app.wheel.schedules, datetime.now(UTC)
        for name, (task, args, kwargs, options) in ends.items():
            # By itself the schedule makes nothing more, also not at the full hour: it would not learn when that ends.
            schedules.create(name, timedelta(hours=1), task, args, kwargs, until=now, **options)
            answer = schedules.backfill(name, now - timedelta(hours=2), now, overlap="queue_all")
            assert len(answer.task_ids) >= 2

        def going_on() -> list[str]:
            return [name for name in ends if any(one.ended_at is None for one in schedules.history(name).runs)]

        wait_until(lambda: going_on() == [], "the ends of all runs are reported", 90)
        notes = stack.notes()
        assert all(note["args"][3] in ("1", "2") for note in notes["is retried"])
        runs = schedules.history("is retried").runs
        assert len(notes["is retried"]) == 2 * len(runs), "a retry is a part of its run"
        assert all(one.requested for one in runs)


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


@pytest.mark.slow
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
    acts = [(one.action, one.origin, one.actor) for one in stack.app.wheel.audit(name="gone").items]
    assert acts == [("schedule_delete", "source", "beat"), ("schedule_create", "source", "beat")]
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


@pytest.mark.slow
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
