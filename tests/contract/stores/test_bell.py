"""The bell: a commit that brings something for a holder rings it; a store that cannot tell is polled."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import psycopg
import pytest

from celery_wheel.errors import StoreError
from celery_wheel.store import bell as files
from celery_wheel.store import open_store
from celery_wheel.store.bell import FileBell
from celery_wheel.store.model import PassedOn
from celery_wheel.store.ports import Bell
from celery_wheel.store.postgresql import bell as notifications
from celery_wheel.store.postgresql.bell import NotifyBell
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import LEASE_MS
from tests.contract.stores.conftest import MakeUrl
from tests.kit.holder import NOW, Holder
from tests.kit.patience import PATIENCE_S, patience
from tests.kit.servers.postgres import PostgresServer


@pytest.fixture(autouse=True)
def patient_bells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bell wait for its own notification as long as this machine needs."""
    monkeypatch.setattr(notifications, "HEARD_S", patience())


INOTIFY = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@pytest.fixture(params=[pytest.param("sqlite", marks=INOTIFY), "postgresql"])
def at(request: pytest.FixtureRequest, make_url: MakeUrl) -> str:
    return make_url(request.param)


@pytest.fixture
def store(at: str) -> Iterator[SqlStore]:
    with closing(open_store(at, lease_ms=LEASE_MS)) as store:
        yield store


def rings(bell: Bell, most_s: float) -> bool:
    """Whether the bell rings before the time is over."""
    began_s = time.monotonic()
    bell.wait(most_s)
    return time.monotonic() - began_s < most_s


def commit_a_load(store: SqlStore) -> None:
    load = store.loads.begin("load", NOW)
    store.loads.commit(load.id, load.run, {}, NOW)


WRITES: dict[str, Callable[[SqlStore], object]] = {
    "put_inbox": lambda store: store.put_inbox(0, [("cancel", b"{}")]),
    "put_command": lambda store: store.put_command(0, "cancel", b"{}"),
    "commit of a load": commit_a_load,
}


@pytest.mark.parametrize("write", WRITES)
def test_a_writer_rings(store: SqlStore, at: str, write: str) -> None:
    with closing(store.bell()) as bell, closing(open_store(at)) as other:
        assert bell.tells
        assert not rings(bell, 0.01)
        WRITES[write](other)
        assert rings(bell, patience(PATIENCE_S))
        assert bell.tells
        assert store.arrivals([0]) == ([] if write == "commit of a load" else [0])


def test_a_holder_does_not_ring(store: SqlStore) -> None:
    holder = Holder(store)
    with closing(store.bell()) as bell:
        holder.accept(NOW)
        store.renew(0, holder.epoch, NOW, 2_000, {})
        assert not rings(bell, 0.01)


def test_a_holder_that_passes_an_item_on_rings(store: SqlStore) -> None:
    holder, item = Holder(store), store.put_command(0, "cancel", b"{}")
    with closing(store.bell()) as bell:
        assert not rings(bell, 0.01)
        holder.apply(passed_on=[PassedOn(item, 1, b"{}")])
        assert rings(bell, patience(PATIENCE_S))


def test_a_system_without_inotify_is_polled(make_url: MakeUrl) -> None:
    without = mock.patch.object(files.ctypes, "CDLL", return_value=object())
    with closing(open_store(make_url("sqlite"))) as store, without, closing(FileBell(store.name)) as bell:
        assert not bell.tells
        store.put_inbox(0, [("cancel", b"{}")])
        assert not rings(bell, 0.01)


def test_a_lost_session_is_replaced(pg_store: SqlStore, postgres: PostgresServer, url: str) -> None:
    with closing(pg_store.bell()) as bell, mock.patch.object(notifications, "RETRY_S", 0.0):
        assert isinstance(bell, NotifyBell)
        pid = bell._session.info.backend_pid
        postgres.sql(f"SELECT pg_terminate_backend({pid})", database=url.rsplit("/", 1)[1])
        while bell.tells:
            assert rings(bell, patience(PATIENCE_S)), "the scheduler looks"
        bell.wait(0.0)
        assert bell.tells
        pg_store.put_inbox(0, [("cancel", b"{}")])
        assert rings(bell, patience(PATIENCE_S))


def test_through_a_pooler_that_loses_notifications_the_store_is_polled(pg_store: SqlStore) -> None:
    """pgbouncer lends the session of LISTEN to another client, and drops what it gets for nobody."""

    def connect() -> Any:
        session = pg_store.database._session_apart()  # type: ignore[attr-defined]
        lent = mock.Mock(wraps=session, pgconn=session.pgconn)
        lent.execute = lambda statement: None  # another session listens
        return lent

    ring = pg_store.database.ring
    with mock.patch.object(notifications, "HEARD_S", 0.01), closing(NotifyBell(connect, ring)) as bell:
        assert not bell.tells
        pg_store.put_inbox(0, [("cancel", b"{}")])
        assert not rings(bell, 0.01)
        assert pg_store.arrivals([0]) == [0]


@pytest.mark.parametrize("error", [StoreError("away"), psycopg.OperationalError("away")])
def test_a_server_that_is_away_is_polled_until_it_is_back(pg_store: SqlStore, error: Exception) -> None:
    connect: Any = pg_store.database._session_apart  # type: ignore[attr-defined]
    tries = mock.Mock(side_effect=[error, connect()])
    with closing(NotifyBell(tries, pg_store.database.ring)) as bell:
        assert not bell.tells
        assert not rings(bell, 0.01)
        later_s = time.monotonic() + notifications.RETRY_S
        with mock.patch.object(notifications.time, "monotonic", return_value=later_s):
            bell.wait(0.0)
        assert bell.tells


def test_a_ring_without_an_answer_fails_no_write(pg_store: SqlStore) -> None:
    pg_store.close()
    pg_store.database.ring()
