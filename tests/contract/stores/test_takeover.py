"""On PostgreSQL a standby takes the shard over within 3 seconds, wherever its holder died or stopped."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from celery_wheel.errors import Fenced, StoreError
from celery_wheel.store import open_store
from celery_wheel.store.model import Change
from celery_wheel.store.ports import Renewal
from celery_wheel.store.postgresql.sessions import StoppedHolders
from celery_wheel.store.sql import changes
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.stopped import LEASE, ROWS
from tests.kit.holder import EVERYTHING, NOW, Holder, acquire
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process, python
from tests.kit.servers.postgres import PostgresServer
from tests.kit.warm import CELERY

#: The promised time on a quiet machine.
TAKEOVER_S = 3.0

LOCKED = "SELECT 1 FROM wheel_shard WHERE shard = 0 FOR UPDATE"


@pytest.fixture
def standby(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url, shards=2, lease_ms=LEASE)) as store:
        yield store


def _database(url: str) -> str:
    return url.rsplit("/", 1)[1]


@contextmanager
def held(url: str, where: str, folder: Path) -> Iterator[Process]:
    with python(folder / "held.log", "-m", "tests.contract.stores.stopped", "held", url, where, kind=CELERY) as process:
        process.wait_for("it stopped")
        yield process


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("where", ["between", "writing", "copying"])
def test_a_standby_takes_over(url: str, standby: SqlStore, tmp_path: Path, where: str, how: signal.Signals) -> None:
    with held(url, where, tmp_path) as process:
        assert standby.acquire(0, "host-b", NOW, LEASE) is None
        process.signal(how)
        began = time.monotonic()
        assert acquire(standby, name="host-b", lease_ms=LEASE, waits=True) == 2
        took_s = time.monotonic() - began
        assert standby.count(0, 0, *EVERYTHING) in ((0, 1) if where != "between" else (ROWS + 1,))
        standby.apply(0, 2, Change())
    assert took_s <= patience(TAKEOVER_S)


def test_a_standby_does_not_wait_for_a_lease_that_ends_meanwhile(
    url: str, standby: SqlStore, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the standby waits behind the stopped holder, for as long as lock_timeout, and fails."""

    def end_and_let_it_run_out(self: StoppedHolders, connection: Connection, *shard: int) -> bool:
        free = end(self, connection, *shard)
        wait_until(lambda: _left_ms(standby, postgres, url) < 0, "the lease is over")
        return free

    end = StoppedHolders.end
    with held(url, "copying", tmp_path) as process:
        # The session of a store with this lease would end with half of it, in the middle of this wait.
        with closing(open_store(url, shards=2, lease_ms=10 * LEASE)) as patient:
            process.signal(signal.SIGSTOP)
            monkeypatch.setattr(StoppedHolders, "end", end_and_let_it_run_out)
            assert patient.acquire(0, "host-b", NOW, LEASE) is None
            monkeypatch.undo()
        assert acquire(standby, name="host-b", lease_ms=LEASE, waits=True) == 2


def test_a_standby_waits_for_no_transaction_of_a_holder(url: str, standby: SqlStore, postgres: PostgresServer) -> None:
    """The holder's lease is over, and the transaction may be about to renew it."""
    Holder(standby)
    standby.renew(0, 1, NOW, 1, {})
    wait_until(lambda: _left_ms(standby, postgres, url) < 0, "the lease is over")
    with closing(open_store(url, shards=2, lease_ms=LEASE)) as other:
        with psycopg.connect(url) as session:
            session.execute(LOCKED)
            assert other.acquire(0, "host-b", NOW, LEASE) is None
        assert other.acquire(0, "host-b", NOW, LEASE) == 2


def test_a_shard_whose_row_is_locked_delays_no_renewal_of_another(url: str, standby: SqlStore) -> None:
    renewals = [Renewal(shard, Holder(standby, shard=shard).epoch, {}) for shard in (0, 1)]
    with psycopg.connect(url) as session:
        session.execute(LOCKED)
        assert standby.renew_all(renewals, NOW, LEASE) == {1}
    assert standby.renew_all(renewals, NOW, LEASE) == {0, 1}


def _left_ms(store: SqlStore, postgres: PostgresServer, url: str) -> int:
    [(until_ms,)] = postgres.sql("SELECT lease_until_ms FROM wheel_shard WHERE shard = 0", database=_database(url))
    return int(until_ms) - (store.database.now_ms() or 0)


