"""A producer for the power cuts: sends tasks, cancels some of them, and writes what it knows to be so into a ledger.

It is a process, since a cancel writes to the store: it dies with the schedulers, in the middle of whatever it does.

::

    {"sent": id, "eta_ms": …}                  the broker has the task
    {"asked": id}                              a cancel of it begins
    {"answered": id, "said": …, "at_us": …}    the answer of the cancel: "done", "too_late", or the name of an error

Each second it has SQLite copy the write-ahead log into the file, as a scheduler does when the log is large: cuts then
meet copies too, and the log stays small.
"""

import json
import os
import random
import sqlite3
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

from celery_wheel.errors import WheelError
from tests.kit.project import app

#: The share of tasks that are cancelled, and tasks that are sent each second.
CANCELLED, RATE = 0.3, 100


def main(ledger: Path, seed: int) -> None:
    rng, file = random.Random(seed), os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(line: Mapping[str, Any]) -> None:
        os.write(file, json.dumps(line).encode() + b"\n")

    chosen: list[str] = []
    for number in count():
        for _ in range(RATE // 5):
            countdown, id_ = rng.uniform(0.05, 6), str(uuid.UUID(int=rng.getrandbits(128), version=4))
            eta_ms = time.time_ns() // 1_000_000 + int(countdown * 1_000)
            app.send_task("note", ("load", eta_ms), countdown=countdown, task_id=id_, retry=False)
            write({"sent": id_, "eta_ms": eta_ms})
            if countdown > 2 and rng.random() < CANCELLED:
                chosen.append(id_)
        if len(chosen) >= 5:
            batch, chosen = chosen[:5], chosen[5:]
            for id_ in batch:
                write({"asked": id_})
            try:
                said = {id_: str(result) for id_, result in app.wheel.cancel(batch, timeout=5).items()}
            except WheelError as error:
                said = dict.fromkeys(batch, type(error).__name__)
            for id_, one in said.items():
                write({"answered": id_, "said": one, "at_us": time.time_ns() // 1_000})
        if number % 5 == 4 and app.conf.wheel_store.startswith("sqlite"):
            copy_log(app.conf.wheel_store.removeprefix("sqlite:///"))
        time.sleep(0.2)


def copy_log(file: str) -> None:
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(file, timeout=0.5)) as database:
        database.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
