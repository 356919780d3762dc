"""Two schedulers, a client, PostgreSQL and a broker, each on a host of its own.

::

    host a       scheduler ─┐                host store     PostgreSQL; the judge reads the holders here
    host b       scheduler ─┼─ router ─┬──── host broker    Redis or RabbitMQ; the consumer of the queue runs here
    host client  client    ─┘          └─
"""

import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.faults.judge import Verdict, judge
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.project import read_lines
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack
from tests.network.hosts import NETWORK, Network
from tests.soak.consumer import Consumer

HOSTS = ("store", "broker", "a", "b", "client")
SCHEDULERS = ("a", "b")
SHARDS = 2

_METRICS = "127.0.0.1:9808"

_HOLDERS = """
    SELECT shard, holder FROM wheel_shard WHERE lease_until_ms > extract(epoch FROM clock_timestamp()) * 1000
"""


class ReachablePostgres(PostgresServer):
    """A PostgreSQL that the other hosts may use."""

    def _initialise(self, binaries: Path) -> None:
        super()._initialise(binaries)
        with (self.folder / "data/pg_hba.conf").open("a") as access:
            access.write(f"host all all {NETWORK}.0/24 trust\n")


class Notes(Consumer):
    """Keeps what arrives in memory, as notes of ``tests.faults.judge``."""

    def __init__(self, url: str, stop: threading.Event) -> None:
        super().__init__(url, None, stop)  # type: ignore[arg-type]  # it writes into no ledger
        self.notes: list[dict[str, Any]] = []
        self.arrived: set[str] = set()

    def _note(self, headers: Mapping[str, Any], publication: str, at_ms: int) -> None:
        marked = bool(headers.get("wheel_redelivered"))
        self._arrivals.append(
            ({"id": headers["id"], "ran_ms": at_ms, "delivery": publication, "redelivered": False, "marked": marked},)
        )

    def _write(self) -> None:
        found, self._arrivals = [note for (note,) in self._arrivals], []
        self.notes += found
        self.arrived.update(note["id"] for note in found)


class Hosts(Stack):
    """The servers and processes of a network; ``broker`` is "redis" or "rabbitmq"."""

    def __init__(self, folder: Path, broker: str, seed: int, **settings: Any) -> None:
        self._stops = ExitStack()
        self.network = network = self._stops.enter_context(Network(folder / "network", *HOSTS))
        try:
            with network.on("store"):
                store = self._stops.enter_context(ReachablePostgres(fsync="on", listen_addresses="*"))
                self._looks = psycopg.connect(store.url(), autocommit=True)
                self._stops.callback(self._looks.close)
            with network.on("broker"):
                self._server = self._stops.enter_context(
                    RedisServer(folder / "redis", bind="0.0.0.0", protected_mode="no")  # noqa: S104
                    if broker == "redis"
                    else RabbitServer(folder / "rabbitmq", listens="0.0.0.0")  # noqa: S104
                )
        except BaseException:
            self._stops.close()
            raise
        url, store_url = (
            server.url.replace("127.0.0.1", network.address(host))
            if isinstance(server, RedisServer | RabbitServer)
            else server.url().replace("127.0.0.1", network.address(host))
            for server, host in ((self._server, "broker"), (store, "store"))
        )
        if broker != "redis":
            settings["broker_transport_options"] = {"confirm_publish": True}
        super().__init__(folder, url, store_url, wheel_shards=SHARDS, wheel_metrics=_METRICS, **settings)
        self._ledger, self._seed = folder / "ledger.jsonl", seed
        self._over = threading.Event()
        self.consumer = Notes(self._server.url, self._over)
        self._consuming = threading.Thread(target=self._consume)

    def __enter__(self) -> Self:
        self._consuming.start()
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self) -> None:
        for number, name in enumerate(SCHEDULERS, 1):
            self.start_scheduler(name)
            wait_until(lambda count=number: self.shared() == count, f"{name} holds a shard", 60)
        self.start("client", sys.executable, "-m", "tests.network.client", str(self._ledger), str(self._seed))
        wait_until(lambda: len(self.consumer.notes) > 20, "tasks arrive", 60)

    def close(self) -> None:
        self.network.fault([])
        super().close()
        self._over.set()
        self._consuming.join(patience())
        self._stops.close()

    def _consume(self) -> None:
        with self.network.on("broker"):
            self.consumer.run()

    def start(self, name: str, *command: str, **settings: Any) -> Process:
        with self.network.on(name):
            return super().start(name, *command, **settings)

    def start_scheduler(self, name: str) -> None:
        # A process of its own from the beginning: one that is forked is on the host of its starter.
        self.celery("beat", "--pidfile", "", "-l", "INFO", name=name, cold=True)

    # -- looks that no fault touches -------------------------------------------------------------------

    def held(self) -> dict[int, str]:
        """Return shard → host of its holder, for shards with a valid lease."""
        try:
            rows = self._looks.execute(_HOLDERS).fetchall()
        except psycopg.errors.UndefinedTable:  # the first scheduler makes it
            return {}
        hosts = {str(process.pid): name for name, process in self._processes}
        return {shard: hosts.get(holder.rpartition("/")[2], "?") for shard, holder in rows if holder}

    def shared(self) -> int:
        """Return how many schedulers hold a shard, where each shard has a holder; else 0."""
        held = self.held()
        return len(set(held.values())) if len(held) == SHARDS else 0

    def page(self, host: str, path: str) -> tuple[int, str]:
        """Return code and text of a page of a scheduler's monitoring; 0 where it does not answer."""
        try:
            with self.network.on(host), urllib.request.urlopen(f"http://{_METRICS}/{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    # -- the end ---------------------------------------------------------------------------------------

    def ledger(self) -> list[dict[str, Any]]:
        return read_lines(self._ledger)

    def overdue(self, until_ms: int, lines: Iterable[Mapping[str, Any]] | None = None) -> set[str]:
        """Return the tasks due by an instant that are sent, were not asked to be cancelled and have not arrived."""
        lines = self.ledger() if lines is None else lines
        etas = {line["begun"]: line["eta_ms"] for line in lines if "begun" in line}
        asked = {id_ for line in lines for id_ in line.get("asked", ())}
        sent = {line["sent"] for line in lines if "sent" in line}
        return {id_ for id_ in sent - asked if etas[id_] <= until_ms} - self.consumer.arrived

    def settle(self, seconds: float = 60) -> tuple[Verdict, list[str]]:
        """End the client, wait for what is due, and judge; returns also the tasks that ran after a cancel ``done``."""
        self["client"].kill()
        lines = self.ledger()
        last_ms = max((line["eta_ms"] for line in lines if "begun" in line), default=0)
        began_s = time.monotonic()
        while self.overdue(last_ms, lines) and time.monotonic() - began_s < patience(seconds):
            time.sleep(0.2)
        etas = {line["begun"]: line["eta_ms"] for line in lines if "begun" in line}
        done = {id_ for line in lines for id_, said in line.get("answered", {}).items() if said == "done"}
        asked = {id_ for line in lines for id_ in line.get("asked", ())}
        sent = {line["sent"] for line in lines if "sent" in line}
        notes = [{**note, "args": [etas[note["id"]]]} for note in self.consumer.notes]
        return judge(sent - asked, etas.keys() - (sent - asked), notes), sorted(done & self.consumer.arrived)
