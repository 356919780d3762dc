"""A stack: a broker, a store, and processes of the test project on them, as an operator starts them.

::

    stack = Stack(folder, redis_server, wheel_shards=2)
    beat = stack.beat(); stack.wait_for_holder(beat)     a scheduler
    stack.worker()                                       returns when it is ready
    stack.app.send_task("note", ("a",), countdown=1)     a producer with the same settings
    stack.wait_for("a"); stack.notes()["a"]              how it ran
    stack.dispatched()                                   on Redis, without a worker: the tasks in the queue

States are read in this process, from the store, the broker and the notes; no command is started for it.
"""

import json
import os
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import redis

from celery_wheel.control import Wheel
from celery_wheel.errors import StoreUnusable
from celery_wheel.scheduler.service import WheelService
from celery_wheel.store import open_store
from tests.kit.patience import PATIENCE_S, patience, wait_until
from tests.kit.processes import ROOT, Process
from tests.kit.project import QueueParts, make_app, read_lines
from tests.kit.warm import CELERY

Note = dict[str, Any]


class Broker(Protocol):
    """A server of any kind, or a virtual host of a server."""

    @property
    def url(self) -> str: ...

    def restart(self) -> None: ...


class Stack:
    """A stack; ``settings`` apply to its app and to all its processes, unless a process is given other settings.

    Args:
        server: the broker, or its URL.
        store: URL of the store; by default a SQLite file of the folder.
        queues: see ``tests.kit.project``.
        plain: its processes use Celery's own app, without the wheel.
    """

    def __init__(
        self,
        folder: Path,
        server: Broker | str,
        store: str = "",
        *,
        queues: Sequence[QueueParts] = (),
        plain: bool = False,
        **settings: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.server: Any = server
        self.broker = server if isinstance(server, str) else server.url
        self.queues = queues
        self.plain = plain
        self.settings = {
            "broker_url": self.broker,
            "wheel_store": store or f"sqlite:///{folder}/wheel.sqlite3",
            "result_expires": None,  # no entry of Celery's own, which would be a pending task at four in the morning
            **settings,
        }
        self._apps: list[Any] = []
        self._processes: list[tuple[str, Process]] = []
        self._notes: list[Note] = []
        self._read_to = 0
        self.app = self.make_app(**self.settings)

    @property
    def store(self) -> str:
        return str(self.settings["wheel_store"])

    @property
    def file(self) -> Path:
        return Path(self.store.removeprefix("sqlite:///"))

    def make_app(self, kind: Any = None, **settings: Any) -> Any:
        """Return another app of the project on the same broker, with these settings alone."""
        more = {} if kind is None else {"kind": kind}
        app = make_app({"broker_url": self.broker, **settings}, self.folder, self.queues, **more)
        self._apps.append(app)
        return app

    def change(self, **settings: Any) -> None:
        """Change settings of the app, and of processes that are started later."""
        self.settings |= settings
        self.app.conf.update(settings)

    # -- processes -----------------------------------------------------------------------------------

    def environment(self, **settings: Any) -> dict[str, str]:
        project = {
            "folder": str(self.folder),
            "queues": self.queues,
            "plain": self.plain,
            "settings": {**self.settings, **settings},
        }
        return {
            "PYTHONPATH": str(ROOT),
            "TEST_PROJECT": json.dumps(project),
            "C_FORCE_ROOT": "1",  # otherwise a worker that may load pickles does not start as root
        }

    def start(self, name: str, *command: str, **settings: Any) -> Process:
        log = self.folder / f"{name}-{len(self._processes)}.log"
        process = Process(command, log, folder=self.folder, environment=self.environment(**settings))
        self._processes.append((name, process))
        return process

    def python(self, name: str, *arguments: str, **settings: Any) -> Process:
        return self.start(name, CELERY, *arguments, **settings)

    def celery(self, *arguments: str, name: str = "", cold: bool = False, **settings: Any) -> Process:
        """Start ``celery -A tests.kit.project <arguments>``; the process is named by its first argument by default.

        Args:
            cold: the process imports everything itself, instead of a fork of ``tests.kit.warm``.
        """
        arguments = ("-A", "tests.kit.project", *arguments)
        python = sys.executable if cold or "LD_PRELOAD" in os.environ else CELERY
        return self.start(name or arguments[2], python, "-m", "celery", *arguments, **settings)

    def beat(self, name: str = "beat", **settings: Any) -> Process:
        return self.celery("beat", "--pidfile", "", "-l", "INFO", name=name, **settings)

    @contextmanager
    def service(self) -> Iterator[None]:
        """Run a scheduler's service in this process, where a test needs its work and not its process."""
        service = WheelService(self.make_app(**{**self.settings, "wheel_control": False}))
        service.start()
        try:
            yield
        finally:
            service.stop()

    def node(self, **settings: Any) -> Process:
        """Start a scheduler; returns when it holds a shard and its control node listens."""
        process = self.beat(**settings)
        process.wait_for("listens")
        process.wait_for("at epoch")
        return process

    def worker(self, *options: str, **settings: Any) -> Process:
        """Start a worker that runs a task at a time, in order; returns when it is ready."""
        options = options or ("-P", "solo")
        process = self.celery("worker", *options, "-l", "INFO", "--without-gossip", "--without-mingle", **settings)
        process.wait_for(" ready.")
        return process

    def declare_queues(self) -> None:
        """Declare the app's queues, where a task may be due before a worker has done so: RabbitMQ would refuse it."""
        with self.app.connection_for_write() as connection:
            for queue in self.app.amqp.queues.values():
                queue.bind(connection).declare()

    def output(self, *arguments: str) -> str:
        code, said = self.celery(*arguments).end()
        assert code == 0, said
        return said

    def __getitem__(self, name: str) -> Process:
        return next(process for one, process in reversed(self._processes) if one == name)

    def suspend(self, process: Process) -> None:
        """Suspend a scheduler of a SQLite store between two of its transactions.

        Suspended within one it would keep the lock of the file, and no other process could write.
        """
        with closing(sqlite3.connect(self.file, isolation_level=None, timeout=patience())) as database:
            database.execute("BEGIN IMMEDIATE")
            process.suspend()
            database.execute("ROLLBACK")

    def kill_processes(self) -> None:
        for _, process in self._processes:
            process.kill()

    def close(self) -> None:
        self.kill_processes()
        for app in self._apps:
            if "result_backend" in self.settings:  # a result that is collected later would call the server
                app.backend.remove_pending_result = lambda result: result
                app.backend.result_consumer.stop()
            if hasattr(app, "wheel"):
                app.wheel.close()
            app.close()
        if "redis" in vars(self):
            self.redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the store -----------------------------------------------------------------------------------

    def holders(self) -> dict[int, int]:
        """Return shard → process id of its holder, for the shards that have a holder."""
        try:
            store = open_store(self.store, shards=None, create=False)
        except StoreUnusable:  # the first scheduler is about to make the store
            return {}
        with closing(store):
            return {shard: int(name.rpartition("/")[2]) for shard, name in store.holders().items() if name}

    def wait_for_holder(self, process: Process, shard: int = 0) -> None:
        wait_until(
            lambda: self.holders().get(shard) == process.pid or not process.is_alive(), f"{process} holds shard {shard}"
        )
        assert process.is_alive(), process.said()

    def pending(self, **settings: Any) -> list[int]:
        """Return the number of tasks of each shard, the first shard first."""
        self.app.conf.update(settings)
        with closing(Wheel(self.app)) as wheel:
            return [shard.pending for shard in wheel.status()]

    # -- what ran ------------------------------------------------------------------------------------

    def runs(self) -> list[Note]:
        """Return all notes, in the order in which tasks ran; the last line of the file may be incomplete."""
        path = self.folder / "notes"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read_to)
                whole, end, _ = file.read().rpartition(b"\n")
            self._read_to += len(whole) + len(end)
            self._notes.extend(json.loads(line) for line in whole.splitlines())
        return self._notes

    def notes(self) -> dict[Any, list[Note]]:
        found = defaultdict[Any, list[Note]](list)
        for note in self.runs():
            found[note["tag"]].append(note)
        return found

    def ran(self) -> list[str]:
        return [note["id"] for note in self.runs()]

    def wait_for(self, *tags: Any, seconds: float = PATIENCE_S, counts: Mapping[Any, int] | None = None) -> None:
        """Wait until each tag has its notes, as many as ``counts`` says."""
        wanted = {**dict.fromkeys(tags, 1), **(counts or {})}

        def missing() -> dict[Any, int]:
            notes = self.notes()
            return {tag: count - len(notes[tag]) for tag, count in wanted.items() if len(notes[tag]) < count}

        try:
            wait_until(lambda: not missing(), "all tasks have run", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; these have not: {missing()}") from error

    def revoked(self) -> list[list[Any]]:
        """Return the signals ``task_revoked``: task, id, terminated, signum, expired."""
        return read_lines(self.folder / "revoked")

    # -- a broker that is a Redis --------------------------------------------------------------------

    @cached_property
    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.broker)

    def in_queue(self, task: str) -> list[str]:
        """Return the ids of such tasks in the queue ``celery``, in the order of their arrival."""
        found = (json.loads(raw)["headers"] for raw in reversed(self.redis.lrange("celery", 0, -1)))
        return [headers["id"] for headers in found if headers["task"] == task]

    def dispatched(self) -> list[str]:
        return self.in_queue("note")

    def ticks(self) -> int:
        return len(self.in_queue("tick"))

    def send(self, countdown: float, count: int = 1) -> list[str]:
        return [self.app.send_task("note", (n,), countdown=countdown).id for n in range(count)]
