"""The bell of a PostgreSQL store: a commit that brings something rings it; a store that cannot tell is polled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import psycopg
import pytest

from celery_wheel.errors import StoreError
from celery_wheel.store import open_store
from celery_wheel.store.ports import Bell
from celery_wheel.store.postgresql import bell as bells
from celery_wheel.store.postgresql.bell import NotifyBell
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import LEASE_MS
from tests.kit.holder import NOW, Holder
from tests.kit.patience import PATIENCE_S, patience
from tests.kit.servers.postgres import PostgresServer


@pytest.fixture(autouse=True)
def patient_bells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bell wait for its own notification as long as this machine needs."""
    monkeypatch.setattr(bells, "HEARD_S", patience())


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url, lease_ms=LEASE_MS)) as store:
        yield store


def rings(bell: Bell, most_s: float) -> bool:
    """Whether the bell rings before the time is over."""
    began_s = time.monotonic()
    bell.wait(most_s)
    return time.monotonic() - began_s < most_s


WRITES: dict[str, Callable[[SqlStore], object]] = {
    "put_inbox": lambda store: store.put_inbox(0, [("cancel", b"{}")]),
    "put_command": lambda store: store.put_command(0, "cancel", b"{}"),
    "commit of a load": lambda store: store.loads.commit(*begun(store), {}, NOW),
}


def begun(store: SqlStore) -> tuple[int, int]:
    load = store.loads.begin("load", NOW)
    return load.id, load.run


@pytest.mark.parametrize("write", WRITES)
def test_a_writer_rings(url: str, store: SqlStore, write: str) -> None:
    with closing(store.bell()) as bell, closing(open_store(url)) as other:
        assert bell.tells
        assert not rings(bell, 0.01)
        WRITES[write](other)
        assert rings(bell, patience(PATIENCE_S))
        assert bell.tells


def test_a_holder_does_not_ring(store: SqlStore) -> None:
    holder = Holder(store)
    with closing(store.bell()) as bell:
        holder.accept(NOW)
        store.renew(0, holder.epoch, NOW, 2_000, {})
        assert not rings(bell, 0.01)


def test_a_lost_session_is_replaced(store: SqlStore, postgres: PostgresServer, url: str) -> None:
    with closing(store.bell()) as bell, mock.patch.object(bells, "RETRY_S", 0.0):
        assert isinstance(bell, NotifyBell)
        pid = bell._session.info.backend_pid
        postgres.sql(f"SELECT pg_terminate_backend({pid})", database=url.rsplit("/", 1)[1])
        while bell.tells:
            assert rings(bell, patience(PATIENCE_S)), "the scheduler looks"
        bell.wait(0.0)
        assert bell.tells
        store.put_inbox(0, [("cancel", b"{}")])
        assert rings(bell, patience(PATIENCE_S))


def test_through_a_pooler_that_loses_notifications_the_store_is_polled(store: SqlStore) -> None:
    """pgbouncer lends the session of LISTEN to another client, and drops what it gets for nobody."""

    def connect() -> Any:
        session = store.database._session_apart()  # type: ignore[attr-defined]
        lent = mock.Mock(wraps=session, pgconn=session.pgconn)
        lent.execute = lambda statement: None  # another session listens
        return lent

    with mock.patch.object(bells, "HEARD_S", 0.01), closing(NotifyBell(connect, store.database.ring)) as bell:
        assert not bell.tells
        store.put_inbox(0, [("cancel", b"{}")])
        assert not rings(bell, 0.01)
        assert store.arrivals([0]) == [0]


@pytest.mark.parametrize("error", [StoreError("away"), psycopg.OperationalError("away")])
def test_a_server_that_is_away_is_polled_until_it_is_back(store: SqlStore, error: Exception) -> None:
    connect: Any = store.database._session_apart  # type: ignore[attr-defined]
    tries = mock.Mock(side_effect=[error, connect()])
    with closing(NotifyBell(tries, store.database.ring)) as bell:
        assert not bell.tells
        assert not rings(bell, 0.01)
        with mock.patch.object(bells.time, "monotonic", return_value=time.monotonic() + bells.RETRY_S):
            bell.wait(0.0)
        assert bell.tells


def test_a_ring_without_an_answer_fails_no_write(store: SqlStore) -> None:
    store.close()
    store.database.ring()
