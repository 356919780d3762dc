"""Schedulers as processes: started, stopped, killed, and refused where they cannot work."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.integration.scheduler.conftest import Bench
from tests.servers import wait_until


def test_a_scheduler_dispatches_and_runs_periodic_entries_and_stops_cleanly(bench: Bench) -> None:
    beat = bench.beat()
    ids = bench.send(0.3, count=20)
    wait_until(lambda: len(bench.dispatched()) == 20, "the tasks are dispatched")
    assert bench.dispatched() == ids
    wait_until(lambda: bench.ticks() >= 3, "the periodic entry is sent")
    beat.signal(signal.SIGTERM)
    code, output = beat.end()
    assert code == 0, output
    assert "Traceback" not in output
    status = bench.status()
    assert (status["holder"], status["pending"]) == (None, 0), "stopping settles, and frees the shard"


def test_of_two_one_holds_and_the_other_takes_over_within_three_seconds_of_a_kill(bench: Bench) -> None:
    first = bench.beat()
    bench.wait_for_holder(first)
    second = bench.beat()
    early, late = bench.send(0.2, count=5), bench.send(8, count=5)
    wait_until(lambda: len(bench.dispatched()) == 5, "the first dispatches")
    wait_until(lambda: not bench.redis.llen("wheel.0"), "all is accepted")
    ticks = bench.ticks()
    wait_until(lambda: bench.ticks() >= ticks + 4, "the periodic entry is sent by the holder alone")
    first.kill()
    killed_at = time.monotonic()
    epoch_before = 1
    wait_until(lambda: bench.redis.hget("wheel.offset.0", "epoch") > b"%019d" % epoch_before, "the second adopts", 3)
    assert time.monotonic() - killed_at < 3
    wait_until(lambda: len(bench.dispatched()) == 10, "the second dispatches what the first had accepted")
    assert bench.dispatched() == early + late
    assert second.is_alive()


def test_a_standby_sends_no_periodic_entry(bench: Bench) -> None:
    first = bench.beat()
    bench.wait_for_holder(first)
    bench.beat()
    first.signal(signal.SIGSTOP)  # it still has the kernel's lock, so nobody takes over
    before = bench.ticks()
    sentinel = bench.redis.time()[0]
    wait_until(lambda: bench.redis.time()[0] >= sentinel + 3, "six intervals of the entry have passed")
    assert bench.ticks() == before
    first.signal(signal.SIGCONT)


def test_what_was_accepted_survives_a_kill_and_leaves_in_order_exactly_once(bench: Bench) -> None:
    first = bench.beat()
    ids = bench.send(3, count=200)
    wait_until(lambda: not bench.redis.llen("wheel.0"), "all is accepted")
    first.kill()
    bench.beat()
    wait_until(lambda: len(bench.dispatched()) >= 200, "all is dispatched")
    last = bench.send(0.2)
    wait_until(lambda: bench.dispatched()[-1:] == last, "nothing more comes")
    assert bench.dispatched() == ids + last


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wheel_tick": -1}, "wheel_tick must be"),
        ({"wheel_lese": 1}, "wheel_lese must be the name of a setting"),
        ({"wheel_store": "sqlite:////proc/no/such/wheel.sqlite3"}, "/proc/no/such"),
        ({"broker_url": "filesystem://"}, "broker_url must be of a transport that the wheel serves"),
    ],
)
def test_what_cannot_work_stops_the_start_with_a_reason_and_exit_code_1(
    bench: Bench, settings: dict[str, object], said: str
) -> None:
    code, output = bench.beat(**settings).end()
    assert said in output
    assert "Traceback" not in output
    assert code == 1


def test_a_store_of_a_newer_schema_is_refused(bench: Bench) -> None:
    beat = bench.beat()
    bench.wait_for_holder(beat)
    beat.kill()
    path = Path(bench.store.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE wheel_meta SET schema_version = 999")
    connection.close()
    code, output = bench.beat().end()
    assert "999" in output
    assert "newer" in output
    assert code == 1


def test_messages_that_cannot_be_read_are_set_aside_and_the_loop_goes_on(bench: Bench) -> None:
    good = bench.send(0)  # countdown 0 goes native; the next one shows what a message looks like
    bench.send(60)
    (sample,) = bench.redis.lrange("wheel.0", 0, -1)
    message = json.loads(sample)

    def with_envelope(n: int, **changes: object) -> bytes:
        made = json.loads(sample)
        made["headers"]["wheel"].update(id=f"0192{n:04x}-0000-7000-8000-000000000000", **changes)
        return json.dumps(made).encode()

    bad: list[bytes] = [b"", b"\xff\xfe", b"{", b"[]", sample[: len(sample) // 2]]
    no_envelope = {**message, "headers": {name: v for name, v in message["headers"].items() if name != "wheel"}}
    bad.append(json.dumps(no_envelope).encode())
    changed = ({"v": 99}, {"eta_ms": "soon"}, {"eta_ms": 253_402_300_800_000}, {"eta_ms": -1}, {"task": 7})
    bad += [with_envelope(n, **changes) for n, changes in enumerate(changed)]
    bad.append(json.dumps({**message, "body": "A" * (10 * 2**20)}).encode())
    for raw in bad:
        bench.redis.lpush("wheel.0", raw)
    bench.beat()
    ids = bench.send(0.2)
    wait_until(lambda: bench.dispatched() == good + ids, "what comes after them is dispatched")
    wait_until(lambda: not bench.redis.llen("wheel.0"), "the wheel queue is empty")
    with sqlite3.connect(Path(bench.store.removeprefix("sqlite:///"))) as connection:
        kept = connection.execute(
            "SELECT p.body, o.reason FROM wheel_outcome o JOIN wheel_payload p ON p.id = o.timer_id"
            " WHERE o.kind = 'rejected'"
        ).fetchall()
    connection.close()
    assert sorted(body for body, _ in kept) == sorted(bad)
    assert all(reason for _, reason in kept)


def test_redis_away_and_back_loses_nothing(bench: Bench) -> None:
    bench.server.stop()
    bench.server.options["appendonly"] = "yes"
    bench.server.start()
    bench.redis = bench.server.client()
    bench.beat()
    ids = bench.send(2, count=50)
    wait_until(lambda: not bench.redis.llen("wheel.0"), "all is accepted")
    bench.server.stop()
    time_away_until = time.monotonic() + 3
    wait_until(lambda: time.monotonic() > time_away_until, "the tasks have become due meanwhile")
    bench.server.start()
    bench.redis = bench.server.client()
    wait_until(lambda: len(bench.dispatched()) >= 50, "they leave when the broker is back")
    assert bench.dispatched() == ids


def test_the_worker_can_embed_the_scheduler(bench: Bench) -> None:
    bench.celery("worker", "-B", "-P", "threads", "-c", "1", "-l", "INFO", "-Q", "nothing")
    ids = bench.send(0.2, count=3)
    wait_until(lambda: bench.dispatched() == ids, "the embedded scheduler dispatches")
