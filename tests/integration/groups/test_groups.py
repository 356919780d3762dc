"""Real schedulers and workers: limits and fair shares hold by the workers' own log, also over a killed scheduler."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.broker import shard_of
from tests.kit.patience import wait_until
from tests.kit.project import read_lines
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

#: A worker with more threads than any limit of these tests.
EIGHT = ("-P", "threads", "-c", "8")

TWO_AT_ONCE = {"tenant": {"concurrency": 2}}


@pytest.fixture(params=["redis", pytest.param("rabbit", marks=ON_RABBITMQ)])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """Return a stack of Redis and SQLite, and one of RabbitMQ and PostgreSQL."""
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        found = Stack(tmp_path, redis.url)
    else:
        rabbit: RabbitServer = request.getfixturevalue("rabbit_server")
        postgres: PostgresServer = request.getfixturevalue("postgres")
        found = Stack(tmp_path, rabbit.fresh(), postgres.new_database())
    with found:
        yield found


class Spans:
    """The log of the task ``span``: a line at its begin and one at its end, in the order in which they were written."""

    def __init__(self, stack: Stack) -> None:
        self.lines: list[Any] = read_lines(stack.folder / "spans")

    def ended(self) -> Counter[str]:
        """Return how often each task has ended, by its id."""
        return Counter(id_ for step, _, id_, *_ in self.lines if step == "end")

    def tags(self) -> list[str]:
        """Return the tags in the order of their begins."""
        return [tag for step, _, _, _, tag, *_ in self.lines if step == "begin"]

    def most_at_once(self) -> dict[str, int]:
        """Return the most tasks of each group between begin and end; a second copy shares the slot of the first."""
        now, most = Counter[str](), defaultdict[str, int](int)
        for step, group, _, is_redelivered, *_ in self.lines:
            if not is_redelivered:
                now[group] += 1 if step == "begin" else -1
                most[group] = max(most[group], now[group])
        return most


def ready(stack: Stack, queue: str = "celery") -> int:
    with stack.app.connection_for_write() as connection, connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            return 0


def send(stack: Stack, group: str, count: int = 1, task: str = "span", **kwargs: Any) -> list[str]:
    return [stack.app.send_task(task, kwargs={"tag": group, **kwargs}, wheel={"group": group}).id for _ in range(count)]


def send_two_tenants(stack: Stack) -> set[str]:
    return {id_ for _ in range(15) for tenant in ("tenant:a", "tenant:b") for id_ in send(stack, tenant)}


def wait_for_ends(stack: Stack, ids: set[str]) -> None:
    wait_until(lambda: ids <= Spans(stack).ended().keys(), "all tasks have run")


def test_a_group_never_has_more_tasks_at_once_than_its_limit(stack: Stack) -> None:
    stack.change(wheel_limits=TWO_AT_ONCE)
    stack.wait_for_holder(stack.beat())
    stack.worker(*EIGHT)
    ids = send_two_tenants(stack)
    wait_for_ends(stack, ids)
    spans = Spans(stack)
    assert spans.most_at_once() == {"tenant:a": 2, "tenant:b": 2}
    assert spans.ended() == dict.fromkeys(ids, 1)
    wait_until(lambda: sum(stack.pending()) == 0, "nothing is pending")


@pytest.mark.slow
def test_a_limit_holds_over_the_death_of_the_scheduler(stack: Stack) -> None:
    stack.change(wheel_limits=TWO_AT_ONCE)
    beat = stack.beat()
    stack.wait_for_holder(beat)
    stack.worker(*EIGHT)
    ids = send_two_tenants(stack)
    wait_until(lambda: len(Spans(stack).ended()) >= 8, "some tasks have run")
    beat.kill()
    assert len(Spans(stack).ended()) < len(ids)
    stack.wait_for_holder(stack.beat())
    wait_for_ends(stack, ids)
    spans = Spans(stack)
    assert spans.most_at_once() == {"tenant:a": 2, "tenant:b": 2}
    assert spans.ended().keys() == ids
    if stack.broker.startswith("redis"):
        assert set(spans.ended().values()) == {1}


@pytest.mark.slow
def test_a_rate_holds_over_the_death_of_the_scheduler(stack: Stack) -> None:
    stack.change(wheel_limits={"tenant": {"rate": "60/m"}})
    beat = stack.beat()
    stack.wait_for_holder(beat)
    ids = send(stack, "tenant:a", 6)
    wait_until(lambda: ready(stack) >= 2, "two tasks are dispatched")
    beat.kill()
    stack.wait_for_holder(stack.beat())

    def dispatched() -> list[int]:
        found = [stack.app.wheel.get(id_).task for id_ in ids]
        return sorted(one.dispatched_ms for one in found if one.dispatched_ms is not None)

    wait_until(lambda: len(dispatched()) == len(ids), "all are dispatched")
    times = dispatched()
    assert min(later - earlier for earlier, later in pairwise(times)) >= 1_000, times


@pytest.mark.slow
def test_a_backlog_of_one_group_stays_in_the_wheel_and_delays_no_other_group(stack: Stack) -> None:
    depth, backlog = 5, 300
    stack.change(wheel_queue_depth={"celery": depth}, worker_prefetch_multiplier=1)
    stack.wait_for_holder(stack.beat())
    send(stack, "tenant:a", backlog, ms=0)
    send(stack, "tenant:b", 5, ms=0)
    # A depth that is read while messages are on their way may let as many pass once more.
    left = range(backlog + 5 - 2 * depth, backlog + 5 - depth + 1)
    wait_until(lambda: sum(stack.pending()) in left and ready(stack), "all but the first tasks wait in the wheel")
    stack.worker("-P", "threads", "-c", "1")
    depths: list[int] = []

    def b_has_run() -> bool:
        depths.append(ready(stack))
        return Spans(stack).tags().count("tenant:b") == 5

    wait_until(b_has_run, "the tasks of the second group have run", every_s=0.01)
    assert max(depths) <= 2 * depth
    assert sum(stack.pending()) > backlog * 0.8
    assert Spans(stack).tags().count("tenant:a") < backlog * 0.2
    wait_until(lambda: len(Spans(stack).ended()) == backlog + 5, "the backlog has run")
    assert set(Spans(stack).ended().values()) == {1}


def test_a_retry_with_a_countdown_gives_its_slot_back(stack: Stack) -> None:
    stack.change(wheel_limits={"tenant": {"concurrency": 1}})
    stack.wait_for_holder(stack.beat())
    stack.worker(*EIGHT)
    (first,) = send(stack, "tenant:a", again_s=600)
    (second,) = send(stack, "tenant:a")
    wait_for_ends(stack, {first, second})
    wait_until(lambda: stack.pending() == [1], "the retry alone is pending")
    assert Spans(stack).most_at_once() == {"tenant:a": 1}


def test_occurrences_and_calls_share_the_limit_of_their_group_on_several_shards(stack: Stack) -> None:
    """The name of the schedule is of another shard than its group; so is that of a schedule whose task has a route."""
    group, shards = "tenant:a", 3
    home = shard_of(group, "", shards)
    names = [name for name in (f"job-{n}" for n in range(20)) if shard_of(None, name, shards) != home][:3]
    routed = {"span": {"wheel": {"group": group}}}
    stack.change(wheel_limits={"tenant": {"concurrency": 1}}, wheel_shards=shards, task_routes=routed)
    beat = stack.beat()
    wait_until(lambda: set(stack.holders().values()) == {beat.pid}, "the scheduler holds all shards")
    stack.worker(*EIGHT)
    schedules = stack.app.wheel.schedules
    call: dict[str, Any] = {"task": "span", "kwargs": {"tag": "occurrence", "ms": 400}}
    schedules.create(names[0], 1, wheel={"group": group}, **call)
    schedules.create_many({name: {"recurrence": 1, **call} for name in names[1:]})
    while Spans(stack).tags().count("occurrence") < 4:
        wait_for_ends(stack, set(send(stack, group, 2)))
    assert [one.name for one in schedules.list(shard=home).items] == sorted(names)
    assert set(schedules.pause(names).values())
    spans = Spans(stack)
    assert spans.most_at_once() == {group: 1}
    assert schedules.delete(names)
