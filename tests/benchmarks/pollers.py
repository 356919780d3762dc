"""One table of schedulers on the same work: N tasks that are due at one instant, how fast they arrive, and how late.

::

    the wheel, rq                   until a task is in its worker's queue
    django-celery-beat, redbeat     until it is sent
    dramatiq, huey, procrastinate   until a worker begins it

Each has the defaults of its manual and runs by itself, with a Redis and a PostgreSQL of the same run. Only the time
from the instant on counts: neither that of scheduling a task, nor the cost of surviving a crash. The packages are
installed into ``.run/pollers``; a scheduler that pip cannot install there is named, and left out.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks import poller_work
from tests.benchmarks.child import Child
from tests.benchmarks.databases import POSTGRESQL, database, databases
from tests.benchmarks.figure import Figure
from tests.benchmarks.letters import QUEUES, WHEEL_QUEUE, letters_of, task_id_of
from tests.benchmarks.stream import Arrivals
from tests.kit.servers.redis import RedisServer

ENVIRONMENT = Path(__file__).parents[2] / ".run" / "pollers"
#: Kind → its packages.
PACKAGES = {
    "django-celery-beat": ("django-celery-beat==2.9.0", "celery[redis]==5.7.0"),
    "redbeat": ("celery-redbeat==2.4.2", "celery[redis]==5.7.0"),
    "rq": ("rq==3.0.0",),
    "dramatiq": ("dramatiq[redis]==2.2.1",),
    "huey": ("huey==3.5.4", "redis==8.1.0"),
    "procrastinate": ("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
}
MOST, AT_MOST_S = 10_000, 60
#: Tasks a second that the slowest of them schedules beforehand, and the seconds in which its process starts.
SCHEDULED_PER_S, START_S = 200, 8


def run(folder: Path, rows: int) -> Iterator[Figure]:
    count = min(MOST, rows // 200)
    with RedisServer(folder / "redis") as server, databases(folder) as found:
        mine = _wheel(server, folder, count)
        yield from _figures("the wheel", mine, count, None)
        options = {"redis": server.url, "folder": str(folder), "count": count, "at_most_s": AT_MOST_S}
        if POSTGRESQL in found:
            options["postgresql"] = found[POSTGRESQL]().url
        for kind in PACKAGES:
            if (kind != "procrastinate" or POSTGRESQL in found) and _installed(kind):
                yield from _figures(kind, _work({**options, "kind": kind}, count), count, mine)
            server.client().flushall()


def _figures(kind: str, late_ms: list[float], count: int, wheel: list[float] | None) -> Iterator[Figure]:
    whose = "" if wheel is None else "the wheel"
    against = [None] * 3 if wheel is None else [_per_s(wheel), median(wheel), max(wheel)]
    what = f"{kind}: {len(late_ms):,} of {count:,}"
    if not late_ms:
        yield Figure("pollers", f"{what} in {AT_MOST_S} s", 0, "tasks/s", whose, against[0])
        return
    yield Figure("pollers", what, _per_s(late_ms), "tasks/s", whose, against[0])
    yield Figure("pollers", "… lateness, median", median(late_ms), "ms", whose, against[1], less_is_better=True)
    yield Figure("pollers", "… most", max(late_ms), "ms", whose, against[2], less_is_better=True)


def _per_s(late_ms: list[float]) -> float:
    return len(late_ms) / max(late_ms) * 1_000


def _wheel(server: RedisServer, folder: Path, count: int) -> list[float]:
    client = server.client()
    letters = letters_of(server.url, client)
    with database(folder, "SQLite") as store, Child(server.url, store.url):
        now_ms = int(time.time() * 1_000)
        due_ms = now_ms + 2_000 + count // 2
        messages = list(letters.write([due_ms] * count, now_ms))
        with Arrivals(client, QUEUES, dict.fromkeys(map(task_id_of, messages), due_ms)) as arrivals:
            client.lpush(WHEEL_QUEUE, *messages)
            arrivals.wait(count, AT_MOST_S)
    client.flushall()
    return [late for _, late in arrivals.pairs]


def _work(options: dict[str, object], count: int) -> list[float]:
    due = time.time() + START_S + count / SCHEDULED_PER_S
    # -P: the folder of the script has modules with the names of packages.
    command = [str(ENVIRONMENT / "bin/python"), "-P", poller_work.__file__, json.dumps({**options, "due": due})]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, f"{options['kind']} ended with {done.returncode}; its output is above"
    return list(json.loads(done.stdout)["late_ms"])


def _installed(kind: str) -> bool:
    if not (ENVIRONMENT / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    pip = [str(ENVIRONMENT / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, *PACKAGES[kind]], check=False).returncode:
        print(f"pollers: pip cannot install {' '.join(PACKAGES[kind])}; {kind} is not measured", file=sys.stderr)
        return False
    return True
