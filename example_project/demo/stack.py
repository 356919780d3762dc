"""The processes of a project with the wheel, as an operator would start them.

::

    redis ─── worker  (runs the tasks)
          └── beat    (CELERY_BEAT_SCHEDULER = "wheel": holds the pending tasks)
    web               (the board, and the admin)
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from demo import broker
from demo.errors import DemoError
from demo.processes import Child, Processes

PROJECT = Path(__file__).resolve().parent.parent

#: The account of the demo's admin, which is served to this machine only.
LOGIN, PASSWORD = "demo", "demo"

Until = Callable[[Callable[[], bool], str], None]  #: waits until true; the text names the state


class Stack:
    """Starts the parts in one run folder. ``until`` waits for a state, and may raise when a part has crashed."""

    def __init__(self, folder: Path, broker_url: str | None, until: Until) -> None:
        self.folder = folder
        self.own_broker = broker_url is None
        self._port = broker.free_port() if self.own_broker else 0
        self.broker_url = broker_url or f"redis://127.0.0.1:{self._port}/0"
        self.metrics = f"127.0.0.1:{broker.free_port()}"
        self._until = until
        env = {**os.environ, "RUN_DIR": str(folder), "BROKER_URL": self.broker_url, "PYTHONUNBUFFERED": "1"}
        env["WHEEL_METRICS"] = self.metrics
        env["DJANGO_SUPERUSER_PASSWORD"] = PASSWORD
        self.processes = Processes(folder, PROJECT, env)

    def start_broker(self) -> None:
        """Start the private Redis, or check that the given broker answers."""
        if self.own_broker:
            argv = broker.redis_argv(broker.redis_server(), self._port, self.folder / "redis")
            self.processes.start("redis", argv)
            self._until(lambda: broker.answers(self._port), "redis")
        broker.check(self.broker_url)
        (self.folder / "broker-url").write_text(self.broker_url)

    def migrate(self) -> None:
        self._finish("migrate", "--verbosity=0")
        self._finish("createsuperuser", "--noinput", f"--username={LOGIN}", "--email=demo@localhost")

    def _finish(self, command: str, *arguments: str) -> None:
        """Run a management command to its end."""
        child = self.manage(command, command, *arguments)
        self._until(lambda: child.popen.poll() is not None, f"manage.py {command}")
        self.processes.stop(command)
        if child.popen.returncode:
            raise DemoError(f"manage.py {command} failed:\n{child.tail()}")

    def start_worker(self) -> Child:
        return self._celery("worker", "worker", "--concurrency=2", "--hostname=flights@%h", "--loglevel=INFO")

    def start_beat(self) -> Child:
        return self._celery("beat", "beat", "--loglevel=INFO", "--pidfile=")

    def start_web(self, port: int) -> Child:
        return self.manage("web", "runserver", "--noreload", "--insecure", f"127.0.0.1:{port}")

    def stop(self) -> None:
        """Stop everything; the broker last, because the other processes sign off at it."""
        self.processes.stop(*(name for name in self.processes.names if name != "redis"))
        self.processes.stop(*self.processes.names)

    def wait_for_worker(self, worker: Child) -> None:
        self._until(lambda: " ready." in worker.log.read_text(), "the worker")

    def wait_for_web(self, port: int) -> None:
        self._until(lambda: broker.answers(port), "the web page")

    def manage(self, name: str, *arguments: str, to_log: bool = True) -> Child:
        return self.processes.start(name, [sys.executable, "manage.py", *arguments], to_log=to_log)

    def _celery(self, name: str, *arguments: str) -> Child:
        return self.processes.start(name, [sys.executable, "-m", "celery", "-A", "config", *arguments])
