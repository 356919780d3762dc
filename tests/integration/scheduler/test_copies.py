"""A store that was copied, moved or restored, or that another app names, and a Redis that was emptied.

One scheduler dispatches, each task once, on the store's broker alone; tasks are dispatched again where needed.
"""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from celery_wheel.cli import wheel
from celery_wheel.errors import StoreConflict
from celery_wheel.operations.doctor import Grade, Installation, broker, shards
from celery_wheel.operations.drain import drain
from celery_wheel.store import open_store
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.stack import Stack

TASKS = 100

#: Tasks that are dispatched, and consumed by no worker.
EMPTIED = 20


@pytest.fixture
def stacks() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def start(stack: Stack) -> None:
    with stack.service():
        wait_until(lambda: stack.redis.exists("wheel.offset.0"), "the broker has offsets")


def copy_files(stack: Stack, copy: Callable[[Path, Path], object] = shutil.copy) -> str:
    """Copy the folder of a store, as ``cp -r`` does, while its scheduler may run; returns the URL of the copy."""
    folder = stack.folder / "release-2"
    folder.mkdir()
    for file in stack.folder.glob("wheel.sqlite3*"):
        copy(file, folder / file.name)
    return f"sqlite:///{folder}/wheel.sqlite3"


def copy_of(stack: Stack, stacks: ExitStack) -> Stack:
    store = copy_files(stack)
    settings = {key: value for key, value in stack.settings.items() if key not in ("broker_url", "wheel_store")}
    return stacks.enter_context(Stack(stack.folder / "release-2", stack.server, store, **settings))


def claim(stack: Stack, what: str, answer: str | None = None) -> Any:
    """Run ``wheel claim-store`` or ``claim-broker``, with ``--yes`` or with an answer to its question."""
    arguments = ["--yes"] if answer is None else []
    return CliRunner().invoke(wheel.commands[what], arguments, obj=SimpleNamespace(app=stack.app), input=answer)


def problems(stack: Stack) -> str:
    with Installation(stack.app) as site:
        return "\n".join(f"{one.text} {one.remedy}" for one in broker.check(site) if one.grade is not Grade.OK)


def refused(beat: Process, *places: str) -> None:
    beat.wait_for("holds nothing, and nothing was changed")
    assert all(place in beat.said() for place in places), beat.said()


@pytest.mark.slow
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
    assert claim(other, "claim-store").exit_code == 1
    stack.redis.hset("wheel.offset.0", "seen", 0)
    claimed = claim(other, "claim-store")
    assert claimed.exit_code == 0, claimed.output
    assert str(stack.file) in claimed.output
    (entry,) = other.app.wheel.audit(action="claim_store").items
    assert (entry.origin, str(stack.file) in entry.details["from"][0]) == ("cli", True)
    other.wait_for_holder(second)
    assert other.app.wheel.run_now(task) == "done"
    wait_until(lambda: other.dispatched() == [task], "the task is dispatched")
    assert "no other copy" in claim(other, "claim-store").output
    second.terminate()
    refused(stack.beat(), str(stack.file), str(other.file))


def test_one_of_two_copies_that_start_at_one_moment_holds_the_shard(stack: Stack, stacks: ExitStack) -> None:
    start(stack)
    other = copy_of(stack, stacks)
    beats = [other.beat(), stack.beat()]
    stack.wait_for_holder(beats[1])
    refused(beats[0], str(stack.file), str(other.file))


def replaced_by_its_backup(stack: Stack) -> None:
    """The path is the same, and the file is another."""
    backup = stack.folder / "backup"
    shutil.copy(stack.file, backup)
    stack.file.unlink()
    backup.rename(stack.file)


def moved_within_its_disk(stack: Stack) -> None:
    stack.change(wheel_store=copy_files(stack, Path.rename))


def moved_to_another_database(stack: Stack) -> None:
    to = f"sqlite:///{stack.folder}/elsewhere.sqlite3"
    wait_until(lambda: not stack.holders(), "no scheduler is at work")
    assert "elsewhere" in stack.output("wheel", "move", "--to", to, "--yes")
    stack.change(wheel_store=to)


@pytest.mark.slow
@pytest.mark.parametrize("happens", [replaced_by_its_backup, moved_within_its_disk, moved_to_another_database])
def test_a_store_needs_no_claim_where_no_copy_stays(stack: Stack, happens: Callable[[Stack], None]) -> None:
    start(stack)
    happens(stack)
    beat = stack.beat()
    stack.wait_for_holder(beat)
    beat.wait_for("at epoch")
    assert happens is not moved_within_its_disk or "another copy" not in beat.said()


