"""Several shards, schedulers and processes: even shares, another number of shards, bulk loads, dispatch meanwhile."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from celery_wheel.bulk_load import ScheduleResult
from celery_wheel.errors import StoreUnusable
from celery_wheel.operations.stores import reshard_of
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.servers.postgres import PostgresServer
from tests.kit.stack import Stack
from tests.kit.traffic import Traffic

SHARDS = 4

#: tests/contract/stores/test_takeover.py has the promise of three seconds; here a machine may stand still for seconds.
TAKEOVER_S = 10


@pytest.fixture
def sharded(stack: Stack) -> Stack:
    stack.change(wheel_shards=SHARDS)
    return stack


def counts(stack: Stack) -> list[int]:
    return sorted(Counter(stack.holders().values()).values())


def epochs(stack: Stack, shards: Collection[int]) -> dict[int, int]:
    return {one.shard: one.epoch for one in stack.app.wheel.status() if one.shard in shards}


@pytest.fixture
def traffic(stack: Stack) -> Iterator[Traffic]:
    with Traffic(stack) as found:
        yield found


@pytest.mark.slow
def test_shares_are_even_over_starts_and_ends_and_shards_that_stay_see_no_gap(sharded: Stack, traffic: Traffic) -> None:
    first = sharded.beat()
    wait_until(lambda: counts(sharded) == [4], "one scheduler holds all")
    wait_until(lambda: len(traffic.arrived) > 40, "tasks of all shards are dispatched")
    before = epochs(sharded, range(SHARDS))
    second = sharded.beat()
    wait_until(lambda: counts(sharded) == [2, 2], "the newcomer has half of them")
    stayed = {shard for shard, pid in sharded.holders().items() if pid == first.pid}
    assert second.terminate() == 0
    wait_until(lambda: counts(sharded) == [4], "the first has all again")
    traffic.wait_for_all()
    assert len(stayed) == 2
    assert epochs(sharded, stayed) == {shard: before[shard] for shard in stayed}, "a shard that stays has one holder"
    victim = sharded.beat("victim")
    wait_until(lambda: counts(sharded) == [2, 2], "two schedulers have half each")
    victim.kill()
    wait_until(lambda: counts(sharded) == [4], "the first has the shards of the one that was killed", TAKEOVER_S)
    traffic.wait_for_all()


@pytest.fixture
def paired(stack: Stack, postgres: PostgresServer) -> Stack:
    stack.change(wheel_store=postgres.new_database(), wheel_shards=2, wheel_processes=2)
    return stack


def wait_for_share(stack: Stack, beat: Process, *, other_than: int = 0) -> int:
    """Wait until beat holds shard 0 and a child the other; return the child's process id."""
    found: dict[int, int] = {}

    def is_shared() -> bool:
        found.clear()
        found.update(stack.holders())
        return found.get(0) == beat.pid and found.get(1, beat.pid) not in (beat.pid, other_than)

    wait_until(lambda: is_shared() or not beat.is_alive(), "beat and its child hold a shard each")
    return found[1]


@pytest.mark.slow
def test_a_task_is_dispatched_once_whichever_process_is_killed(paired: Stack, traffic: Traffic) -> None:
    beat = paired.beat()
    child = wait_for_share(paired, beat)
    traffic.wait_for_all()

    psutil.Process(child).kill()
    beat.wait_for("ended with exit code -9")
    child = wait_for_share(paired, beat, other_than=child)
    traffic.wait_for_all()
    status = paired.app.wheel.status
    wait_until(lambda: (status()[0].snapshot or {}).get("process_ends") == 1, "the status of shard 0 shows the end")

    family = beat.family()
    psutil.Process(beat.pid).kill()
    beat.end()
    gone, alive = psutil.wait_procs(family[1:], patience())
    assert len(gone) >= 1
    assert alive == [], "a child outlived beat"

    again = paired.beat()
    wait_for_share(paired, again)
    traffic.wait_for_all()
    family = again.family()
    assert again.terminate() == 0
    assert psutil.wait_procs(family, patience())[1] == []
    assert Counter(paired.holders().values()) == {}, "a process did not give up its shard"


@pytest.mark.slow
def test_beat_keeps_the_periodic_entries_and_starts_no_idle_processes(paired: Stack) -> None:
    paired.change(wheel_processes=5)
    beat = paired.beat()
    beat.wait_for("a process without a shard has no work, so 2 are started")
    child = wait_for_share(paired, beat)
    assert [one.pid for one in beat.family()[1:] if "spawn_main" in " ".join(one.cmdline())] == [child]


