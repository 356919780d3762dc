"""This version takes over a store and a wheel queue of each version: it reads, migrates, adopts and dispatches them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.errors import StoreUnusable
from celery_wheel.operations.stores import claim_broker, claim_store
from celery_wheel.store import migrate_store
from celery_wheel.store.model import SCHEMA_VERSION
from tests.kit.patience import wait_until
from tests.kit.servers.rabbit import ON_RABBITMQ
from tests.kit.stack import Stack
from tests.replays import places
from tests.replays.judge import differences, faults, name_of, picture
from tests.replays.making import stack_of
from tests.replays.scenes import NAMES


class Replay:
    """A folder, brought back into servers of this test."""

    def __init__(self, folder: Path, stack: Stack, broker: str) -> None:
        self.stack, self.wheel = stack, stack.app.wheel
        expected = json.loads((folder / "expected.json").read_bytes())
        self.schema_version: int = expected["schema_version"]
        self.expected: dict[str, Any] = expected[broker]
        self.names = list(self.expected["picture"]["states"])

    def differences(self) -> list[str]:
        return differences(self.expected["picture"], picture(self.wheel, self.names))

    def faults(self, found: list[dict[str, Any]]) -> list[str]:
        return faults(self.expected["due"], found)

    def states(self) -> dict[str, str]:
        return {name: detail.state for name in self.names if (detail := self.wheel.get(name)) is not None}


Bring = Callable[[Path], Replay]


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=ON_RABBITMQ)])
def bring(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bring]:
    """Bring a replay back into a store and a broker: SQLite and Redis, or PostgreSQL and RabbitMQ."""
    stacks: list[Stack] = []

    def back(folder: Path) -> Replay:
        if request.param == "redis":
            store = places.read_sqlite(folder / "store.sqlite3.xz", tmp_path / "wheel.sqlite3")
            stack = stack_of(tmp_path, request.getfixturevalue("redis_server").url, store)
        else:
            database = request.getfixturevalue("postgres").new_database()
            places.read_postgresql(folder / "store.sql", database)
            stack = stack_of(tmp_path, request.getfixturevalue("rabbit_server").fresh(), database)
        stacks.append(stack)
        if request.param == "redis":
            places.read_redis(folder / "queue.redis.json", stack.redis)
        else:
            places.read_rabbitmq(folder / "queue.rabbitmq.json", stack.app)
        return Replay(folder, stack, request.param)

    yield back
    for stack in stacks:
        stack.close()


def test_every_released_version_has_a_replay() -> None:
    """docs/compatibility.md promises that a store of each of them can be migrated."""
    changelog = (places.ROOT.parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    released = {line.split("[")[1].split("]")[0] for line in changelog.splitlines() if line.startswith("## [")}
    assert {folder.name for folder in places.folders()} == released - {"Unreleased"}
    assert all(file.stat().st_size < 400_000 for folder in places.folders() for file in folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("folder", places.folders(), ids=lambda folder: folder.name)
def test_this_version_reads_migrates_adopts_and_dispatches_a_replay(bring: Bring, folder: Path) -> None:
    replay = bring(folder)
    assert migrate_store(replay.stack.store) == list(range(replay.schema_version + 1, SCHEMA_VERSION + 1))
    assert replay.differences() == []
    claim_broker(replay.stack.app)
    claim_store(replay.stack.app)  # the files are in another place than those of its last holder
    received = places.take(replay.stack.app, NAMES)  # declares the queues, before the first message is dispatched
    assert received == []
    due = {name_of(one) for one in replay.expected["due"]}

    def all_due() -> bool:
        received.extend(places.take(replay.stack.app, NAMES))
        return due <= {name_of(one) for one in received} | {"behind a pause"}

    schedules = replay.wheel.schedules
    last_at = {one.name: one.last_at for one in schedules.list().items}
    with replay.stack.service():
        wait_until(all_due, "all that is due is in its queue")
        wait_until(lambda: schedules.get("each second").last_at > last_at["each second"], "a schedule goes on")
        assert "behind a pause" not in {name_of(one) for one in received}
        assert replay.wheel.resume(queue="paused")
        wait_until(lambda: all_due() and "behind a pause" in map(name_of, received), "the resumed queue has its task")
        wait_until(lambda: replay.states()["to cancel"] == "cancelled", "the command of the inbox is carried out")
        wait_until(lambda: replay.states()["never sent"] == "cancelled", "the tombstone has cancelled its task")
        wait_until(lambda: {replay.states()[name] for name in due} == {"dispatched"}, "the dispatch is settled")
    received += places.take(replay.stack.app, NAMES)
    assert replay.faults(received) == []
    before = replay.expected["picture"]["states"]
    kept = {name: state[0] for name, state in before.items() if state is not None and name not in due | {"to cancel"}}
    assert {name: replay.states()[name] for name in kept} == kept
    assert replay.wheel.get("queued and far").state == "pending"
    assert schedules.get("paused").last_at == last_at["paused"]
    assert (schedules.get("broken").broken, schedules.get("guarded").paused) == (True, True)
    assert [one.name for one in schedules.list().items] == list(replay.expected["picture"]["schedules"])
    assert sorted((one.load.name, one.load.state) for one in replay.wheel.store.loads.latest())[-1] == ("open", "open")


@pytest.fixture
def newest() -> Path:
    return places.folders()[-1]


def test_a_version_without_the_step_from_an_older_store_is_found(bring: Bring, newest: Path) -> None:
    replay = bring(newest)
    with replay.wheel.store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE wheel_meta SET schema_version = 0")
    with pytest.raises(KeyError):
        migrate_store(replay.stack.store)
    replay.wheel.close()
    with pytest.raises(StoreUnusable, match="version 0, this celery-wheel needs"):
        replay.differences()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("DELETE FROM wheel_gate WHERE name = 'paused'", "gates"),
        ("UPDATE wheel_schedule SET paused = NOT paused WHERE name = 'nightly'", "schedules"),
        ("DELETE FROM wheel_tombstone", "tombstones"),
        ("UPDATE wheel_lane SET offset_due_ms = 4200000000000, watermark_due_ms = 4200000000000", "pending"),
        ("DELETE FROM wheel_inbox", "inbox"),
    ],
)
def test_a_store_that_lost_something_is_found(bring: Bring, newest: Path, change: str, part: str) -> None:
    replay = bring(newest)
    with replay.wheel.store.database.writing() as connection:
        connection.exec_driver_sql(change)
    assert any(one.startswith(f"{part}: ") for one in replay.differences())


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_message_that_is_lost_or_doubled_or_changed_is_found(newest: Path, broker: str) -> None:
    due = json.loads((newest / "expected.json").read_bytes())[broker]["due"]
    assert faults(due, due) == []
    assert len(faults(due, due[1:])) == 1
    assert len(faults(due, [*due, due[0]])) == 1
    changed = [{**due[0], "headers": {**due[0]["headers"], "retries": 7}}, *due[1:]]
    assert len(faults(due, changed)) == 1
    assert len(faults(due, [{**due[0], "queue": "mail"}, *due[1:]])) == 2
