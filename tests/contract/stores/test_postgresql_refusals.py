"""A PostgreSQL that lets nobody in is told apart from one that is out of reach, and from a commit without an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from celery_wheel.errors import StoreError
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import LEASE_MS
from tests.kit.patience import wait_until
from tests.kit.servers.postgres import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(max_connections="8", superuser_reserved_connections="2") as found:
        yield found


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    """Return the URL of a store whose user is no superuser: limits do not count for those."""
    found = server.new_database()
    name = found.rpartition("/")[2]
    server.sql("CREATE ROLE few LOGIN", f"ALTER DATABASE {name} OWNER TO few")
    yield found.replace("wheel@", "few@")
    server.sql(f"ALTER DATABASE {name} OWNER TO wheel")
    server.sql("DROP OWNED BY few CASCADE", database=name)
    server.sql("DROP ROLE few")


@contextmanager
def disconnected(server: PostgresServer, url: str) -> Iterator[Callable[[], str]]:
    """Yield what a write says, of a store whose sessions all ended; it has to connect anew."""
    with closing(open_store(url, lease_ms=LEASE_MS)) as store:

        def said() -> str:
            end(server, url)
            with pytest.raises(StoreError) as caught:
                _ask(store)
            return str(caught.value)

        yield said
        wait_until(lambda: _answers(store), "the store is written to again", every_s=0.05)


def end(server: PostgresServer, url: str) -> None:
    database = url.rpartition("/")[2]
    server.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{database}'")


def _ask(store: SqlStore) -> bool:
    """Write to the store; nothing is read first."""
    return bool(store.put_command(0, "cancel", b"{}"))


def _answers(store: SqlStore) -> bool:
    try:
        return _ask(store)
    except StoreError:
        return False


def test_the_limit_of_a_role_is_named(server: PostgresServer, url: str) -> None:
    with disconnected(server, url) as said:
        server.sql("ALTER ROLE few CONNECTION LIMIT 0")
        words = said()
        assert "has as many connections as its role or its database may have" in words
        assert "; nothing was sent to it; raise the limit: ALTER ROLE … CONNECTION LIMIT" in words
        server.sql("ALTER ROLE few CONNECTION LIMIT -1")


def test_the_limit_of_a_database_is_named(server: PostgresServer, url: str) -> None:
    name = url.rpartition("/")[2]
    with disconnected(server, url) as said:
        server.sql(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
        assert "; nothing was sent to it; raise the limit: ALTER ROLE … CONNECTION LIMIT" in said()
        server.sql(f"ALTER DATABASE {name} CONNECTION LIMIT -1")


def test_the_limit_of_the_server_is_named(server: PostgresServer, url: str) -> None:
    with disconnected(server, url) as said:
        end(server, url)
        others = list[Any]()
        with suppress(psycopg.OperationalError):
            while True:
                others.append(psycopg.connect(server.url().replace("wheel@", "few@")))
        words = said()
        assert "takes no more connections" in words
        assert "; nothing was sent to it; raise max_connections" in words
        for other in others:
            other.close()


def test_a_login_that_is_refused_is_named(server: PostgresServer, url: str) -> None:
    with disconnected(server, url) as said:
        server.sql("ALTER ROLE few NOLOGIN")
        words = said()
        assert "does not let this user in" in words
        assert "; nothing was sent to it; check user and password" in words
        server.sql("ALTER ROLE few LOGIN")


def test_a_database_that_is_away_is_named(server: PostgresServer, url: str) -> None:
    name = url.rpartition("/")[2]
    with disconnected(server, url) as said:
        end(server, url)
        server.sql(f"ALTER DATABASE {name} RENAME TO elsewhere")
        words = said()
        assert "does not exist" in words
        assert "; nothing was sent to it; make it: createdb" in words
        server.sql(f"ALTER DATABASE elsewhere RENAME TO {name}")


def test_a_server_that_is_gone_was_sent_nothing() -> None:
    with PostgresServer() as server, closing(open_store(server.url(), lease_ms=LEASE_MS)) as store:
        _ask(store)
        server.kill()
        with pytest.raises(StoreError):
            _ask(store)
        with pytest.raises(StoreError, match=r"cannot be reached .*; nothing was sent to it, and it is tried again; "):
            _ask(store)


def test_a_session_that_ends_before_the_commit_wrote_nothing(
    server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_store(url, lease_ms=LEASE_MS)) as store:
        with pytest.raises(StoreError, match=r"ended the session: .*; nothing was written; "):
            _write(store, lambda: end(server, url))
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
    from celery_wheel.store.postgresql.errors import Sent, describe

    error = psycopg.OperationalError(f'connection failed: connection to server at "h", port 5432 failed: {sentence}')
    words = describe("wheel on db", error, sent=Sent.NOTHING)
    assert words.startswith(f"the store wheel on db {said}"), words
    assert "; nothing was sent to it" in words
