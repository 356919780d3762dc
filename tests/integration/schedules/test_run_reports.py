"""Real workers report each end of a run, on each kind of broker and in each pool.

Each schedule has a backfill whose second instant runs only once the end of the first is reported: by itself a run would
count for a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.patience import wait_until
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.servers.sqs import SqsServer
from tests.kit.stack import Stack

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
        assert rabbit is not None
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


@pytest.mark.parametrize(
    ("broker", "pool"),
    [("rabbitmq", ("-c", "2")), ("sqs", ("-P", "threads", "-c", "2")), ("redis", ("-P", "solo"))],
    ids=["RabbitMQ, prefork", "SQS, threads", "Redis, solo"],
)
def test_each_end_makes_the_next_instant_due(
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
