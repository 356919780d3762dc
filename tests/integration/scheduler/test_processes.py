"""``wheel_processes = 2``: one beat whose shards are served by two real processes, on Redis and PostgreSQL."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.servers.postgres import PostgresServer
from tests.kit.stack import Stack
from tests.kit.traffic import Traffic

SHARDS = 2


@pytest.fixture
def sharded(stack: Stack, postgres: PostgresServer) -> Stack:
    stack.change(wheel_store=postgres.new_database(), wheel_shards=SHARDS, wheel_processes=2)
    return stack


@pytest.fixture
def traffic(sharded: Stack) -> Iterator[Traffic]:
    with Traffic(sharded) as found:
        yield found


def wait_for_share(stack: Stack, beat: Process, *, other_than: int = 0) -> int:
    """Wait until beat holds shard 0 and a child the other; return the child's process id."""

    found: dict[int, int] = {}

    def is_shared() -> bool:
        found.clear()
        found.update(stack.holders())
        return found.get(0) == beat.pid and found.get(1, beat.pid) not in (beat.pid, other_than)

    wait_until(lambda: is_shared() or not beat.is_alive(), "beat and its child hold a shard each")
    return found[1]


def test_a_task_is_dispatched_once_whichever_process_is_killed(sharded: Stack, traffic: Traffic) -> None:
    beat = sharded.beat()
    child = wait_for_share(sharded, beat)
    traffic.wait_for_all()

    psutil.Process(child).kill()
    beat.wait_for("ended with exit code -9")
    child = wait_for_share(sharded, beat, other_than=child)
    traffic.wait_for_all()
    wait_until(lambda: ends(sharded) == 1, "the status of shard 0 shows the end")

    family = beat.family()
    psutil.Process(beat.pid).kill()
    beat.end()
    gone, alive = psutil.wait_procs(family[1:], patience())
    assert len(gone) >= 1
    assert alive == [], "a child outlived beat"

    again = sharded.beat()
    wait_for_share(sharded, again)
    traffic.wait_for_all()
    family = again.family()
    assert again.terminate() == 0
    assert psutil.wait_procs(family, patience())[1] == []
    assert Counter(sharded.holders().values()) == {}, "a process did not give up its shard"


def ends(stack: Stack) -> int:
    [first, _] = stack.app.wheel.status()
    return int((first.snapshot or {}).get("process_ends", 0))


def test_beat_keeps_the_periodic_entries_and_starts_no_idle_processes(sharded: Stack) -> None:
    sharded.change(wheel_processes=5)
    beat = sharded.beat()
    beat.wait_for("a process without a shard has no work, so 2 are started")
    child = wait_for_share(sharded, beat)
    assert [one.pid for one in beat.family()[1:] if "spawn_main" in " ".join(one.cmdline())] == [child]


def test_a_script_with_an_app_of_its_own_runs_its_beat_in_two_processes(sharded: Stack) -> None:
    script = sharded.folder / "shop.py"
    script.write_text(
        "from celery_wheel import Celery\n"
        "app = Celery('shop', broker='redis://nowhere')\n"
        "@app.task\n"
        "def sell(): ...\n"
        "@app.on_after_finalize.connect\n"
        "def show(sender, **_): print('tasks', [name for name in sender.tasks if 'sell' in name], flush=True)\n"
        "if __name__ == '__main__':\n"
        f"    app.conf.update({sharded.settings!r})\n"
        "    app.Beat(loglevel='INFO', scheduler='wheel').run()\n"
    )
    beat = sharded.start("script", sys.executable, str(script))
    wait_for_share(sharded, beat)
    assert beat.said().count("tasks ['shop.sell']") == 2
    [task] = sharded.send(0.1)
    wait_until(lambda: sharded.dispatched() == [task], "the settings of the script's main part hold in the child")


def test_beat_does_not_start_where_children_cannot_import_the_app(sharded: Stack) -> None:
    program = (
        "import json, os\n"
        "from tests.kit.project import make_app\n"
        "def main():\n"
        "    given = json.loads(os.environ['TEST_PROJECT'])\n"
        "    make_app(given['settings'], given['folder']).Beat(scheduler='wheel').run()\n"
        "main()\n"
    )
    code, said = sharded.start("local", sys.executable, "-c", program).end()
    assert code == 1
    assert "no module has it as a global variable" in said