@pytest.mark.slow
def test_a_backup_that_is_put_in_the_place_of_the_store_lacks_tasks_and_the_scheduler_says_how_many(
    stack: Stack,
) -> None:
    with stack.service():
        stack.send(3_600, 3)
        wait_until(lambda: stack.pending() == [3], "the first tasks are accepted")
    backup = stack.folder / "backup"
    shutil.copy(stack.file, backup)
    with stack.service():
        stack.send(3_600, 4)
        wait_until(lambda: stack.pending() == [7], "the next tasks are accepted")
    backup.rename(stack.file)
    beat = stack.beat()
    stack.wait_for_holder(beat)
    beat.wait_for("the store was rolled back: 4 messages that it had accepted are gone")
    wait_until(lambda: counts(stack, "store_lost") == 4, "the status counts them")
    assert "4 messages that the store had accepted are gone" in errors(stack)
    stack.send(3_600, 1)
    wait_until(lambda: stack.pending() == [4], "the scheduler goes on")
    beat.terminate()
    again = stack.beat("again")
    stack.wait_for_holder(again)
    again.wait_for("at epoch")
    assert "rolled back" not in again.said()


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


@pytest.mark.slow
@ON_RABBITMQ
def test_a_copy_on_rabbitmq_holds_nothing_while_the_other_is_connected(
    rabbit_server: RabbitServer, stacks: ExitStack, tmp_path: Path
) -> None:
    first = stacks.enter_context(Stack(tmp_path, rabbit_server.fresh()))
    beat = first.beat()
    first.wait_for_holder(beat)
    ids = first.send(patience(4), TASKS)  # none is due before the copy is made
    wait_until(lambda: first.pending() == [TASKS], "the tasks are accepted")
    other = copy_of(first, stacks)
    second = other.beat()
    refused(second, str(first.file), str(other.file))
    assert claim(other, "claim-store").exit_code == 1
    wait_until(lambda: first.pending() == [0], "the tasks are dispatched")
    with closing(first.app.connection_for_read()) as connection:
        channel: Any = connection.default_channel
        found = iter(lambda: channel.basic_get("celery", no_ack=True), None)
        assert Counter(message.headers["id"] for message in found) == Counter(ids)
    assert other.pending() == [TASKS]
    assert str(first.file) in problems(other)
    beat.terminate()
    assert claim(other, "claim-store").exit_code == 0
    other.wait_for_holder(second)


