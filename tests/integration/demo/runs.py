"""A run of the demo, for its tests: its processes, and its progress."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil

from tests.kit.patience import wait_until

PROJECT = Path(__file__).parents[3] / "example_project"

#: Seconds that a state may take. Tests wait for a state and never for a time, so a quick machine waits no longer than
#: the state takes, and a slow or busy machine may take this long.
PATIENCE_S = 240.0
#: Seconds for a whole test, which waits for several states.
TEST_S = 3 * PATIENCE_S


def wait(reached: Callable[[], object], what: str) -> None:
    wait_until(reached, what, PATIENCE_S)


def processes_of(run_dir: Path) -> list[psutil.Process]:
    """Return the live processes of this machine that were started for this run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RUN_DIR") == str(run_dir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def executed(run_dir: Path) -> int:
    with closing(sqlite3.connect(run_dir / "flights.sqlite3", timeout=PATIENCE_S)) as database:
        return int(database.execute("select count(*) from flights_execution").fetchone()[0])
