"""Real schedulers on a real Redis; what they dispatch is read from the queue, no worker is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from celery_wheel import Celery
from tests.servers import PATIENCE_S, RedisServer, wait_until

HERE = Path(__file__).parent


class Process:
    """One ``celery`` process, its output in a file."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self._popen = subprocess.Popen(
                command, env=environment, cwd=log.parent, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def signal(self, how: signal.Signals) -> None:
        self._popen.send_signal(how)

    def suspend(self) -> None:
        """It is there and does nothing, as on a machine that stands still."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(PATIENCE_S)

    def kill_all(self) -> None:
        """Kill it and what it started: an embedded scheduler outlives its worker."""
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(PATIENCE_S)

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def end(self) -> tuple[int, str]:
        """Wait for it to end by itself; its exit code and what it said."""
        code = self._popen.wait(PATIENCE_S)
        return code, self.said()

    def said(self) -> str:
        return self._log.read_text(errors="replace")


class Bench:
    """A Redis, a store, and as many schedulers as a test asks for."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.folder = folder
        self.server = server
        self.redis = server.client()
        self.store = f"sqlite:///{folder}/wheel.sqlite3"
        self.app = Celery("producer", broker=server.url, set_as_current=False)
        self.app.conf.update(task_ignore_result=True)
        self._processes: list[Process] = []

    def celery(self, *arguments: str, **settings: Any) -> Process:
        """``celery -A scheduler_project <arguments>``."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "SCHEDULER_BROKER": self.server.url,
            "SCHEDULER_FOLDER": str(self.folder),
            "SCHEDULER_SETTINGS": json.dumps({"wheel_store": self.store, **settings}),
        }
        command = [sys.executable, "-m", "celery", "-A", "scheduler_project", *arguments]
        process = Process(command, environment, self.folder / f"{len(self._processes)}-{arguments[0]}.log")
        self._processes.append(process)
        return process

    def beat(self, **settings: Any) -> Process:
        return self.celery("beat", "--pidfile", "", "-l", "INFO", **settings)

    def status(self) -> dict[str, Any]:
        """Shard 0 as ``celery wheel status --json`` shows it; empty while there is no store."""
        _, output = self.celery("wheel", "status", "--json").end()
        line = output.strip().splitlines()[-1] if output.strip() else ""
        return dict(json.loads(line)["shards"][0]) if line.startswith("{") else {}

    def wait_for_holder(self, process: Process) -> None:
        wait_until(lambda: self.holder_pid() == process.pid, "the scheduler holds the shard")

    def holder_pid(self) -> int | None:
        status = self.status()
        return int(status["holder"].rpartition("/")[2]) if status.get("holder") else None

    def dispatched(self) -> list[str]:
        """The ids of the noop tasks in the queue, in the order in which they were put there."""
        messages = (json.loads(raw) for raw in reversed(self.redis.lrange("celery", 0, -1)))
        return [message["headers"]["id"] for message in messages if message["headers"]["task"] == "noop"]

    def ticks(self) -> int:
        return sum(json.loads(raw)["headers"]["task"] == "tick" for raw in self.redis.lrange("celery", 0, -1))

    def send(self, countdown: float, count: int = 1) -> list[str]:
        """Schedule tasks; returns their ids."""
        return [self.app.send_task("noop", (n,), countdown=countdown).id for n in range(count)]

    def close(self) -> None:
        for process in self._processes:
            process.kill_all()
        self.app.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with RedisServer(tmp_path / "redis") as server:
        found = Bench(tmp_path, server)
        yield found
        found.close()
