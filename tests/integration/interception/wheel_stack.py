"""One Redis, one worker, one beat: started once, fed with all cases at once, and judged afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import redis

from tests.servers import PATIENCE_S, RedisServer, wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

Note = dict[str, Any]


class Stack:
    """Processes of the project in ``wheel_project``."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.server = server
        self.client: redis.Redis = server.client()
        self.folder = folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
            "WHEEL_PROJECT_BROKER": server.url,
            "WHEEL_PROJECT_STORE": f"{folder}/wheel.sqlite3",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self.run("worker", "worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "INFO", "-E")
        self.run("beat", "beat", "-S", "wheel", "--loglevel", "INFO", "--pidfile", "")

    def run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """``celery -A wheel_project <arguments>``, its output in a file."""
        command = [sys.executable, "-m", "celery", "-A", "wheel_project", *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=self.environment, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )
        self._processes[name] = process
        return process

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def notes(self) -> dict[str, list[Note]]:
        """What tasks noted so far, by tag, in the order in which they ran."""
        found = defaultdict(list)
        for line in self.client.lrange("notes", 0, -1):
            note = json.loads(line)
            found[note["tag"]].append(note)
        return found

    def raw(self, queue: str) -> list[bytes]:
        """What lies in a queue, of whatever priority."""
        names = [queue, *(f"{queue}\x06\x16{step}" for step in (3, 6, 9))]
        return [raw for name in names for raw in self.client.lrange(name, 0, -1)]

    def wait_for(self, counts: dict[str, int], seconds: float) -> None:
        """Until each tag was noted that often. A failure shows what is missing and what the processes said."""

        def missing() -> dict[str, int]:
            notes = self.notes()
            return {tag: count - len(notes[tag]) for tag, count in counts.items() if len(notes[tag]) < count}

        try:
            wait_until(lambda: not missing(), "the tasks", seconds)
        except AssertionError as error:
            logs = "\n".join(f"--- {p.name}\n{p.read_text()[-4000:]}" for p in sorted(self.folder.glob("*.log")))
            raise AssertionError(f"not run after {seconds:g} s: {missing()}\n{logs}") from error