@pytest.mark.slow
def test_a_script_with_an_app_of_its_own_runs_its_beat_in_two_processes(paired: Stack) -> None:
    script = paired.folder / "shop.py"
    script.write_text(
        "from celery_wheel import Celery\n"
        "app = Celery('shop', broker='redis://nowhere')\n"
        "@app.task\n"
        "def sell(): ...\n"
        "@app.on_after_finalize.connect\n"
        "def show(sender, **_): print('tasks', [name for name in sender.tasks if 'sell' in name], flush=True)\n"
        "if __name__ == '__main__':\n"
        f"    app.conf.update({paired.settings!r})\n"
        "    app.Beat(loglevel='INFO', scheduler='wheel').run()\n"
    )
    beat = paired.start("script", sys.executable, str(script))
    wait_for_share(paired, beat)
    assert beat.said().count("tasks ['shop.sell']") == 2
    [task] = paired.send(0.1)
    wait_until(lambda: paired.dispatched() == [task], "the settings of the script's main part hold in the child")


@pytest.mark.slow
def test_beat_does_not_start_where_children_cannot_import_the_app(paired: Stack) -> None:
    program = (
        "import json, os\n"
        "from tests.kit.project import make_app\n"
        "def main():\n"
        "    given = json.loads(os.environ['TEST_PROJECT'])\n"
        "    make_app(given['settings'], given['folder']).Beat(scheduler='wheel').run()\n"
        "main()\n"
    )
    code, said = paired.start("local", sys.executable, "-c", program).end()
    assert code == 1
    assert "no module has it as a global variable" in said


def send(stack: Stack, shards: int, count: int, due_s: float, etas: dict[str, datetime] | None = None) -> list[str]:
    stack.app.conf.update(wheel_shards=shards)
    ids = []
    for n in range(count):
        eta = datetime.now(UTC) + timedelta(seconds=due_s + n / 100)
        ids.append(stack.app.send_task("note", (n,), eta=eta, wheel={"key": f"key-{n % 5}"}).id)
        if etas is not None:
            etas[ids[-1]] = eta
    return ids


def hold_all(stack: Stack, shards: int) -> Process:
    beat = stack.beat(wheel_shards=shards)
    wait_until(lambda: counts(stack) == [shards], "one scheduler holds all")
    return beat


def stop(stack: Stack, beat: Process) -> None:
    queues = [f"wheel.{shard}" for shard in range(8)]
    wait_until(lambda: not any(stack.redis.llen(queue) for queue in queues), "all is accepted")
    code, output = beat.terminate(), beat.said()
    assert code == 0, output


def reshard(stack: Stack, before: int, after: int) -> tuple[int, str]:
    return stack.celery("wheel", "reshard", "--yes", str(after), wheel_shards=before).end()


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 3), (3, 1)])
def test_pending_tasks_move_and_keep_the_order_of_their_key(stack: Stack, before: int, after: int) -> None:
    etas: dict[str, datetime] = {}
    beat = hold_all(stack, before)
    stack.app.wheel.pause(everything=True, timeout=patience())  # none is dispatched before, however long it takes
    ids = send(stack, before, 60, 2, etas)
    stop(stack, beat)
    code, output = reshard(stack, before, after)
    assert code == 0, output
    assert f", {after} now;" in output
    found = stack.pending(wheel_shards=after)
    assert sum(found) == 60
    assert len([count for count in found if count]) > 1 or after == 1
    more = send(stack, after, 20, 2, etas)
    beat = stack.beat(wheel_shards=after)
    assert stack.app.wheel.resume(everything=True, timeout=patience()), "the pause is one of the new shards, too"
    wait_until(lambda: len(stack.dispatched()) == 80, "all tasks are dispatched")
    left = stack.dispatched()
    for key in range(5):
        # At the scheduler's start overdue tasks in the store go before overdue tasks in the wheel queue;
        # on a slow machine some of the second batch are overdue. Each batch has its order in any case.
        for batch in (ids[key::5], more[key::5]):
            assert [task for task in left if task in batch] == sorted(batch, key=etas.__getitem__)
    assert sorted(left) == sorted(ids + more)
    beat.terminate()


