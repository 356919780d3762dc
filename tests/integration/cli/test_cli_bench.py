"""``celery wheel bench`` on other brokers and stores than those of the other tests."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy

from celery_wheel import Celery
from celery_wheel.measure import Figure, measure
from tests.postgres import PostgresServer
from tests.rabbit import RabbitServer
from tests.servers import RedisServer


def measured(app: Celery) -> list[Figure]:
    return measure(app, 100, 10, lambda doing, done: None)


def test_on_rabbitmq_no_queue_stays(rabbit_server: RabbitServer, tmp_path: Path) -> None:
    url = rabbit_server.fresh()
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{tmp_path}/wheel.sqlite3"
    assert [one.count for one in measured(app)] == [100] * 4
    assert list(tmp_path.iterdir()) == []
    vhost = url.rpartition("/")[2]
    found = rabbit_server.ctl("-q", "-p", vhost, "list_queues", "name", "--no-table-headers")
    assert found.split() == ["celery"], "the default queue, which every producer declares"
    app.close()


def test_on_postgresql_no_schema_stays(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server, PostgresServer() as postgres:
        app = Celery("bench", broker=server.url, set_as_current=False)
        app.conf.wheel_store = url = postgres.new_database()
        assert [one.count for one in measured(app)] == [100] * 4
        engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as connection:
            assert [one for one in sqlalchemy.inspect(connection).get_schema_names() if "bench" in one] == []
            assert sqlalchemy.inspect(connection).get_table_names() == []
        engine.dispose()
        app.close()
