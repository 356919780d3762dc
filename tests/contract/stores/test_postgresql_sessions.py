"""The PostgreSQL store works under settings of the server, the database or the role, and refuses poolers.

A PostgreSQL that lets nobody in is told apart from one that is out of reach, and from a commit without an answer.
"""

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from typing import Any

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from celery_wheel.engine.pool import HANGS_S
from celery_wheel.errors import NothingWritten, StoreError, StoreUnusable
from celery_wheel.store import open_store
from celery_wheel.store.model import SHARD_BITS, Change, ShardChange
from celery_wheel.store.place import read_url
from celery_wheel.store.postgresql.errors import Sent, describe
from celery_wheel.store.postgresql.sessions import connect_args, settings
from celery_wheel.store.sql import changes
from celery_wheel.store.sql.store import TRIES, SqlStore
from tests.contract.stores.backends import LEASE_MS
from tests.kit.holder import NOW, Holder
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import PostgresServer


def opened(url: str) -> closing[SqlStore]:
    return closing(open_store(url, lease_ms=LEASE_MS))


def shown(store: SqlStore, *names: str) -> list[str]:
    with store.database.writing() as connection:
        return [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]


def name_of(url: str) -> str:
    return url.rsplit("/", 1)[1]


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
def test_the_store_works_with_any_settings_of_the_database(postgres: PostgresServer, url: str, setting: str) -> None:
    open_store(url).close()
    postgres.sql(f"ALTER DATABASE {name_of(url)} SET {setting}")
    with opened(url) as store:
        holder = Holder(store)
        holder.accept(*range(NOW, NOW + 30), task="→", headers="é".encode())
        name = setting.partition(" ")[0]
        assert shown(store, name) == [FORCED.get(name, shown_to_others(postgres, url, name))]
        assert {(row.route.task, row.parts().headers) for row in holder.slice()} == {("→", "é".encode())}


@pytest.mark.parametrize(("setting", "is_"), [("off", "on"), ("on", "on"), ("local", "local")])
def test_durable_commits_wait_for_the_disk_anyway(postgres: PostgresServer, url: str, setting: str, is_: str) -> None:
    postgres.sql(f"ALTER DATABASE {name_of(url)} SET synchronous_commit = {setting}")
    with opened(url) as store:
        assert shown(store, "synchronous_commit") == [is_]


@pytest.mark.parametrize("free_at", [2, 4])
def test_a_row_that_is_locked_for_longer_than_a_lease_does_not_cost_the_shard(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch, free_at: int
) -> None:
    with closing(open_store(url, lease_ms=600)) as store, psycopg.connect(postgres.url(name_of(url))) as other:
        holder, write, tries = Holder(store), changes.write, list[int]()
        other.execute("SELECT FROM wheel_shard FOR UPDATE")

        def tried(*change: Any) -> Any:
            tries.append(1)
            if len(tries) == free_at:
                other.rollback()
            return write(*change)

        monkeypatch.setattr(changes, "write", tried)
        if free_at > TRIES:
            with pytest.raises(NothingWritten, match=r"waited too long for a lock.*; nothing was written"):
                holder.accept(NOW)
        else:
            holder.accept(NOW)
        assert len(tries) == min(free_at, TRIES)
        assert len(holder.slice()) == (free_at <= TRIES)