@pytest.mark.slow
def test_resharding_forth_and_back_loses_nothing_and_sends_nothing_twice(stack: Stack) -> None:
    """A shard number that is used again meets the offsets that the broker kept from its former use."""
    ids = send(stack, 4, 20, due_s=0.5) + send(stack, 4, 20, due_s=3_600)
    beat = stack.beat(wheel_shards=4)
    wait_until(lambda: len(stack.dispatched()) == 20, "the first tasks are dispatched")
    wait_until(lambda: sum(stack.pending()) == 20, "they are settled, and the others are accepted")
    beat.terminate()
    assert reshard(stack, 4, 1)[0] == 0
    assert reshard(stack, 1, 4)[0] == 0
    assert sum(stack.pending(wheel_shards=4)) == 20
    beat = stack.beat(wheel_shards=4)
    assert set(stack.app.wheel.run_now(ids[20:], timeout=patience()).values()) == {"done"}
    wait_until(lambda: len(stack.dispatched()) >= 40, "all tasks are dispatched")
    assert sorted(stack.dispatched()) == sorted(ids)
    assert "lost writes" not in beat.said()


@pytest.mark.slow
def test_resharding_is_refused_while_a_scheduler_runs_or_after_one_was_killed(stack: Stack) -> None:
    send(stack, 2, 10, due_s=3_600)
    beat = hold_all(stack, 2)
    wait_until(lambda: sum(stack.pending()) == 10, "all is accepted")
    code, output = reshard(stack, 2, 4)
    assert code == 1
    assert "stop all schedulers" in output
    beat.kill()
    stack.app.conf.update(wheel_shards=2)

    def refusal() -> str:
        with pytest.raises(StoreUnusable) as caught:
            reshard_of(stack.app, 4)
        return str(caught.value)

    wait_until(lambda: "was not given up by its last holder" in refusal(), "its silence is noticed")
    assert sum(stack.pending(wheel_shards=2)) == 10


def test_messages_of_a_shard_that_would_be_removed_are_not_lost(stack: Stack) -> None:
    stop(stack, hold_all(stack, 4))
    send(stack, 4, 40, due_s=60)
    code, output = reshard(stack, 4, 2)
    assert code == 1
    assert "has messages" in output
    assert sum(stack.redis.llen(f"wheel.{shard}") for shard in range(4)) == 40


MANUAL = Path(__file__).parents[3] / "docs" / "scheduling-many.md"


@pytest.mark.slow
def test_loaded_tasks_run_once_in_order_although_the_scheduler_is_killed(stack: Stack) -> None:
    first = stack.beat()
    stack.wait_for_holder(first)
    stack.worker()
    start = datetime.now(UTC) - timedelta(seconds=1)  # the first tasks are due already

    def progress(done: ScheduleResult) -> None:
        if done.rows == 400:
            wait_until(stack.runs, "the first tasks are dispatched")
            first.kill()

    rows = (("note", (n,), {}, start + timedelta(milliseconds=5 * n)) for n in range(1_000))
    done = stack.app.wheel.schedule_many(rows, group=200, progress=progress)
    assert (done.count, done.rejected) == (1_000, [])
    second = stack.beat()
    wait_until(lambda: len(stack.runs()) >= 1_000, "all have run")
    stack.wait_for_holder(second)
    assert [note["tag"] for note in stack.runs()] == list(range(1_000))
    wait_until(lambda: stack.pending() == [0], "the last tasks are settled, which happens after the dispatch")


@pytest.fixture
def example() -> str:
    [found] = re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


@pytest.mark.slow
def test_the_example_of_the_manual_runs(stack: Stack, example: str) -> None:
    stack.wait_for_holder(stack.beat())
    lines = [f"{n},user{n}@example.org,2020-01-01T00:00:{n:02d}Z" for n in range(3)]
    (stack.folder / "trials.csv").write_text("\n".join(["user,address,ends_at", *lines, "3,nobody,\n"]))
    example = example.replace("redis://localhost:6379/0", stack.server.url)
    example = example.replace("sqlite:////var/lib/wheel/wheel.sqlite3", stack.store)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=stack.folder,
        env={**os.environ, "PYTHONPATH": str(MANUAL.parents[1])},
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    assert done.returncode == 0, done.stderr
    wrong = "row 4: a row must have eta or countdown; send a task without a delay by apply_async"
    assert done.stdout.splitlines() == [wrong, "4 rows", "3 tasks wait, 1 rows were wrong"]
    wait_until(lambda: stack.redis.llen("mail") == 3, "the three are in their queue")
