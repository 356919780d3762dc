"""On PostgreSQL an acknowledged commit is on disk, whatever the server's synchronous_commit becomes meanwhile."""

from __future__ import annotations

from contextlib import closing

from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import LEASE_MS
from tests.kit.holder import NOW, Holder
from tests.kit.patience import wait_until
from tests.kit.servers.postgres import PostgresServer

COMMITS = 20


_OF_THE_SERVER = "SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'"


def _reload(server: PostgresServer, store: SqlStore, value: str) -> None:
    """Change the configuration; returns when the store's open session has read it."""

    def has_read_it() -> bool:
        with store.database.reading() as connection:
            return bool(connection.exec_driver_sql(_OF_THE_SERVER).scalar_one() == value)

    server.sql(f"ALTER SYSTEM SET synchronous_commit = {value}", "SELECT pg_reload_conf()")
    wait_until(has_read_it, f"the open session has read synchronous_commit = {value}")


def test_no_acknowledged_commit_is_lost_where_a_reload_turns_synchronous_commit_off() -> None:
    """The log is written seldom, so that every commit that did not wait for it is lost with the server."""
    with PostgresServer(wal_writer_delay="10s") as server:
        with closing(open_store(server.url(), lease_ms=LEASE_MS)) as store:
            holder = Holder(store)
            holder.accept(NOW)
            _reload(server, store, "off")
            rows = [row.id for _ in range(COMMITS) for row in holder.accept(NOW)]
            items = [store.put_command(0, "cancel", b"{}") for _ in range(COMMITS)]
            server.kill()
        server.start()
        with closing(open_store(server.url(), lease_ms=LEASE_MS)) as store:
            assert [row.id for row in Holder(store).slice()][-COMMITS:] == rows
            assert [item.id for item in store.read_inbox(0, 2 * COMMITS)] == items


def test_a_reload_in_the_middle_of_a_transaction_does_not_change_its_durability() -> None:
    with (
        PostgresServer() as server,
        closing(open_store(server.url(), lease_ms=LEASE_MS)) as store,
        store.database.writing() as connection,
    ):

        def has_read_it() -> bool:
            return bool(connection.exec_driver_sql(_OF_THE_SERVER).scalar_one() == "off")

        server.sql("ALTER SYSTEM SET synchronous_commit = off", "SELECT pg_reload_conf()")
        wait_until(has_read_it, "the session in the transaction has read the configuration")
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


def test_a_store_that_need_not_be_durable_does_not_wait_for_the_log(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with closing(open_store(url, durability="memory", lease_ms=LEASE_MS)) as store:
        for durable, said in ((None, "off"), (False, "off"), (True, "on")):
            with store.database.writing(durable=durable) as connection:
                assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == said