@pytest.mark.slow
def test_a_locked_row_costs_the_other_shards_of_a_process_no_lease(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared transaction that waited for it would keep the rows of the other shards locked, unrenewed."""
    database, write, waits = name_of(url), changes.write, list[tuple[int, float]]()
    with closing(open_store(url, shards=3, lease_ms=4_000)) as store, psycopg.connect(postgres.url(database)) as other:
        holders = [Holder(store, shard) for shard in range(3)]
        holders[0].accept(NOW)
        other.execute("SELECT FROM wheel_shard WHERE shard = 1 FOR UPDATE")

        def timed(connection: Any, statements: Any, catalogue: Any, wanted: Any) -> Any:
            began_s = time.monotonic()
            try:
                return write(connection, statements, catalogue, wanted)
            finally:
                waits.append((len(wanted), time.monotonic() - began_s))

        monkeypatch.setattr(changes, "write", timed)
        wanted = [
            ShardChange(one.shard, one.epoch, Change(rows=[one.row(NOW)], seq=one.highest_seq)) for one in holders
        ]
        answers = store.apply_all(wanted)
        assert [type(one) for one in answers] == [type(None), NothingWritten, type(None)]
        assert [len(one.slice()) for one in holders] == [2, 0, 1]
        assert max(took_s for count, took_s in waits if count > 1) < 2.0
        assert [count for count, _ in waits] == [3, 1, 1, 1, 1], "the locked one comes last, and once"
        assert sum(took_s for _, took_s in waits) < HANGS_S


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_every_text_is_refused(postgres: PostgresServer, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    postgres.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
    with pytest.raises(StoreUnusable, match=rf"keeps text as {encoding}.*; nothing was written; make .*UTF8"):
        open_store(postgres.url(name))


def test_a_session_that_may_only_read_is_not_kept(postgres: PostgresServer, url: str) -> None:
    """After a switch-over, or maintenance, the store works again without a restart of the scheduler."""
    open_store(url).close()
    postgres.sql(f"ALTER DATABASE {name_of(url)} SET default_transaction_read_only = on")
    with opened(url) as store:
        with pytest.raises(StoreError, match="is read-only"):
            Holder(store)
        postgres.sql(f"ALTER DATABASE {name_of(url)} RESET default_transaction_read_only")
        Holder(store).accept(NOW)


def test_a_poll_raises_the_end_of_its_session_once(postgres: PostgresServer, url: str, pg_store: SqlStore) -> None:
    assert not pg_store.has_arrivals(0)
    pg_store.put_command(0, "cancel", b"{}")
    end(postgres, url)
    with pytest.raises(StoreError, match=r"terminating connection|server closed"):
        pg_store.has_arrivals(0)
    assert pg_store.has_arrivals(0)


def test_a_store_may_have_a_schema_of_its_own(postgres: PostgresServer, url: str) -> None:
    postgres.sql("CREATE SCHEMA apart", database=name_of(url))
    with opened(f"{url}?options=-csearch_path%3Dapart&options=-cwork_mem%3D8MB") as store:
        Holder(store).accept(*range(NOW, NOW + 30))
        assert shown(store, "work_mem") == ["8MB"]
    assert postgres.sql("SELECT count(*) FROM apart.wheel_timer", database=name_of(url)) == [(30,)]


@pytest.mark.slow
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


def test_the_connection_has_no_parameter_that_a_pooler_refuses(postgres: PostgresServer, pg_store: SqlStore) -> None:
    """pgbouncer: "unsupported startup parameter: options"."""
    assert "options" not in connect_args(make_url(postgres.url()), LEASE_MS)
    wanted = settings(LEASE_MS)
    with pg_store.database.reading() as connection:
        rows = connection.exec_driver_sql("SELECT name, setting FROM pg_settings")
        found = {name: value for name, value in rows if name in wanted}
    unknown = {"transaction_timeout", "idle_session_timeout"}
    assert found == {name: value for name, value in wanted.items() if name in found or name not in unknown}


def test_a_pooler_that_shares_sessions_is_named(pg_store: SqlStore) -> None:
    """The pooler gives each transaction to another session, which does not have the prepared statements."""
    for _ in range(8):
        pg_store.state(0)
    with pg_store.database.reading() as connection:  # by a block, as the driver would notice DEALLOCATE itself
        connection.exec_driver_sql("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    with pytest.raises(StoreError, match=r"gives this process's sessions to other processes.*pool_mode=session"):
        pg_store.state(0)
    pg_store.state(0)


def test_several_hosts_with_ports_as_libpq_has_them(postgres: PostgresServer, url: str) -> None:
    name = name_of(url)
    hosts = f"127.0.0.1:1,127.0.0.1:{postgres.port}"
    with opened(f"postgresql://wheel@{hosts}/{name}?target_session_attrs=read-write") as store:
        Holder(store).accept(NOW)
        assert store.database.name == f"{name} on {hosts}"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+psycopg"])
def test_the_url_of_a_hosting_provider_or_a_driver_names_the_store(url: str, pg_store: SqlStore, scheme: str) -> None:
    given = url.replace("postgresql", scheme, 1)
    with opened(given) as again:
        assert again.uuid == pg_store.uuid
    if scheme == "postgres":
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


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(max_connections="8", superuser_reserved_connections="2") as found:
        yield found


@pytest.fixture
def few(server: PostgresServer) -> Iterator[str]:
    """Return the URL of a store whose user is no superuser: limits do not count for those."""
    found = server.new_database()
    name = name_of(found)
    server.sql("CREATE ROLE few LOGIN", f"ALTER DATABASE {name} OWNER TO few")
    yield found.replace("wheel@", "few@")
    server.sql(f"ALTER DATABASE {name} OWNER TO wheel")
    server.sql("DROP OWNED BY few CASCADE", database=name)
    server.sql("DROP ROLE few")


@contextmanager
def disconnected(server: PostgresServer, url: str) -> Iterator[Callable[[], str]]:
    """Yield what a write says, of a store whose sessions all ended; it has to connect anew."""
    with opened(url) as store:

        def said() -> str:
            end(server, url)
            with pytest.raises(StoreError) as caught:
                _ask(store)
            return str(caught.value)

        yield said
        wait_until(lambda: _answers(store), "the store is written to again", every_s=0.05)


def end(server: PostgresServer, url: str) -> None:
    server.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name_of(url)}'")


def _ask(store: SqlStore) -> bool:
    return bool(store.put_command(0, "cancel", b"{}"))


def _answers(store: SqlStore) -> bool:
    try:
        return _ask(store)
    except StoreError:
        return False


LIMIT = "raise the limit: ALTER ROLE … CONNECTION LIMIT"


@pytest.mark.parametrize(
    ("change", "back", "state", "remedy"),
    [
        ("ROLE few CONNECTION LIMIT 0", "ROLE few CONNECTION LIMIT -1", "has as many connections as its role", LIMIT),
        ("ROLE few NOLOGIN", "ROLE few LOGIN", "does not let this user in", "check user and password"),
        ("DATABASE {0} CONNECTION LIMIT 0", "DATABASE {0} CONNECTION LIMIT -1", "or its database may have", LIMIT),
        ("DATABASE {0} RENAME TO elsewhere", "DATABASE elsewhere RENAME TO {0}", "does not exist", "make it: createdb"),
    ],
    ids=["limit of the role", "login", "limit of the database", "database away"],
)
def test_a_refusal_is_named(server: PostgresServer, few: str, change: str, back: str, state: str, remedy: str) -> None:
    with disconnected(server, few) as said:
        end(server, few)
        server.sql("ALTER " + change.format(name_of(few)))
        words = said()
        assert state in words
        assert f"; nothing was sent to it; {remedy}" in words
        server.sql("ALTER " + back.format(name_of(few)))


@pytest.mark.slow
def test_the_limit_of_the_server_is_named(server: PostgresServer, few: str) -> None:
    with disconnected(server, few) as said:
        end(server, few)
        others = list[Any]()
        with suppress(psycopg.OperationalError):
            while True:
                others.append(psycopg.connect(server.url().replace("wheel@", "few@")))
        words = said()
        assert "takes no more connections" in words
        assert "; nothing was sent to it; raise max_connections" in words
        for other in others:
            other.close()


def test_a_server_that_is_gone_was_sent_nothing() -> None:
    with PostgresServer() as server, opened(server.url()) as store:
        _ask(store)
        server.kill()
        with pytest.raises(StoreError):
            _ask(store)
        with pytest.raises(StoreError, match=r"cannot be reached .*; nothing was sent to it, and it is tried again; "):
            _ask(store)


def test_a_session_that_ends_early_wrote_nothing(
    server: PostgresServer, few: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(few) as store:
        with pytest.raises(StoreError, match=r"ended the session: .*; nothing was written; "):
            _write(store, lambda: end(server, few))
        with monkeypatch.context() as at:
            _answer_nothing_to_a_commit(at)
            with pytest.raises(StoreError, match="; the last change may be committed or not"):
                _write(store)


def _write(store: SqlStore, before_the_last: Callable[[], None] = lambda: None) -> None:
    with store.database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE other ()")
        before_the_last()
        connection.exec_driver_sql("DROP TABLE other")


def _answer_nothing_to_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    execute = psycopg.Cursor.execute

    def and_lose_the_answer(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        found = execute(self, query, *arguments, **options)
        if query == "COMMIT":
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return found

    monkeypatch.setattr(psycopg.Cursor, "execute", and_lose_the_answer)


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("FATAL:  sorry, too many clients already", "takes no more connections"),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", "takes no more"),
        ('FATAL:  too many connections for role "wheel"', "has as many connections as its role or its database may"),
        ('FATAL:  too many connections for database "db"', "has as many connections as its role or its database may"),
        ("FATAL:  no more connections allowed (max_client_conn)", "takes no more connections"),
        ('FATAL:  password authentication failed for user "wheel"', "does not let this user in"),
        ("fe_sendauth: no password supplied", "does not let this user in"),
        ('FATAL:  role "wheel" does not exist', "does not let this user in"),
        ('FATAL:  role "wheel" is not permitted to log in', "does not let this user in"),
        ('FATAL:  permission denied for database "db"', "does not let this user in"),
        ('FATAL:  database "db" does not exist', "does not exist"),
        ('FATAL:  database "db" is not currently accepting connections', "refuses the connection"),
        ("FATAL:  the database system is starting up", "is starting, stopping or recovering"),
        ("FATAL:  the database system is shutting down", "is starting, stopping or recovering"),
        ("FATAL:  the database system is not yet accepting connections", "is starting, stopping or recovering"),
        ("FATAL:  a sentence of a newer server", "refuses the connection"),
        ("server does not support SSL, but SSL was required", "does not accept its connection parameters"),
        ("Connection refused", "cannot be reached"),
    ],
)
def test_each_refusal_says_that_nothing_was_sent(sentence: str, said: str) -> None:
    error = psycopg.OperationalError(f'connection failed: connection to server at "h", port 5432 failed: {sentence}')
    words = describe("wheel on db", error, sent=Sent.NOTHING)
    assert words.startswith(f"the store wheel on db {said}"), words
    assert "; nothing was sent to it" in words


def test_an_attempt_to_connect_leaves_no_descriptor_also_while_no_garbage_is_collected() -> None:
    """A server that is frozen accepts connections, and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as frozen:

        def attempt() -> int:
            with pytest.raises(StoreError, match="cannot be reached"):
                open_store(f"postgresql://wheel@127.0.0.1:{frozen.getsockname()[1]}/wheel")
            return psutil.Process().num_fds()

        gc.collect()
        gc.disable()  # as in an idle scheduler, see ``scheduler.memory``
        try:
            first = attempt()
            assert attempt() <= first
        finally:
            gc.enable()
