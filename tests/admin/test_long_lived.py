"""A web process lives long: the server restarts, the process forks, a database is emptied. The next page is right."""

import os
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text

from celery_wheel.control import Wheel
from celery_wheel.errors import StoreError
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from tests.admin.test_installing import made
from tests.kit.holder import NOW, Holder
from tests.kit.patience import patience
from tests.kit.servers.postgres import PostgresServer


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def wheel(database: str) -> Iterator[Wheel]:
    store = open_store(database)
    Holder(store).accept(NOW)
    store.close()
    app = made(wheel_store=database)
    asked = Wheel(app)
    yield asked
    asked.close()
    app.close()


def test_pages_work_after_a_restart_of_the_server(wheel: Wheel, postgres: PostgresServer) -> None:
    """The restart ended several connections of several threads."""
    together = threading.Barrier(3)

    def ask() -> None:
        with wheel.store.database.reading() as connection:
            connection.execute(text("SELECT 1"))
            together.wait(patience(30))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for _ in range(2):
        postgres.restart()
        assert len(wheel.pending().items) == 1
    assert wheel.status()[0].holder == "host-a"


@pytest.mark.slow
def test_emptied_tables_are_reported(wheel: Wheel, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``manage.py flush`` empties the tables in this way."""
    monkeypatch.setattr("celery_wheel.requests.answers.CHECK_EVERY_S", 0)
    assert len(wheel.status()) == 1
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        tables = "wheel_meta, wheel_shard, wheel_snapshot, wheel_lane, wheel_timer, wheel_tally, wheel_total"
        connection.execute(text(f"TRUNCATE {tables}"))
    with pytest.raises(StoreError, match="was never used; a scheduler begins it"):
        wheel.status()
    open_store(database, shards=2).close()
    assert len(wheel.status()) == 2
    engine.dispose()


def test_a_forked_process_opens_the_store_itself(store: SqlStore) -> None:
    from tests.kit.site import celery_app

    Holder(store).accept(NOW)
    wheel = Wheel(celery_app)
    assert len(wheel.pending().items) == 1
    child = os.fork()
    if child == 0:
        try:
            code = len(wheel.pending().items)
        finally:
            os._exit(locals().get("code", 99))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert len(wheel.pending().items) == 1
    wheel.close()
