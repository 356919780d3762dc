"""What the tests of the demo ask of a run: which processes it has, and how far it is."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psutil

PROJECT = Path(__file__).parents[3] / "example_project"


def processes_of(run_dir: Path) -> list[psutil.Process]:
    """Whatever lives anywhere on this machine and was started for this run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RUN_DIR") == str(run_dir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def executed(run_dir: Path) -> int:
    """How many executions the worker has written down."""
    with closing(sqlite3.connect(run_dir / "flights.sqlite3", timeout=20)) as database:
        return int(database.execute("select count(*) from flights_execution").fetchone()[0])
