"""Two stores on one Redis, as an operator meets them: the finding of the doctor, and ``claim-broker``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from celery_wheel import Celery
from celery_wheel.broker import broker_for
from celery_wheel.cli import wheel
from celery_wheel.conf import Conf
from celery_wheel.errors import StoreConflict
from celery_wheel.operations.doctor import Grade, Installation, broker, shards
from celery_wheel.operations.stores import claim_broker, other_owners
from celery_wheel.store import open_store
from tests.kit.chunks import raw
from tests.kit.servers.redis import RedisServer

MakeApp = Callable[[str], Any]


@pytest.fixture
def make_app(server: RedisServer, tmp_path: Path) -> MakeApp:
    def make(name: str) -> Any:
        url = f"sqlite:///{tmp_path}/{name}.sqlite3"
        app = Celery(name, broker=server.url, set_as_current=False)
        app.conf.update(wheel_store=url, wheel_shards=2)
        open_store(url, shards=2).close()
        return app

    return make


def adopt(app: Any) -> None:
    store = open_store(app.conf.wheel_store, shards=2)
    edge = broker_for(app, Conf(app), store)
    try:
        for shard in range(2):
            edge.adopt(shard, 1)
    finally:
        edge.close()
        store.close()


def test_the_doctor_names_the_other_store_and_the_remedy(make_app: MakeApp, tmp_path: Path) -> None:
    first, second = make_app("first"), make_app("second")
    adopt(first)
    with pytest.raises(StoreConflict, match=r"first\.sqlite3 on "):
        adopt(second)
    with Installation(second) as site:
        found = [one for one in broker.check(site) if one.grade is Grade.ERROR]
    assert [one.about for one in found] == ["shard 0", "shard 1"]
    assert f"{tmp_path}/first.sqlite3 on " in found[0].text
    assert "claim-broker" in (found[0].remedy or "")
    with Installation(first) as site:
        assert not [one for one in broker.check(site) if one.grade is Grade.ERROR]


def test_a_claim_is_refused_while_the_first_store_is_in_use_and_then_moves_all_shards(
    make_app: MakeApp, client: redis.Redis
) -> None:
    first, second = make_app("first"), make_app("second")
    adopt(first)
    assert list(other_owners(second)) == [0, 1]
    client.hset("wheel.offset.0", "seen", 2**52)  # just now, however long the test takes
    with pytest.raises(StoreConflict):
        claim_broker(second)
    for shard in range(2):
        client.hset(f"wheel.offset.{shard}", "seen", 0)
    claim_broker(second)
    assert other_owners(second) == {}
    adopt(second)
    with pytest.raises(StoreConflict):
        adopt(first)


def test_the_command_names_the_tasks_that_stay_behind_and_asks_for_confirmation(
    make_app: MakeApp, client: redis.Redis
) -> None:
    first, second = make_app("first"), make_app("second")
    adopt(first)
    client.hset("wheel.offset.0", "seen", 0)
    client.hset("wheel.offset.1", "seen", 0)

    def run(*arguments: str, answer: str = "") -> Any:
        return CliRunner().invoke(
            wheel.commands["claim-broker"], arguments, obj=SimpleNamespace(app=second), input=answer
        )

    refused = run(answer="n\n")
    assert refused.exit_code == 1
    assert "first.sqlite3" in refused.output
    assert "its pending tasks stay there" in refused.output
    with pytest.raises(StoreConflict):
        adopt(second)
    assert run("--yes").exit_code == 0
    adopt(second)
    assert "to this store already" in run("--yes").output


@pytest.mark.parametrize(
    ("data", "grade", "text"),
    [
        (raw(1), None, ""),
        (raw(1).replace(b'"v": 1', b'"v": 2'), Grade.ERROR, "envelope version must be 1, got 2"),
        (b"no message", Grade.ERROR, "cannot be read"),
    ],
)
def test_the_doctor_reads_the_oldest_message_and_removes_none(
    make_app: MakeApp, client: redis.Redis, data: bytes, grade: Grade | None, text: str
) -> None:
    app = make_app("first")
    client.lpush("wheel.0", data)
    with Installation(app) as site:
        found = [one for one in shards.check_queues(site) if one.grade is Grade.ERROR]
    assert [one.grade for one in found] == ([grade] if grade else [])
    assert all(text in one.text for one in found)
    assert client.llen("wheel.0") == 1
