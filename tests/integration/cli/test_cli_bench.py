"""``celery wheel bench`` writes only to its own store and queues, with any broker, store and spelling of settings."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from celery_wheel import Celery
from celery_wheel.conf import Conf
from celery_wheel.errors import StoreUnusable
from celery_wheel.operations.bench import Pace, check_own, measure, own_app
from celery_wheel.store import open_store
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer


def measured(app: Celery) -> dict[str, Pace]:
    return measure(app, 100, 10, lambda doing, done: None)


class Production:
    """A production store and its messages in Redis; ``look`` returns every byte of both."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.folder, self.server = folder, server
        self.store = f"sqlite:///{folder}/wheel.sqlite3"
        open_store(self.store).close()
        self._client = server.client()
        for queue in ("shop.0", "wheel.0", "celery"):
            self._client.rpush(queue, b"a production task's message, which no bench reads")
        self._client.hset("shop.offset.0", "uuid", "a production store's")
        self._before = self.content()

    def content(self) -> tuple[dict[str, bytes], dict[bytes, object]]:
        files = {one.name: one.read_bytes() for one in self.folder.iterdir() if one.is_file()}
        return files, {key: self._client.dump(key) for key in self._client.scan_iter()}

    def check(self) -> None:
        files, keys = self.content()
        assert files == self._before[0]
        assert keys == self._before[1]


@pytest.fixture
def production(tmp_path: Path) -> Iterator[Production]:
    (tmp_path / "store").mkdir()
    with RedisServer(tmp_path / "redis") as server:
        yield Production(tmp_path / "store", server)


#: Settings of a module, and settings that are set later; STORE stands for the production store.
STORE = object()
SPELLINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "prefixed": ({"CELERY_WHEEL_STORE": STORE, "CELERY_WHEEL_NAMESPACE": "shop", "CELERY_WHEEL_SHARDS": 3}, {}),
    "prefixed and set": (
        {"CELERY_TASK_ROUTES": {"*": {"queue": "shop"}}},
        {"CELERY_WHEEL_STORE": STORE, "CELERY_WHEEL_NAMESPACE": "shop"},
    ),
    "both": (
        {"CELERY_WHEEL_STORE": STORE},
        {"CELERY_WHEEL_STORE": STORE, "wheel_store": STORE, "wheel_namespace": "shop"},
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_prefixed_settings_lead_to_no_production_store(production: Production, spelling: str) -> None:
    app = Celery("shop", broker=production.server.url, set_as_current=False)
    module, later = (
        {name: production.store if value is STORE else value for name, value in one.items()}
        for one in SPELLINGS[spelling]
    )
    app.config_from_object(type("settings", (), module), namespace="CELERY")
    app.conf.update(later)
    assert app.conf.wheel_store == production.store
    before = dict(app.conf.maps[0])
    assert [one.count for one in measured(app).values()] == [100] * 4
    production.check()
    assert app.conf.maps[0] == before, "the site's settings are only read"
    app.close()


@pytest.mark.slow
def test_a_django_project_keeps_its_store_and_its_queues(production: Production, tmp_path: Path) -> None:
    (tmp_path / "shop_settings.py").write_text(
        f"CELERY_BROKER_URL = {production.server.url!r}\nCELERY_WHEEL_STORE = {production.store!r}\n"
        'CELERY_WHEEL_NAMESPACE = "shop"\nCELERY_TASK_SEND_SENT_EVENT = True\nSECRET_KEY = "no secret"\n'
    )
    (tmp_path / "shop.py").write_text(
        "from celery_wheel import Celery\napp = Celery('shop')\n"
        "app.config_from_object('django.conf:settings', namespace='CELERY')\n"
    )
    command = [sys.executable, "-m", "celery", "-A", "shop", "wheel", "bench", "--tasks", "100", "--json"]
    settings = {"DJANGO_SETTINGS_MODULE": "shop_settings", "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    found = subprocess.run(command, cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert list(json.loads(found.stdout)["figures"]) == ["send", "ingest", "move", "dispatch"]
    production.check()


@pytest.mark.parametrize("setting", ["wheel_store", "wheel_namespace"])
def test_a_foreign_store_or_queue_is_refused_before_anything_is_written(production: Production, setting: str) -> None:
    own = production.folder.parent / "own.sqlite3"
    own.touch()
    app = own_app(
        Celery("shop", broker=production.server.url, set_as_current=False), f"sqlite:///{own}", "wheel-bench-1"
    )
    check_own(Conf(app), "wheel-bench-1", own)
    app.conf[setting] = production.store if setting == "wheel_store" else "shop"
    with pytest.raises(StoreUnusable, match=r"instead of its own.*nothing was written"):
        check_own(Conf(app), "wheel-bench-1", own)
    production.check()
    assert own.stat().st_size == 0
    app.close()


@pytest.mark.slow
def test_the_bench_removes_its_queues_from_rabbitmq(rabbit_server: RabbitServer, tmp_path: Path) -> None:
    url = rabbit_server.fresh()
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{tmp_path}/wheel.sqlite3"
    assert [one.count for one in measured(app).values()] == [100] * 4
    assert list(tmp_path.iterdir()) == []
    found = rabbit_server.ctl("-q", "-p", url.rpartition("/")[2], "list_queues", "name", "--no-table-headers")
    assert found.split() == []
    app.close()


@pytest.mark.slow
def test_the_bench_removes_its_schema_from_postgresql(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server, PostgresServer() as postgres:
        app = Celery("bench", broker=server.url, set_as_current=False)
        app.conf.wheel_store = url = postgres.new_database()
        assert [one.count for one in measured(app).values()] == [100] * 4
        engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as connection:
            assert [one for one in sqlalchemy.inspect(connection).get_schema_names() if "bench" in one] == []
            assert sqlalchemy.inspect(connection).get_table_names() == []
        engine.dispose()
        app.close()
