"""A Redis whose primary dies under load, while its replica lags, and whose Sentinel promotes the replica.

::

    1 the replica follows a port at which nothing listens: it lacks all writes from now on
    2 the primary is killed; the Sentinel promotes the replica
    3 the former primary starts again, and the Sentinel makes it a replica

Redis lost writes that it had confirmed. A task that the store had accepted by then must come, if need be a second time:
the messages of the lost writes are dispatched again. A task whose message was in the wheel queue alone may be lost.
"""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import redis

from tests.kit.patience import wait_until
from tests.kit.processes import Process
from tests.kit.servers import free_port
from tests.kit.servers.redis import RedisServer, redis_binaries
from tests.replicas.stand import SCHEDULERS, Account, Stand

NAME = "shop"

#: Tasks that are sent while the replica lags: of a second and a half. Sentinel corrects the replica after eight.
LAG = 60

AGAIN = re.compile(r"(\d+) tasks are published again")

#: Milliseconds after which Sentinel takes a silent primary for dead.
DOWN_MS = 1_000


class Watched:
    """Two servers and a Sentinel."""

    def __init__(self, folder: Path) -> None:
        self._opened = ExitStack()
        options = {"appendonly": "no", "repl_diskless_sync_delay": "0"}
        self.servers = [self._opened.enter_context(RedisServer(folder / name, **options)) for name in ("one", "two")]
        self.servers[1].client().replicaof("127.0.0.1", self.servers[0].port)
        self._port = free_port()
        configuration = folder / "sentinel.conf"
        configuration.write_text(
            f"port {self._port}\ndir {folder}\nbind 127.0.0.1\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self.servers[0].port} 1\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\nsentinel failover-timeout {NAME} 3000\n"
        )
        binary = next(iter(redis_binaries().values()))
        self._opened.enter_context(Process([binary, configuration, "--sentinel"], folder / "sentinel.log"))
        self.await_replica()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def url(self) -> str:
        return f"sentinel://127.0.0.1:{self._port}/0"

    def _ask(self, command: str) -> Any:
        with redis.Redis(port=self._port, socket_timeout=2, decode_responses=True) as client:
            try:
                return client.execute_command(f"SENTINEL {command}", NAME)
            except redis.RedisError:  # it closes the connections of clients at a promotion
                return None

    def primary_port(self) -> int:
        found = self._ask("GET-MASTER-ADDR-BY-NAME")
        return int(found[1]) if found else self.servers[0].port

    def primary_url(self) -> str:
        return f"redis://127.0.0.1:{self.primary_port()}/0"

    def by_role(self) -> tuple[RedisServer, RedisServer]:
        """Return the primary and the replica."""
        port = self.primary_port()
        one, two = self.servers
        return (one, two) if one.port == port else (two, one)

    def await_replica(self) -> None:
        def follows() -> bool:
            replicas = self._ask("REPLICAS")
            return bool(replicas) and all(
                (one["flags"], one["master-link-status"]) == ("slave", "ok") for one in map(_fields, replicas)
            )

        wait_until(follows, "the replica follows, and Sentinel knows it", 60)

    def fail_over(self) -> None:
        primary, replica = self.by_role()
        primary.kill()
        wait_until(lambda: self.primary_port() == replica.port, "Sentinel has promoted the replica", 60)
        primary.start()
        self.await_replica()


def _fields(one: Any) -> dict[str, str]:
    return one if isinstance(one, dict) else dict(zip(one[::2], one[1::2], strict=True))


def fail_over(folder: Path, seed: int, rounds: int) -> Account:
    """Fail over a number of times under load, and account for each task."""
    store = f"sqlite:///{folder}/wheel.sqlite3"
    options = {"broker_transport_options": {"master_name": NAME, "socket_timeout": 5}}
    with (
        Watched(folder) as watched,
        Stand(folder / "stand", watched.url, store, seed, watched.primary_url, **options) as stand,
    ):
        waits = []
        for _ in range(rounds):
            stand.await_load(LAG)
            _, replica = watched.by_role()
            replica.client().replicaof("127.0.0.1", 1)  # type: ignore[arg-type]
            stand.await_load(LAG)
            watched.fail_over()
            waits.append(stand.await_recovery())
        account = stand.settle("failover of Redis by Sentinel, with a lagging replica")
        again = sum(int(count) for name in SCHEDULERS for count in AGAIN.findall(stand[name].said()))
    account.counts |= {"failovers": rounds, "published again by the schedulers' own count": again}
    account.counts["ms until a new task arrived, at most"] = round(max(waits) * 1_000)
    account.broken.pop("twice_unmarked", None)  # tasks of the lost writes are dispatched again
    if not again:
        account.broken["the replay"] = "no scheduler said that it published anything again"
    if account.said:
        account.broken["said"] = account.said
    return account