def name_of(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


@pytest.fixture
def used(stack: Stack) -> Stack:
    start(stack)
    stack.change(broker_url=f"{stack.broker.rpartition('/')[0]}/5")
    return stack


def places(stack: Stack) -> set[str]:
    with closing(open_store(stack.store, shards=None, create=False)) as store:
        return {place.rpartition("/")[2] for place in store.brokers()}


def test_an_app_with_another_broker_neither_starts_nor_drains_and_the_doctor_names_it(used: Stack) -> None:
    with pytest.raises(StoreConflict, match=r"dispatches to redis://127.0.0.1:\d+/0, and this app's broker is .*/5"):
        start(used)
    assert (places(used), used.app.connection_for_read().default_channel.client.keys()) == ({"0"}, [])
    code, said = used.beat().end()
    assert (code, "Traceback" in said) == (1, False)
    assert "give each app a wheel_store of its own" in said
    with Installation(used.app) as site:
        [found] = [one for one in broker.check(site) if one.grade is Grade.ERROR]
    assert (found.about, "claim-broker" in (found.remedy or "")) == ("other broker", True)
    with closing(open_store(used.store, shards=None, create=False)) as store:
        for ways in ({"to_broker": True}, {"file": used.folder / "tasks"}):
            with pytest.raises(StoreConflict, match="give each app a wheel_store of its own"):
                drain(used.app, store, **ways)


def test_a_broker_that_moved_is_claimed_once(used: Stack) -> None:
    assert (claim(used, "claim-broker", "n\n").exit_code, places(used)) == (1, {"0"})
    claimed = claim(used, "claim-broker")
    assert (claimed.exit_code, places(used)) == (0, {"0", "5"}), claimed.output
    assert "the store dispatches to redis://" in claimed.output
    (entry,) = used.app.wheel.audit(action="claim_broker").items
    assert (len(entry.entries), entry.results) == (2, {"store": {"result": "done"}}), "before it began, and after"
    start(used)
    assert "already" in claim(used, "claim-broker").output


def test_a_broker_with_the_offsets_of_the_store_is_its_broker_by_any_name(stack: Stack) -> None:
    start(stack)
    stack.change(broker_url=stack.broker.replace("127.0.0.1", "127.1"))
    start(stack)
    with closing(open_store(stack.store, shards=None, create=False)) as store:
        assert len(store.brokers()) == 2


def test_beat_waits_for_an_unknown_broker_that_is_down(used: Stack) -> None:
    beat = used.beat(broker_url="redis://127.0.0.1:1/0")
    beat.wait_for("beat waits for its broker")
    assert (beat.terminate(), "Traceback" in beat.said()) == (0, False)


def dispatch(stack: Stack) -> Counter[str]:
    ids = stack.send(0.2, EMPTIED)
    wait_until(lambda: len(stack.dispatched()) == EMPTIED and sum(stack.pending()) == 0, "they are dispatched")
    return Counter(ids)


def counts(stack: Stack, name: str) -> int:
    return sum((one.snapshot or {}).get(name, 0) for one in stack.app.wheel.status())


def errors(stack: Stack) -> str:
    with Installation(stack.app) as site:
        found = [*broker.check(site), *shards.check(site)]
    return "\n".join(one.text for one in found if one.grade in (Grade.ERROR, Grade.WARNING))


@pytest.mark.parametrize("command", ["FLUSHDB", "FLUSHALL"])
def test_tasks_that_nobody_consumed_come_back_at_work(
    stack: Stack, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    stack.change(wheel_shards=2)
    with stack.service():
        ids = dispatch(stack)
        later = stack.send(3_600)
        wait_until(lambda: sum(stack.pending()) == 1, "a later task is pending")
        for _ in range(2):
            stack.redis.execute_command(command)
            wait_until(lambda: Counter(stack.dispatched()) == ids, "they are dispatched again")
            wait_until(lambda: sum(stack.pending()) == 1, "and settled")
        assert "the broker was emptied" in caplog.text
        wait_until(lambda: counts(stack, "emptied") >= 2, "the status counts it")
        assert counts(stack, "rollbacks") == 0
        assert "the broker was found to be emptied" in errors(stack)
        assert stack.app.wheel.run_now(later[0]) == "done"
        wait_until(lambda: later[0] in stack.dispatched(), "the later task is dispatched")


def test_tasks_that_nobody_consumed_come_back_with_the_next_start(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    with stack.service():
        ids = dispatch(stack)
    stack.redis.flushall()
    assert "the broker was emptied" in errors(stack)
    with stack.service():
        wait_until(lambda: Counter(stack.dispatched()) == ids, "they are dispatched again")
    assert caplog.text.count("the broker was emptied") == 1


def test_a_first_start_and_a_restart_are_silent(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with stack.service():
            stack.send(3_600)
            wait_until(lambda: "wheel.offset.0" in map(bytes.decode, stack.redis.keys()), "the broker has offsets")
    assert "emptied" not in caplog.text
    assert "emptied" not in errors(stack)


def test_a_broker_that_was_claimed_gets_nothing_again(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    with stack.service():
        dispatch(stack)
    stack.change(broker_url=f"{stack.broker.rpartition('/')[0]}/5")
    done = claim(stack, "claim-broker")
    assert done.exit_code == 0, done.output
    with stack.service():
        app = stack.make_app(**stack.settings)  # the first one has connections to the former broker
        task = app.send_task("note", (0,), countdown=0.2).id
        with closing(app.connection_for_read()) as connection:
            queue: Any = connection.default_channel.client
            wait_until(lambda: queue.llen("celery"), "a new task is dispatched")
            assert queue.llen("celery") == 1
            assert task.encode() in queue.lindex("celery", 0)
    assert "emptied" not in caplog.text


def test_a_copy_takes_nothing_from_a_broker_that_was_emptied_under_the_other(stack: Stack) -> None:
    first = stack.beat()
    stack.wait_for_holder(first)
    ids = dispatch(stack)
    copy = copy_files(stack)
    second = stack.beat("copy", wheel_store=copy)
    second.wait_for("holds nothing, and nothing was changed")
    stack.redis.flushall()
    wait_until(lambda: Counter(stack.dispatched()) == ids, "the first one dispatches again")
    first.wait_for("the broker was emptied")
    first.wait_for("at epoch", times=2)
    with closing(open_store(copy, shards=None, create=False)) as store:
        assert store.lanes(0)[0].offset > (0, 0)
    assert "the broker was emptied" not in second.said()
    assert "at epoch" not in second.said()


@pytest.mark.slow
def test_the_tasks_of_a_backup_are_dispatched_and_those_that_came_later_are_not_there(stack: Stack) -> None:
    beat = stack.beat()
    stack.wait_for_holder(beat)
    before = stack.send(3_600, count=3)
    wait_until(lambda: stack.pending() == [3], "the tasks are pending")
    copy = stack.folder / "copy.sqlite3"
    with closing(sqlite3.connect(stack.file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    assert stack.app.wheel.run_now(before[0]) == "done"
    later = stack.send(3_600, count=2)
    wait_until(lambda: stack.pending() == [4], "the later tasks are pending")
    assert stack.app.wheel.run_now(later[0]) == "done"
    wait_until(lambda: len(stack.dispatched()) == 2, "both are dispatched")
    for _ in range(3):  # the broker's epoch passes that of the backup
        beat.terminate()
        beat = stack.beat()
        stack.wait_for_holder(beat)
    beat.kill()
    stack.app.wheel.close()
    for old in stack.folder.glob("wheel.sqlite3*"):
        old.unlink()
    copy.rename(stack.file)

    beat = stack.beat()
    stack.wait_for_holder(beat)
    beat.wait_for("the store was restored from an older copy")
    beat.wait_for("at epoch")
    wheel = stack.app.wheel
    assert [wheel.get(one) for one in later] == [None, None]
    assert stack.pending() == [3], "the task that was dispatched since is pending, too, and due when it was"
    assert wheel.cancel(before[0]) == "done"
    assert wheel.run_now(before[1]) == "done"
    wait_until(lambda: before[1] in stack.dispatched(), "a task of the backup is dispatched")
    assert Counter(stack.dispatched()) == Counter([before[0], later[0], before[1]])
    wait_until(lambda: stack.pending() == [1], "the dispatch is settled, and one task of the backup is pending")
