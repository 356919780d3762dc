"""Counters just below 2^31, 2^53 and 2^63 - 1: a store goes through all of its work, and each number stays exact.

A 32-bit column, a number that JSON, Lua or a driver takes for a double, or one that does not fit an int64 fails here.
The tests of ``tests/year`` say in how many years a counter is there.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from celery_wheel.store import open_store
from celery_wheel.store.model import MAX_SEQ, SHARD_BITS
from celery_wheel.store.place import place_of
from tests.integration.scheduler.test_monitoring import page
from tests.kit.patience import wait_until
from tests.kit.servers import free_port
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

#: The work of one test takes fewer numbers of each counter.
LAST = MAX_SEQ - (1_000 << SHARD_BITS)

STARTS = [
    pytest.param(2**31 - 2, id="2^31"),
    pytest.param(2**53 - 1, id="2^53"),
    pytest.param(LAST, id="2^63"),
]


@pytest.fixture(params=["sqlite", "postgresql"])
def stack(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Iterator[Stack]:
    url = ""
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_database()
    with Stack(tmp_path, redis_server, url, wheel_metrics=f"127.0.0.1:{free_port()}") as found:
        yield found


def begin_at(url: str, number: int) -> None:
    """Let the counters of a new store go on from a number: seqs, the epoch, the audit chain, and each id of a row."""
    open_store(url).close()
    engine = create_engine(place_of(url).url)
    with engine.begin() as connection:
        values = {"seq": number >> SHARD_BITS << SHARD_BITS, "number": number}
        connection.execute(text("UPDATE wheel_shard SET seq = :seq, epoch = :number"), values)
        chain = "INSERT INTO wheel_audit_chain VALUES (0, :number, :digest, :number, :digest)"
        connection.execute(text(chain), values | {"digest": "0" * 64})
        if engine.dialect.name == "postgresql":
            found = connection.execute(text("SELECT sequencename FROM pg_sequences WHERE sequencename LIKE 'wheel_%'"))
            for (name,) in found.all():
                connection.execute(text("SELECT setval(:name, :number)"), values | {"name": name})
        else:
            connection.execute(text("DELETE FROM sqlite_sequence"))
            for name in ("inbox", "route", "dictionary", "load", "load_chunk"):
                added = "INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :number)"
                connection.execute(text(added), values | {"name": f"wheel_{name}"})
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("number", STARTS)
def test_all_work_goes_on_with_each_number_exact(stack: Stack, number: int) -> None:
    begin_at(stack.store, number)
    wheel = stack.app.wheel
    with stack.service():
        first = stack.send(0.3, 8)
        wait_until(lambda: stack.dispatched() == first, "the tasks are dispatched in order")
        wait_until(lambda: stack.pending() == [0], "their settlement is in the store")
        later = stack.send(3_000, 8)
        wait_until(lambda: stack.pending() == [8], "the others are accepted")
        assert [one.task_id for one in wheel.pending(limit=5).items] == later[:5]
        assert wheel.cancel(later[:3]) == dict.fromkeys(later[:3], "done")
        assert wheel.cancel(first[0]) == "too_late"
        assert wheel.run_now(later[3]) == "done"
        wait_until(lambda: stack.dispatched() == [*first, later[3]], "it is dispatched")
        wheel.schedules.create("often", 1, "tick")
        wait_until(lambda: stack.ticks() >= 2, "the schedule runs")
        wheel.schedules.delete("often")
        wait_until(lambda: len(wheel.history(task="note").items) == 9, "the dispatched tasks are history")
        assert len({one.id for one in wheel.history(task="note").items}) == 9
        shown = page(int(stack.settings["wheel_metrics"].rpartition(":")[2]))
        assert re.search(r"^celery_wheel_pending\{.*\} 4\.0$", shown, re.MULTILINE), shown
    with stack.service():  # the next epoch
        assert wheel.run_now(later[4:]) == dict.fromkeys(later[4:], "done")
        wait_until(lambda: stack.dispatched() == [*first, *later[3:]], "the next holder goes on, and repeats nothing")
    assert {one.task_id for one in wheel.outcomes("cancelled", task="note").items} == set(later[:3])
    with closing(open_store(stack.store)) as store:
        state = store.state(0)
    assert (state.epoch, state.seq > number) == (number + 2, True)
    assert [(one.last > number, one.problem) for one in wheel.verify_audit()] == [(True, "")]
