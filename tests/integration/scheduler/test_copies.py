"""A store that was copied, or that another app names: one dispatches, each task once, on the store's broker alone."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from celery_wheel.cli import wheel
from celery_wheel.errors import StoreConflict
from celery_wheel.operations.doctor import Grade, Installation, broker
from celery_wheel.operations.drain import drain
from celery_wheel.store import open_store
from tests.kit.patience import wait_until
from tests.kit.processes import Process
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.stack import Stack

TASKS = 100


@pytest.fixture
def stacks() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def copy_of(stack: Stack, stacks: ExitStack) -> Stack:
    """Copy the folder of a store, as ``cp -r`` does, while its scheduler may run."""
    folder = stack.folder / "release-2"
    folder.mkdir()
    for file in stack.folder.glob("wheel.sqlite3*"):
        shutil.copy(file, folder)
    settings = {key: value for key, value in stack.settings.items() if key not in ("broker_url", "wheel_store")}
    return stacks.enter_context(Stack(folder, stack.server, f"sqlite:///{folder}/wheel.sqlite3", **settings))


def claim(app: Any, *arguments: str) -> Any:
    return CliRunner().invoke(wheel.commands["claim-store"], arguments, obj=SimpleNamespace(app=app))


def problems(stack: Stack) -> str:
    with Installation(stack.app) as site:
        return "\n".join(f"{one.text} {one.remedy}" for one in broker.check(site) if one.grade is not Grade.OK)


def refused(beat: Process, *places: str) -> None:
    beat.wait_for("holds nothing, and nothing was changed")
    assert all(place in beat.said() for place in places), beat.said()


def test_two_schedulers_on_a_copied_folder_dispatch_each_task_once(stack: Stack, stacks: ExitStack) -> None:
    first = stack.beat()
    stack.wait_for_holder(first)
    ids = [stack.app.send_task("note", (n,), countdown=4 + n % 20 / 10).id for n in range(TASKS)]
    wait_until(lambda: stack.pending() == [TASKS], "the tasks are accepted")
    other = copy_of(stack, stacks)
    second = other.beat()
    refused(second, str(stack.file), str(other.file))
    wait_until(lambda: len(stack.dispatched()) >= TASKS, "the tasks are dispatched")
    wait_until(lambda: stack.pending() == [0], "the dispatches are settled")
    assert Counter(stack.dispatched()) == Counter(ids)
    assert (other.holders(), other.pending()) == ({}, [TASKS])
    assert second.said().count("holds nothing") <= 2, "one line a minute"
    assert str(stack.file) in problems(other)
    assert "claim-store" in problems(other)
    assert str(other.file) in problems(stack), "the doctor beside the holder names the copy too"
    assert "state_ended" not in first.said()


def test_a_store_that_was_moved_on_purpose_is_claimed(stack: Stack, stacks: ExitStack) -> None:
    first = stack.beat()
    stack.wait_for_holder(first)
    [task] = stack.send(3_600)
    wait_until(lambda: stack.pending() == [1], "the task is accepted")
    first.terminate()
    other = copy_of(stack, stacks)
    second = other.beat()
    refused(second, str(stack.file), str(other.file))
    stack.redis.hset("wheel.offset.0", "seen", 2**52)  # just now, however long the test takes
    assert claim(other.app, "--yes").exit_code == 1
    stack.redis.hset("wheel.offset.0", "seen", 0)
    claimed = claim(other.app, "--yes")
    assert claimed.exit_code == 0, claimed.output
    assert str(stack.file) in claimed.output
    other.wait_for_holder(second)
    assert other.app.wheel.run_now(task) == "done"
    wait_until(lambda: other.dispatched() == [task], "the task is dispatched")
    assert "no other copy" in claim(other.app, "--yes").output
    second.terminate()
    refused(stack.beat(), str(stack.file), str(other.file))


def test_one_of_two_copies_that_start_at_one_moment_holds_the_shard(stack: Stack, stacks: ExitStack) -> None:
    with stack.service():
        wait_until(lambda: stack.redis.exists("wheel.offset.0"), "the broker has offsets")
    other = copy_of(stack, stacks)
    beats = [other.beat(), stack.beat()]
    stack.wait_for_holder(beats[1])
    refused(beats[0], str(stack.file), str(other.file))


def test_a_store_that_is_replaced_by_its_backup_needs_no_claim(stack: Stack) -> None:
    """The same path, and another file."""
    with stack.service():
        wait_until(lambda: stack.redis.exists("wheel.offset.0"), "the broker has offsets")
    copy = stack.folder / "backup"
    shutil.copy(stack.file, copy)
    stack.file.unlink()
    copy.rename(stack.file)
    beat = stack.beat()
    stack.wait_for_holder(beat)
    beat.wait_for("at epoch")


def test_a_store_whose_file_moves_within_its_disk_is_the_same_store(stack: Stack) -> None:
    with stack.service():
        wait_until(lambda: stack.redis.exists("wheel.offset.0"), "the broker has offsets")
    moved = stack.folder / "release-2"
    moved.mkdir()
    for file in stack.folder.glob("wheel.sqlite3*"):
        file.rename(moved / file.name)
    stack.change(wheel_store=f"sqlite:///{moved}/wheel.sqlite3")
    beat = stack.beat()
    stack.wait_for_holder(beat)
    beat.wait_for("at epoch")
    assert "another copy" not in beat.said()


def test_a_store_that_was_moved_to_another_database_needs_no_claim(stack: Stack) -> None:
    with stack.service():
        wait_until(lambda: stack.redis.exists("wheel.offset.0"), "the broker has offsets")
    to = f"sqlite:///{stack.folder}/elsewhere.sqlite3"
    wait_until(lambda: not live(stack), "no scheduler is at work")
    assert "elsewhere" in stack.output("wheel", "move", "--to", to, "--yes")
    stack.change(wheel_store=to)
    beat = stack.beat()
    stack.wait_for_holder(beat)
    beat.wait_for("at epoch")


def live(stack: Stack) -> list[str]:
    with closing(open_store(stack.store, shards=None, create=False)) as store:
        return [one for one in store.holders().values() if one]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def test_a_database_made_from_the_template_of_another_is_a_copy(
    stack: Stack, stacks: ExitStack, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    first = stacks.enter_context(Stack(tmp_path / "one", stack.server, url))
    with first.service():
        first.send(3, TASKS)
        wait_until(lambda: first.pending() == [TASKS], "the tasks are accepted")
    other = stacks.enter_context(Stack(tmp_path / "two", stack.server, postgres.new_database(template=name_of(url))))
    beat = first.beat()
    first.wait_for_holder(beat)
    second = other.beat()
    refused(second, f"{name_of(first.store)} on ", f"{name_of(other.store)} on ")
    wait_until(lambda: len(first.dispatched()) >= TASKS, "the tasks are dispatched")
    wait_until(lambda: first.pending() == [0], "the dispatches are settled")
    assert set(Counter(first.dispatched()).values()) == {1}
    assert other.pending() == [TASKS]
    assert name_of(other.store) in problems(first)


@ON_RABBITMQ
def test_a_copy_on_rabbitmq_holds_nothing_while_the_other_is_connected(
    rabbit_server: RabbitServer, stacks: ExitStack, tmp_path: Path
) -> None:
    first = stacks.enter_context(Stack(tmp_path, rabbit_server.fresh()))
    beat = first.beat()
    first.wait_for_holder(beat)
    ids = first.send(4, TASKS)
    wait_until(lambda: first.pending() == [TASKS], "the tasks are accepted")
    other = copy_of(first, stacks)
    second = other.beat()
    refused(second, str(first.file), str(other.file))
    assert claim(other.app, "--yes").exit_code == 1
    wait_until(lambda: first.pending() == [0], "the tasks are dispatched")
    with closing(first.app.connection_for_read()) as connection:
        channel: Any = connection.default_channel
        found = iter(lambda: channel.basic_get("celery", no_ack=True), None)
        assert Counter(message.headers["id"] for message in found) == Counter(ids)
    assert other.pending() == [TASKS]
    assert str(first.file) in problems(other)
    beat.terminate()
    assert claim(other.app, "--yes").exit_code == 0
    other.wait_for_holder(second)


def name_of(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


@pytest.fixture
def used(stack: Stack) -> Stack:
    """A stack whose store has had a scheduler; its app has another broker now."""
    with stack.service():
        pass
    stack.change(broker_url=f"{stack.broker.rpartition('/')[0]}/5")
    return stack


def start(stack: Stack) -> None:
    with stack.service():
        pass


def places(stack: Stack) -> set[str]:
    with closing(open_store(stack.store, shards=None, create=False)) as store:
        return {place.rpartition("/")[2] for place in store.brokers()}


def claim_new_broker(app: Any, *arguments: str, answer: str = "") -> Any:
    command = wheel.commands["claim-broker"]
    return CliRunner().invoke(command, arguments, obj=SimpleNamespace(app=app), input=answer)


def test_a_scheduler_of_an_app_with_another_broker_does_not_start(used: Stack) -> None:
    with pytest.raises(StoreConflict, match=r"dispatches to redis://127.0.0.1:\d+/0, and this app's broker is .*/5"):
        start(used)
    assert (places(used), used.app.connection_for_read().default_channel.client.keys()) == ({"0"}, [])


def test_beat_says_so_in_a_line_and_ends(used: Stack) -> None:
    code, said = used.beat().end()
    assert (code, "Traceback" in said) == (1, False)
    assert "give each app a wheel_store of its own" in said


def test_a_broker_that_moved_is_claimed_once(used: Stack) -> None:
    assert (claim_new_broker(used.app, answer="n\n").exit_code, places(used)) == (1, {"0"})
    claimed = claim_new_broker(used.app, "--yes")
    assert (claimed.exit_code, places(used)) == (0, {"0", "5"}), claimed.output
    assert "the store dispatches to redis://" in claimed.output
    start(used)
    assert "already" in claim_new_broker(used.app, "--yes").output


def test_the_doctor_names_the_other_broker(used: Stack) -> None:
    with Installation(used.app) as site:
        [found] = [one for one in broker.check(site) if one.grade is Grade.ERROR]
    assert (found.about, "claim-broker" in (found.remedy or "")) == ("other broker", True)


def test_a_broker_with_the_offsets_of_the_store_is_its_broker_by_any_name(stack: Stack) -> None:
    with stack.service():
        wait_until(lambda: stack.redis.exists("wheel.offset.0"), "the broker has offsets")
    stack.change(broker_url=stack.broker.replace("127.0.0.1", "127.1"))
    start(stack)
    with closing(open_store(stack.store, shards=None, create=False)) as store:
        assert len(store.brokers()) == 2


def test_no_task_is_drained_to_another_broker(used: Stack, tmp_path: Path) -> None:
    with closing(open_store(used.store, shards=None, create=False)) as store:
        for ways in ({"to_broker": True}, {"file": tmp_path / "tasks"}):
            with pytest.raises(StoreConflict, match="give each app a wheel_store of its own"):
                drain(used.app, store, **ways)  # type: ignore[arg-type]


def test_an_emptied_broker_is_still_the_broker_of_the_store(stack: Stack) -> None:
    start(stack)
    stack.redis.flushdb()
    start(stack)


def test_beat_waits_for_an_unknown_broker_that_is_down(used: Stack) -> None:
    beat = used.beat(broker_url="redis://127.0.0.1:1/0")
    beat.wait_for("beat waits for its broker")
    assert (beat.terminate(), "Traceback" in beat.said()) == (0, False)
