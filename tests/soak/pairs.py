"""The pairs of store and broker: servers whose data stays in the folder, the faults of each, and its outages.

A server has the same port in each run, since the store knows its broker by its address and RabbitMQ its data by a name
with the port in it. The processes of a run that was killed itself are ended by their ids before the next one starts.
"""

import fcntl
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import redis
from kombu import Connection

from tests.faults.judge import WHOLE_LOG
from tests.kit.servers import Server
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer

#: name → the parts in the order of their outages
PAIRS = {"postgresql-redis": ("store", "broker"), "sqlite-rabbitmq": ("broker", "store")}

#: Messages that a scheduler may hold and not have stored, which RabbitMQ does not count in the depth of their queue.
UNACKNOWLEDGED = 10_000

#: Waits for a part of the longest time of a fault; the seed decides.
Pause = Callable[[float], None]


class FolderInUse(RuntimeError):
    """Another soak runs on the folder."""


class _Served:
    """The broker or the store of a pair, as a server.

    Its ``faults`` are of short duration, by name; its ``gauges`` may grow, and raise where the server does not answer.
    """

    def __init__(self, server: Any) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return str(self.server.url)

    def go(self) -> None:
        """Begin an outage."""
        self.server.kill()

    def come(self) -> None:
        """End the outage."""
        self.server.start()

    def hang(self, pause: Pause) -> None:
        try:
            self.server.pause()
            pause(1)
        finally:
            self.server.resume()


class Redis(_Served):
    #: The log is rewritten as it grows, as in production.
    OPTIONS = {**WHOLE_LOG, "auto_aof_rewrite_percentage": "100"}  # noqa: RUF012 - it is never changed

    def __init__(self, folder: Path) -> None:
        super().__init__(RedisServer(folder, **self.OPTIONS))

    def faults(self, pause: Pause) -> Mapping[str, Callable[[], None]]:
        return {
            "Redis is killed": self.server.restart,
            "Redis hangs": lambda: self.hang(pause),
            "connections to Redis are cut": lambda: self._call("CLIENT", "KILL", "TYPE", "normal"),
            "Redis writes its log anew": lambda: self._call("BGREWRITEAOF"),
            "Redis's scripts are forgotten": lambda: self._call("SCRIPT", "FLUSH"),
        }

    def gauges(self) -> dict[str, float]:
        with redis.Redis.from_url(self.url, socket_timeout=3) as client:
            depths = {name: client.llen(name) for name in ("wheel.0", "wheel.1", "celery")}
        return {**_depths(depths), "broker rss": _rss(self.server)}

    def _call(self, *words: str) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=30) as client:
            client.execute_command(*words)


class Rabbit(_Served):
    def __init__(self, folder: Path) -> None:
        super().__init__(RabbitServer(folder))

    def faults(self, pause: Pause) -> Mapping[str, Callable[[], None]]:
        return {
            "RabbitMQ is killed": self.server.restart,
            "RabbitMQ hangs": lambda: self.hang(pause),
            "connections to RabbitMQ are cut": lambda: self.server.ctl("close_all_connections", "cut by a test"),
            "RabbitMQ has a memory alarm": lambda: self._alarm(pause),
        }

    def gauges(self) -> dict[str, float]:
        depths = {}
        with Connection(self.url, connect_timeout=3, transport_options={"read_timeout": 5}) as connection:
            for name in ("wheel.0", "wheel.1", "celery"):
                depths[name] = connection.default_channel.queue_declare(name, passive=True).message_count
        return {**_depths(depths, UNACKNOWLEDGED), "broker rss": _rss(self.server)}

    def _alarm(self, pause: Pause) -> None:
        self.server.ctl("set_vm_memory_high_watermark", "0.0000001")
        try:
            pause(1)
        finally:
            self.server.ctl("set_vm_memory_high_watermark", "0.6")