def test_a_holder_that_wakes_up_after_a_takeover_is_fenced(url: str, standby: SqlStore) -> None:
    with closing(open_store(url, shards=2)) as sleeper:
        holder = Holder(sleeper, name="host-a")
        sleeper.renew(0, holder.epoch, NOW, 1, {})
        acquire(standby, name="host-b", waits=True)
        for write in (lambda: holder.accept(NOW), lambda: sleeper.renew(0, holder.epoch, NOW, LEASE, {})):
            with pytest.raises(Fenced):
                write()
        assert sleeper.acquire(0, "host-a", NOW, LEASE) is None


def test_a_holder_that_commits_keeps_its_shard(url: str, standby: SqlStore) -> None:
    """While a holder commits, no standby acquires its shard, even where the lease ends meanwhile, and no call fails."""
    with closing(open_store(url, shards=2, lease_ms=LEASE)) as store:
        holder = Holder(store)
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            holder.accept(NOW)
            store.renew(0, holder.epoch, NOW, LEASE, {})
            # Two containers may have the same name.
            assert standby.acquire(0, "host-b", NOW, LEASE) is standby.acquire(0, "host-a", NOW, LEASE) is None


def test_a_server_clock_put_back_delays_no_takeover(url: str, standby: SqlStore, postgres: PostgresServer) -> None:
    """The lease of a holder that died just before ends an hour from now."""
    with closing(open_store(url, shards=2, lease_ms=LEASE)) as dead:
        Holder(dead)
    postgres.sql("UPDATE wheel_shard SET lease_until_ms = lease_until_ms + 3600000", database=_database(url))
    assert standby.acquire(0, "host-b", NOW, LEASE) == 2


@pytest.fixture
def users(url: str, postgres: PostgresServer) -> Iterator[tuple[str, str]]:
    """Return the URLs of the tables' owner and of another user with rights to them, for schedulers of two users."""
    roles = ["owner_of_it", "other_one"]
    database = _database(url)
    postgres.sql(*(f"CREATE ROLE {role} LOGIN" for role in roles), f"ALTER DATABASE {database} OWNER TO {roles[0]}")
    owner, other = (url.replace("wheel@", f"{role}@") for role in roles)
    open_store(owner, shards=2).close()
    postgres.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {roles[1]}", database=database)
    yield owner, other
    postgres.sql(f"ALTER DATABASE {database} OWNER TO wheel")
    postgres.sql(*(f"DROP OWNED BY {role} CASCADE" for role in roles), database=database)
    postgres.sql(*(f"DROP ROLE {role}" for role in roles))


def test_a_role_that_may_end_no_session_is_named(
    users: tuple[str, str], postgres: PostgresServer, tmp_path: Path
) -> None:
    owner, other = users
    with closing(open_store(other, shards=2, lease_ms=LEASE)) as standby, held(owner, "copying", tmp_path) as process:
        process.signal(signal.SIGSTOP)
        said: list[str] = []

        def refused() -> bool:
            try:
                assert standby.acquire(0, "host-b", NOW, LEASE) is None
            except StoreError as error:
                said.append(str(error))
            return bool(said) and "may not end" in said[-1]

        wait_until(refused, "the standby names the missing right")
        assert "of the user owner_of_it" in said[-1]
        assert "the shard is not taken" in said[-1]
        postgres.sql("GRANT pg_signal_backend TO other_one")
        assert acquire(standby, name="host-b", lease_ms=LEASE, waits=True) == 2


def test_a_session_that_is_ended_in_the_middle_of_a_change_writes_nothing(
    postgres: PostgresServer, standby: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Holder(standby)
    holder.accept(NOW)
    before = holder.highest_seq

    def write_and_be_ended(connection: Connection, *change: Any) -> Any:
        fenced = write(connection, *change)
        driver: Any = connection.connection.dbapi_connection
        postgres.sql(f"SELECT pg_terminate_backend({driver.info.backend_pid}, 5000)")
        return fenced

    write = changes.write
    monkeypatch.setattr(changes, "write", write_and_be_ended)
    with pytest.raises(StoreError, match=r"ended the session|terminating connection"):
        holder.accept(NOW)
    monkeypatch.undo()
    assert standby.state(0).seq == before
    holder.accept(NOW)
    assert standby.count(0, 0, *EVERYTHING) == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_store_works_again_after_a_restart_of_the_server(how: str) -> None:
    with PostgresServer() as server:
        store = open_store(server.url())
        holder = Holder(store)
        rows = holder.accept(NOW, NOW + 1)
        if how == "kill":
            server.kill()
            with pytest.raises(StoreError, match=r"cannot be reached|ended the session"):
                holder.accept(NOW)
            server.start()
        else:
            server.restart()

        def reads() -> bool:
            with suppress(StoreError):
                return bool(store.state(0))
            return False

        wait_until(reads, "the store reads again")
        holder.acquire()
        assert holder.ids() == [row.id for row in rows]
        holder.accept(NOW)
        store.close()
