"""Power cuts under load on SQLite: schedulers, schedules, tasks and cancels; see ``power`` for the model of a disk.

::

    python -m tests.faults cuts --cuts 200 [--seed 7] [--durability memory] [--store postgresql]

    scheduler a, b ─┐ their writes are logged      a cut kills the three, and puts the disk of the cut in place
    asker          ─┘
    Redis, and the consumer of its queue, in this process, live on

Judged: nothing that the broker had accepted is lost, early or sent twice; no cancelled task arrives after the answer;
each instant of the schedules is sent once; SQLite finds each of the files whole.
"""

import json
import random
import sqlite3
import time
from base64 import b64decode
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.faults.judge import CLOCK_MS
from tests.faults.load import SCHEDULERS
from tests.faults.power import Disk, WriteLog, contents_of, put
from tests.faults.recurring import StackWithSchedules, now_ms
from tests.kit import warm
from tests.kit.patience import wait_until
from tests.kit.processes import Process
from tests.kit.servers.redis import RedisServer

#: Seconds of work before a cut, and the share of cuts that come at any moment of the start.
PAUSES_S, AT_THE_START = (0.1, 2.0), 0.2


@dataclass(slots=True)
class CutVerdict:
    cuts: int = 0
    with_unsynced: int = 0  #: cuts at which something was not synced
    sent: int = 0
    cancelled: int = 0
    lost: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    ran_after_done: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    instants: str = ""
    instants_are_clean: bool = True

    @property
    def is_clean(self) -> bool:
        found = (self.lost, self.early, self.twice, self.ran_after_done, self.damaged)
        return self.instants_are_clean and not any(found)

    def __str__(self) -> str:
        return (
            f"{self.cuts} cuts, {self.with_unsynced} of them with writes that were not synced; {self.sent} tasks sent, "
            f"{self.cancelled} cancelled: {len(self.lost)} lost, {len(self.early)} early, {len(self.twice)} twice, "
            f"{len(self.ran_after_done)} after the answer of their cancel, {len(self.damaged)} damaged files; "
            f"{self.instants}"
        )


class StackOfCuts(StackWithSchedules):
    """Schedulers and a producer on a store whose writes are logged: here SQLite, with them on its host.

    Args:
        place: folder of the store's files.
        durability: the setting ``wheel_durability`` of the schedulers.
    """

    #: Processes that a cut ends.
    on_the_host = (*SCHEDULERS, "asker")

    def __init__(
        self,
        folder: Path,
        server: RedisServer,
        rng: random.Random,
        durability: str = "disk",
        *,
        place: Path | None = None,
        url: str = "",
    ) -> None:
        self.place = place or folder / "store"
        self.place.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, server, url or f"sqlite:///{self.place}/wheel.sqlite3", rng)
        self.change(wheel_durability=durability)
        self.log = WriteLog(self.place, self.place.parent / "log")
        self.ledger = folder / "ledger.jsonl"
        self.messages: list[tuple[str, int, int]] = []  #: (task id, arrived_ms, eta_ms), but those of schedules
        self.arrived = set[str]()
        self.is_logged = False
        self.verdict = CutVerdict()

    def start(self, name: str, *command: str, **settings: Any) -> Process:
        if not self.is_logged or name not in self.on_the_host:
            return super().start(name, *command, **settings)
        log = self.folder / f"{name}.log"
        environment = {**self.environment(**settings), **self.log.environment}
        process = Process(command, log, folder=self.folder, environment=environment)
        self._processes.append((name, process))
        return process

    def __enter__(self) -> Self:
        super().__enter__()
        # From here on, only processes whose writes are logged have the store open.
        for name in SCHEDULERS:
            self[name].kill()
        self.app.wheel.close()
        self.base = contents_of(self.place)
        self.is_logged = True
        self._start()
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        warm.close(self.log.environment["LD_PRELOAD"])

    def _start(self) -> None:
        for name in SCHEDULERS:
            self.beat(name)
        self.python("asker", "-m", "tests.faults.asker", str(self.ledger), str(self.rng.random())[2:12])

    def on_message(self, message: dict[str, Any]) -> None:
        if "wheel_occurrence" in message["headers"]:
            super().on_message(message)
            return
        eta_ms = json.loads(b64decode(message["body"]))[0][1]
        self.messages.append((message["headers"]["id"], now_ms(), eta_ms))
        self.arrived.add(message["headers"]["id"])

    def wait_for_messages(self) -> None:
        begun = len(self.messages)
        wait_until(lambda: len(self.messages) > begun, "a task arrives", 60)

    def kill(self) -> None:
        """End the processes that a cut ends."""
        for name in self.on_the_host:
            self[name].kill()

    def start_again(self) -> str:
        """Start them after a cut; returns what is damaged, or "ok"."""
        said = damage(self.place / "wheel.sqlite3", self.folder / "copy")
        self._start()
        return said

    def cut(self) -> None:
        if self.rng.random() >= AT_THE_START:
            self.wait_for_messages()
        time.sleep(self.rng.uniform(*PAUSES_S))
        self.kill()
        disk = Disk(self.base)
        for event in self.log.events():
            disk.see(event)
        self.verdict.cuts += 1
        self.verdict.with_unsynced += bool(disk.unsynced)
        self.base = disk.cut(self.rng)
        put(self.place, self.base)
        self.log.clear()
        if (said := self.start_again()) != "ok":
            self.verdict.damaged.append(f"cut {self.verdict.cuts}: {said}")

    def judge(self, seconds: float = 60) -> CutVerdict:
        """End the load, wait for what is due, and judge."""
        self["asker"].kill()
        found = self.verdict
        sent, asked = dict[str, int](), set[str]()
        said: dict[str, set[str]] = {"done": set(), "too_late": set()}
        for line in map(json.loads, self.ledger.read_text().splitlines()):
            if "sent" in line:
                sent[line["sent"]] = line["eta_ms"]
            elif "asked" in line:
                asked.add(line["asked"])
            elif line["said"] in said:
                said[line["said"]].add(line["answered"])
        done = said["done"]
        # A cancel that came too late changes nothing; one without a certain answer may have cancelled its task.
        wanted = (sent.keys() - asked) | said["too_late"]
        with suppress(AssertionError):  # the missing ones are counted below
            wait_until(lambda: wanted <= self.arrived, "all tasks arrive", seconds)
        instants = self.settle()
        counts = Counter(one for one, *_ in self.messages)
        found.sent, found.cancelled = len(sent), len(done)
        found.lost = sorted(wanted - counts.keys())
        found.twice = sorted(one for one, count in counts.items() if count > 1)
        found.early = sorted(one for one, at_ms, eta_ms in self.messages if at_ms < eta_ms - CLOCK_MS)
        found.ran_after_done = sorted(done & counts.keys())
        found.instants, found.instants_are_clean = str(instants), instants.is_clean
        return found


def damage(path: Path, copy: Path) -> str:
    """Return what SQLite says of a copy of a file, so that the file itself is recovered by its schedulers."""
    copy.mkdir(exist_ok=True)
    for old in copy.iterdir():
        old.unlink()
    for one in path.parent.iterdir():
        (copy / one.name).write_bytes(one.read_bytes())
    try:
        with closing(sqlite3.connect(copy / path.name)) as database:
            return str(database.execute("PRAGMA integrity_check").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return f"{type(error).__name__}: {error}"
