"""The PostgreSQL store works under settings of the server, the database or the role, and refuses poolers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest
from sqlalchemy import make_url

from celery_wheel.errors import StoreError, StoreUnusable
from celery_wheel.store import open_store
from celery_wheel.store.model import SHARD_BITS
from celery_wheel.store.place import read_url
from celery_wheel.store.postgresql.sessions import connect_args, settings
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import LEASE_MS
from tests.kit.holder import NOW, Holder
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import PostgresServer


@contextmanager
def opened(url: str) -> Iterator[SqlStore]:
    store = open_store(url, lease_ms=LEASE_MS)
    try:
        yield store
    finally:
        store.close()


def shown(store: SqlStore, *names: str) -> list[str]:
    with store.database.writing() as connection:
        return [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]


def name_of(url: str) -> str:
    return url.rsplit("/", 1)[1]


# -- what the operator has set --------------------------------------------------------------------------


#: The settings of a session, in spite of those of the database; all other settings are the operator's.
FORCED = {
    "client_encoding": "UTF8",
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "10s",
    "idle_session_timeout": "0",
    "lock_timeout": "20s",
    "plan_cache_mode": "force_custom_plan",
    "statement_timeout": "1min",
}


def shown_to_others(postgres: PostgresServer, url: str, name: str) -> str:
    [(found,)] = postgres.sql(f"SHOW {name}", database=name_of(url))
    return str(found)


@pytest.mark.parametrize(
    "setting",
    [
        "client_encoding = latin1",
        "default_transaction_isolation = serializable",
        "idle_in_transaction_session_timeout = 700",
        "idle_session_timeout = 700",
        "lock_timeout = 1",
        "plan_cache_mode = force_generic_plan",
        "statement_timeout = 1000",
        "bytea_output = escape",
        "temp_file_limit = 0",
    ],
)
def test_the_store_works_with_any_settings_of_the_database(postgres: PostgresServer, setting: str) -> None:
    url = postgres.new_database()
    open_store(url).close()
    postgres.sql(f"ALTER DATABASE {name_of(url)} SET {setting}")
    with opened(url) as store:
        holder = Holder(store)
        holder.accept(*range(NOW, NOW + 30), task="→", headers="é".encode())
        name = setting.partition(" ")[0]
        assert shown(store, name) == [FORCED.get(name, shown_to_others(postgres, url, name))]
        assert {(row.route.task, row.parts().headers) for row in holder.slice()} == {("→", "é".encode())}


@pytest.mark.parametrize(("setting", "is_"), [("off", "on"), ("on", "on"), ("local", "local")])
def test_durable_commits_wait_for_the_disk_although_the_database_does_not(
    postgres: PostgresServer, setting: str, is_: str
) -> None:
    url = postgres.new_database()
    postgres.sql(f"ALTER DATABASE {name_of(url)} SET synchronous_commit = {setting}")
    with opened(url) as store:
        assert shown(store, "synchronous_commit") == [is_]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_every_text_is_refused(postgres: PostgresServer, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    postgres.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
    with pytest.raises(StoreUnusable, match=rf"keeps text as {encoding}.*; nothing was written; make .*UTF8"):
        open_store(postgres.url(name))


def test_a_session_that_may_only_read_is_not_kept(postgres: PostgresServer) -> None:
    """After a switch-over, or maintenance, the store works again without a restart of the scheduler."""
    url = postgres.new_database()
    open_store(url).close()
    postgres.sql(f"ALTER DATABASE {name_of(url)} SET default_transaction_read_only = on")
    with opened(url) as store:
        with pytest.raises(StoreError, match="is read-only"):
            Holder(store)
        postgres.sql(f"ALTER DATABASE {name_of(url)} RESET default_transaction_read_only")
        Holder(store).accept(NOW)


def test_a_poll_raises_the_end_of_its_session_and_the_next_poll_has_a_new_one(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with opened(url) as store:
        assert not store.has_arrivals(0)
        store.put_command(0, "cancel", b"{}")
        postgres.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name_of(url)}'")
        with pytest.raises(StoreError, match=r"terminating connection|server closed"):
            store.has_arrivals(0)
        assert store.has_arrivals(0)


def test_a_store_may_have_a_schema_of_its_own(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    postgres.sql("CREATE SCHEMA apart", database=name_of(url))
    with opened(f"{url}?options=-csearch_path%3Dapart&options=-cwork_mem%3D8MB") as store:
        Holder(store).accept(*range(NOW, NOW + 30))
        assert shown(store, "work_mem") == ["8MB"]
    assert postgres.sql("SELECT count(*) FROM apart.wheel_timer", database=name_of(url)) == [(30,)]


def test_nothing_is_accepted_while_a_synchronous_standby_is_missed() -> None:
    with PostgresServer() as server, opened(server.url()) as store:
        holder = Holder(store)
        server.sql("ALTER SYSTEM SET synchronous_standby_names = 'missed'", "SELECT pg_reload_conf()")
        accepted, enough = list[int](), threading.Event()

        def accept() -> None:  # repeated, since the setting takes a moment to arrive
            while not enough.is_set():
                accepted.extend(row.id for row in holder.accept(NOW))

        accepting = threading.Thread(target=accept)
        accepting.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_until(lambda: server.sql(waits) == [(1,)], "the commit waits for the standby")
        enough.set()
        assert holder.ids() == accepted
        server.sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        accepting.join(patience(30))
        assert holder.ids() == accepted
        assert len(accepted) == holder.highest_seq >> SHARD_BITS


# -- poolers --------------------------------------------------------------------------------------------


def test_the_connection_has_no_parameter_that_a_pooler_refuses(postgres: PostgresServer) -> None:
    """pgbouncer: "unsupported startup parameter: options"."""
    assert "options" not in connect_args(make_url(postgres.url()), LEASE_MS)
    with opened(postgres.new_database()) as store:
        wanted = settings(LEASE_MS)
        with store.database.reading() as connection:
            rows = connection.exec_driver_sql("SELECT name, setting FROM pg_settings")
            found = {name: value for name, value in rows if name in wanted}
    unknown = {"transaction_timeout", "idle_session_timeout"}
    assert found == {name: value for name, value in wanted.items() if name in found or name not in unknown}


def test_a_pooler_that_shares_sessions_is_named(postgres: PostgresServer) -> None:
    """The pooler gives each transaction to another session, which does not have the prepared statements."""
    with opened(postgres.new_database()) as store:
        for _ in range(8):
            store.state(0)
        with store.database.reading() as connection:
            connection.exec_driver_sql(
                "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"
            )  # otherwise the driver would notice it
        with pytest.raises(StoreError, match=r"gives this process's sessions to other processes.*pool_mode=session"):
            store.state(0)
        store.state(0)


# -- URLs -----------------------------------------------------------------------------------------------


def test_several_hosts_with_ports_as_libpq_has_them(postgres: PostgresServer) -> None:
    name = name_of(postgres.new_database())
    hosts = f"127.0.0.1:1,127.0.0.1:{postgres.port}"
    with opened(f"postgresql://wheel@{hosts}/{name}?target_session_attrs=read-write") as store:
        Holder(store).accept(NOW)
        assert store.database.name == f"{name} on {hosts}"


def test_the_url_of_a_hosting_provider_names_the_store(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with opened(url) as store:
        given = url.replace("postgresql://", "postgres://", 1)
        with opened(given) as again:
            assert again.uuid == store.uuid
        pytest.importorskip("pyspark")
        assert import_module("celery_wheel.pipeline.source.statements").database_url(given) == url


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://a:1,b:2/db", ("a:1", "b:2")),
        ("postgres://u@a:1,b:2/db", ("a:1", "b:2")),
        ("postgresql+psycopg://u:p%2Cq@a,b/db?sslmode=require", ("a", "b")),
        ("postgresql://a:1/db", None),
        ("postgresql://u,v@a:1/db?options=x,y", None),
    ],
)
def test_several_hosts_are_separated(url: str, hosts: tuple[str, ...] | None) -> None:
    assert read_url(url).query.get("host") == hosts


def test_an_unknown_option_is_named_without_its_value(postgres: PostgresServer) -> None:
    with pytest.raises(StoreUnusable, match=r'invalid connection option "foo".*correct the URL') as caught:
        open_store(f"{postgres.url()}?foo=hidden")
    assert "hidden" not in str(caught.value)
