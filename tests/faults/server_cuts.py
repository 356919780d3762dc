"""Power cuts of PostgreSQL's host: its whole data directory is what a disk may have; see ``power`` for the model.

::

    schedulers a, b, a producer     on other hosts: they live on, and now and then a cut ends the schedulers too
    PostgreSQL, its processes       their writes are logged; a cut kills them all, and the server starts on that disk

The cluster is small (WAL segments of 1 MB, 6 MB in all), so that cuts meet checkpoints and recycled segments. It has
PostgreSQL's own ``wal_sync_method`` (fdatasync), ``fsync`` and ``full_page_writes``. After a cut ``amcheck`` compares
each B-tree with its table, and reads each row of each table.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Self

import psycopg

from tests.faults.contents import CHECKS
from tests.faults.cuts import StackOfCuts
from tests.faults.load import SCHEDULERS
from tests.faults.power import contents_of
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer

#: The share of cuts that end the schedulers as well.
WITH_SCHEDULERS = 0.3

SMALL = {
    "fsync": "on",
    "full_page_writes": "on",
    "min_wal_size": "2MB",
    "max_wal_size": "6MB",
    "autovacuum_naptime": "5s",
}


class SmallServer(PostgresServer):
    """Args: options: added to ``SMALL``."""

    initdb = ("--wal-segsize=1",)

    def __init__(self, **options: str) -> None:
        super().__init__(**{**SMALL, **options})


class StackOfServerCuts(StackOfCuts):
    """A stack on a server of its own."""

    on_the_host = ()

    def __init__(
        self, folder: Path, server: RedisServer, postgres: SmallServer, rng: random.Random, durability: str = "disk"
    ) -> None:
        postgres.sql("CREATE EXTENSION amcheck")
        self.postgres = postgres
        super().__init__(folder, server, rng, durability, place=postgres.folder / "data", url=postgres.url())

    def __enter__(self) -> Self:
        super().__enter__()
        self.postgres.stop()
        self.base = contents_of(self.place)
        self.postgres.environment = self.log.environment
        self.postgres.start()
        return self

    def kill(self) -> None:
        self._ended = SCHEDULERS if self.rng.random() < WITH_SCHEDULERS else ()
        self.postgres.kill()
        for name in self._ended:
            self[name].kill()

    def start_again(self) -> str:
        for name in self._ended:
            self.beat(name)
        assert self["asker"].is_alive(), self["asker"].said()
        self.postgres.start()
        try:
            self.postgres.sql(CHECKS[0])
            return str(self.postgres.sql(CHECKS[1]) or "ok")
        except psycopg.Error as error:
            return f"{type(error).__name__}: {error}"
