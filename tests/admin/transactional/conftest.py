"""A database of the project beside the test's own: real transactions, on SQLite and on PostgreSQL.

::

    shop.alias             an entry of DATABASES with the wheel's tables, and wheel_store = django://shop
    shop.waiting()         the messages that other connections see in the inbox
    shop.running.beat()    a real scheduler of the same database, on a real Redis
"""

import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from kombu import pools
from kombu.transport.memory import Channel, Transport

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.store import open_store
from celery_wheel.store.model import InboxItem, Message
from celery_wheel.store.sql.store import SqlStore
from tests.admin.conftest import Configure
from tests.kit.patience import wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer
from tests.kit.site import celery_app
from tests.kit.site.running import RunningSite, migrated

ALIAS = "shop"

#: The settings that the manual requires; before 5.1 Django cannot have them.
SQLITE_OPTIONS: dict[str, Any] = {"timeout": 20}


class Shop:
    """A site and its database; ``url`` names the database as SQLAlchemy does, ``folder`` is the site's."""

    alias = ALIAS

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.store: SqlStore = open_store(f"django://{ALIAS}", shards=None)
        self.redis: RedisServer | None = None

    @property
    def vendor(self) -> str:
        return str(connections[ALIAS].vendor)

    def items(self) -> list[InboxItem]:
        return self.store.read_inbox(0, 10_000)

    def waiting(self) -> list[str]:
        """Return the task ids of the messages in the inbox, the oldest first."""
        return [self.message(item).task_id for item in self.items() if item.kind == "message"]

    @staticmethod
    def message(item: InboxItem) -> Message:
        found = QueuedMessageReader().decode(item.payload)
        assert isinstance(found, Message), found.reason
        return found

    @cached_property
    def running(self) -> RunningSite:
        """Return the other processes of the same site, whose alias of the database is ``default``."""
        assert self.redis is not None
        return RunningSite(self.folder, self.url, self.redis.url)

    def close(self) -> None:
        if "running" in vars(self):
            self.running.close()
        self.store.close()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    migrated(folder, "sqlite://")
    return folder / "site.sqlite3"


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    url = postgres.new_database(stays=True)
    return migrated(tmp_path_factory.mktemp("template"), url).rpartition("/")[2]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("template"), tmp_path / "site.sqlite3")
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(tmp_path / "site.sqlite3"),
            "OPTIONS": dict(SQLITE_OPTIONS),
        }
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.new_database(request.getfixturevalue("postgres_template"))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.rpartition("/")[2],
        "USER": "wheel",
        "HOST": "127.0.0.1",
        "PORT": server.port,
    }


@pytest.fixture
def shop(database: dict[str, Any], tmp_path: Path, conf: Configure, django_db_blocker: Any) -> Iterator[Shop]:
    """Yield a shop with ``wheel_transactional`` set; the broker is kombu's transport in memory, and empty."""
    connections.databases[ALIAS] = database
    connections.configure_settings(connections.databases)  # fills in the missing settings
    where = f"postgresql://wheel@127.0.0.1:{database['PORT']}" if database["PORT"] else "sqlite://"
    url = f"{where}/{database['NAME']}"
    conf(wheel_store=f"django://{ALIAS}", wheel_transactional=True)
    with django_db_blocker.unblock():
        made = Shop(url, tmp_path)
        yield made
        made.close()
        connections[ALIAS].close()
        del connections[ALIAS]
    del connections.databases[ALIAS]
    pools.reset()
    Channel.queues.clear()
    Transport.global_state.clear()


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def connected(shop: Shop, redis: RedisServer, conf: Configure) -> Iterator[Shop]:
    shop.redis = redis
    conf(broker_url=redis.url)
    yield shop
    celery_app.wheel.close()
    celery_app.pool.force_close_all()


@pytest.fixture
def live(connected: Shop) -> Shop:
    process = connected.running.beat()
    wait_until(lambda: _holder(connected) == process.pid, "the scheduler holds the shard")
    return connected


def _holder(shop: Shop) -> int:
    holder = shop.store.state(0).holder
    return int(holder.rpartition("/")[2]) if holder else 0