class Postgres(_Served):
    def __init__(self, folder: Path) -> None:
        super().__init__(PostgresServer(folder, fsync="on", full_page_writes="on", max_wal_size="512MB"))

    @property
    def url(self) -> str:
        return str(self.server.url())

    def faults(self, pause: Pause) -> Mapping[str, Callable[[], None]]:
        return {
            "PostgreSQL is stopped": self.server.restart,
            "PostgreSQL is killed": self._kill,
            "PostgreSQL hangs": lambda: self.hang(pause),
            "sessions of PostgreSQL are ended": lambda: self.server.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ),
            "PostgreSQL is killed after a reload of synchronous_commit = off": lambda: self._reload(pause),
        }

    def gauges(self) -> dict[str, float]:
        sizes = "SELECT sum(n_dead_tup), sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables"
        with psycopg.connect(self.url, autocommit=True, connect_timeout=3) as connection:
            [(dead, size)] = connection.execute(sizes).fetchall()
            sessions = connection.execute("SELECT count(*) FROM pg_stat_activity").fetchall()[0][0]
        wal = sum(file.stat().st_size for file in (self.server.folder / "data/pg_wal").glob("*") if file.is_file())
        return {"dead rows": float(dead), "store bytes": float(size), "wal bytes": wal, "sessions": sessions}

    def _kill(self) -> None:
        self.server.kill()
        self.server.start()

    def _reload(self, pause: Pause) -> None:
        """Let commits no longer wait for the disk, unless they ask for it themselves, and kill the server then."""
        self.server.sql("ALTER SYSTEM SET synchronous_commit = off", _RELOAD)
        try:
            pause(1)
            self._kill()
        finally:
            self.server.sql("ALTER SYSTEM RESET ALL", _RELOAD)


_RELOAD = "SELECT pg_reload_conf()"


class Sqlite:
    """A file: while it is locked by another process, nothing can be written, which is its outage."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "wheel.sqlite3"
        self._lock: sqlite3.Connection | None = None

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}"

    def faults(self, pause: Pause) -> Mapping[str, Callable[[], None]]:
        def locked() -> None:
            self.go()
            try:
                pause(1)
            finally:
                self.come()

        return {"another process locks the file": locked, "another process empties the log of the file": self._empty}

    def go(self) -> None:
        self._lock = sqlite3.connect(self.file, isolation_level=None, timeout=300, check_same_thread=False)
        self._lock.execute("BEGIN IMMEDIATE")

    def come(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def gauges(self) -> dict[str, float]:
        wal = self.file.with_name(f"{self.file.name}-wal")
        return {"store bytes": self.file.stat().st_size, "wal bytes": wal.stat().st_size if wal.exists() else 0}

    def _empty(self) -> None:
        with closing(sqlite3.connect(self.file, timeout=30)) as connection, suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # a writer may be at work for longer


def _depths(depths: Mapping[str, int], unseen: int = 0) -> dict[str, float]:
    """Return the depths of queues, and of the deepest wheel queue with what a scheduler may have taken from it."""
    wheel = depths["wheel.0"], depths["wheel.1"]
    return {"wheel queues": sum(wheel), "task queue": depths["celery"], "not accepted": max(wheel) + unseen}


def _rss(server: Server) -> float:
    return float(sum(process.memory_info().rss for process in server.running.family()))


@contextmanager
def pair_of(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the broker and the store of a pair, both running on the data of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"{folder} is in use by another soak; wait for its end, or name another folder") from None
        broker: Any = Redis(folder / "redis") if name.endswith("redis") else Rabbit(folder / "rabbitmq")
        store: Any = Postgres(folder / "postgresql") if name.startswith("postgresql") else Sqlite(folder / "sqlite")
        parts = {"broker": broker, "store": store}
        servers = {part: one.server for part, one in parts.items() if isinstance(one, _Served)}
        _end_leftovers(folder)
        places = _read(folder / "ports.json")
        for part, server in servers.items():
            server.port, server.ports = places.get(part, (0, {}))
        try:
            for server in servers.values():
                server.start()
            note_processes(folder, servers)
            yield parts
        finally:
            for server in servers.values():
                server.__exit__(None, None, None)


def note_processes(folder: Path, servers: Mapping[str, Any]) -> None:
    ports = {part: (server.port, getattr(server, "ports", {})) for part, server in servers.items()}
    (folder / "ports.json").write_text(json.dumps(ports))
    families = [server.running.family() for server in servers.values() if server.is_up]
    family = [(one.pid, one.create_time()) for found in families for one in found]
    (folder / "processes.json").write_text(json.dumps(family))


def _end_leftovers(folder: Path) -> None:
    for pid, created in _read(folder / "processes.json"):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.create_time() == created:
                process.kill()
                process.wait(60)


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {}
