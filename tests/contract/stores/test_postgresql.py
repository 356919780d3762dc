"""Tests of the PostgreSQL store alone: its opening, sessions, plans, and errors for people.

On PostgreSQL an acknowledged commit is on disk, whatever the server's synchronous_commit becomes meanwhile.

A holder's transactions make few new versions of rows: PostgreSQL keeps each for every open transaction.
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN, Answer, LaneState, Position
from celery_wheel.store.ports import Renewal, Retention
from celery_wheel.store.postgresql.database import MAKING_LOCK
from celery_wheel.store.postgresql.errors import describe
from celery_wheel.store.postgresql.server import PARAMETERS
from celery_wheel.store.sql.statement import Prepared, span
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.values.text import MAX_TEXT_BYTES
from tests.contract.stores.backends import LEASE_MS
from tests.kit.holder import NOW, Holder, hour_of, place
from tests.kit.patience import wait_until
from tests.kit.processes import python
from tests.kit.servers.postgres import PostgresServer
from tests.kit.statements import prepared


def refusal(url: str, **options: object) -> str:
    with pytest.raises(StoreUnusable) as caught:
        open_store(url, **options)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.slow
def test_two_schedulers_that_start_at_once_make_one_store(url: str, tmp_path: Path) -> None:
    program = (
        "import sys; from celery_wheel.store import open_store; print('ready', flush=True); sys.stdin.readline(); "
        "store = open_store(sys.argv[1], shards=2); print(store.uuid, flush=True); store.close()"
    )
    starting = [python(tmp_path / f"{n}.log", "-c", program, url, stdin=True) for n in range(3)]
    for process in starting:
        process.wait_for("ready")
    for process in starting:
        process.tell()
    ends = [process.end() for process in starting]
    assert [code for code, _ in ends] == [0, 0, 0]
    assert len({printed for _, printed in ends}) == 1


def test_the_maker_of_a_new_store_is_waited_for_longer_than_a_lease(url: str, postgres: PostgresServer) -> None:
    """On a busy machine, the tables may take longer than any transaction of a holder."""
    waits = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND query_start < now() - interval '0.3 s' "
        f"AND datname = '{url.rpartition('/')[2]}'"
    )
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(url) as maker:
            maker.execute(f"SELECT pg_advisory_xact_lock({MAKING_LOCK})")
            opening = pool.submit(open_store, url, lease_ms=100)
            wait_until(lambda: postgres.sql(waits) or opening.done(), "it waits for three leases, or has given up")
        opening.result().close()


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingError, match=r"pip install 'celery-wheel\[postgresql\]'") as caught:
        open_store("postgresql://user:secret@db/wheel")
    assert "secret" not in str(caught.value)


def test_opening_without_create_makes_nothing(url: str, postgres: PostgresServer) -> None:
    assert "has no tables of a store; a scheduler makes them" in refusal(url, create=False)
    database = url.rsplit("/", 1)[1]
    assert postgres.sql("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'wheel%'", database=database) == [(0,)]


def test_an_unreachable_server_is_named_without_the_password() -> None:
    said = refusal("postgresql://user:secret@127.0.0.1:1/wheel?options=-cfoo%3Dhidden")
    assert said.startswith("the store wheel on 127.0.0.1:1 cannot be reached (")
    assert "check that the server runs" in said
    assert not re.search("secret|hidden", said)


def test_a_missing_database_or_right_to_make_tables_is_named(url: str, postgres: PostgresServer) -> None:
    assert "does not exist" in refusal(postgres.url("nowhere"))
    postgres.sql("DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN")
    said = refusal(url.replace("wheel@", "guest:secret@"))
    assert "does not permit this user to do it" in said
    assert "secret" not in said


def test_a_session_gives_up_before_the_lease_is_over(url: str) -> None:
    expected = {
        "idle_in_transaction_session_timeout": "1500ms",
        "tcp_user_timeout": "1500",
        "lock_timeout": "3s",
        "statement_timeout": "1min",
        "transaction_isolation": "read committed",
    }
    with closing(open_store(url, lease_ms=3_000)) as store:
        with store.database.writing() as connection:
            shown = {name: connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in expected}
        with store.database.making() as connection:
            making = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one()
    assert making == "1min", "a store that is made on a busy machine is no holder that stopped"
    assert shown == expected


@pytest.mark.parametrize(("durability", "durable", "commit"), [
    ("disk", None, "on"), ("disk", False, "off"),
    ("memory", None, "off"), ("memory", False, "off"), ("memory", True, "on"),
])  # fmt: skip
def test_only_durable_commits_wait_for_the_disk(url: str, durability: str, durable: bool | None, commit: str) -> None:
    store = open_store(url, durability=durability)
    with store.database.writing(durable=durable) as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == commit
    store.close()


def test_the_clock_is_the_servers(pg_store: SqlStore, postgres: PostgresServer) -> None:
    [(before,)] = postgres.sql("SELECT extract(epoch FROM clock_timestamp()) * 1000")
    now_ms = pg_store.now_ms()
    [(after,)] = postgres.sql("SELECT extract(epoch FROM clock_timestamp()) * 1000")
    assert now_ms is not None
    assert before - 1 <= now_ms <= after


def test_the_tables_have_the_parameters_of_the_header(url: str, pg_store: SqlStore, postgres: PostgresServer) -> None:
    found = postgres.sql(
        "SELECT relname, reloptions FROM pg_class WHERE relname LIKE 'wheel%' AND reloptions IS NOT NULL",
        database=url.rsplit("/", 1)[1],
    )
    assert {name: dict(option.split("=") for option in options) for name, options in found} == PARAMETERS


#: Statement → the index that its plan must use.
PLANS = {
    "intake.known": "wheel_timer_envelope",
    "dispatch.count": "wheel_timer_position",
    "dispatch.sizes": "wheel_timer_position",
    "history.ids_in_range": "wheel_timer_position",
    "dispatch.summary": "wheel_timer_position",
    "dispatch.slice": "wheel_timer_position",
    "dispatch.find": "wheel_timer_task",
    "intake.read_inbox": "wheel_inbox_shard",
    "intake.inbox_sizes": "wheel_inbox_shard",
    "dispatch.pending": "wheel_tally_place",
    "history.forget_outcome": "wheel_outcome_timer",
    "changes.move": "wheel_timer_pkey",
    "holding.lanes": "wheel_lane_place",
    "changes.close_lane": "wheel_lane_place",
    "history.forget_lanes": "wheel_timer_position",
    "control.tombstones": "wheel_tombstone_place",
    "control.tombstone_ids": "wheel_tombstone_place",
    "history.last_outcome": "wheel_outcome_timer",
    "history.archived_in_range": "wheel_outcome_timer",
    "intake.committed": "wheel_load_state",
    "intake.chunk_sizes": "wheel_load_chunk_shard",
    "intake.read_chunks": "wheel_load_chunk_shard",
    "intake.accept_chunk": "wheel_load_chunk_pkey",
    "loads.finish": "wheel_load_state",
    "schedules.due": "wheel_schedule_due",
    "schedules.next": "wheel_schedule_due",
    "schedules.named": "wheel_schedule_name",
    "schedules.step": "wheel_schedule_pkey",
    "schedules.remove": "wheel_schedule_pkey",
    "schedules.runs": "wheel_run_instant",
    "schedules.pending_runs": "wheel_run_instant",
    "schedules.old_skips": "wheel_schedule_skip_age",
    "schedules.forget_run": "wheel_run_pkey",
    "schedules.runs_at": "wheel_run_pkey",
    "schedules.open_runs": "wheel_run_open",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_statement_uses_its_index(pg_store: SqlStore, name: str) -> None:
    """The plans hold without statistics too, and after plans for empty tables.

    PostgreSQL finds fifty tasks by their ids once its statistics have the number of rows; before, a scan of 3,000 rows
    is as cheap. It finds an empty lane by its position also when its statistics say that all rows are in another lane.
    """
    Holder(pg_store).accept(*range(NOW, NOW + 3_000))
    if name in ("dispatch.find", "history.forget_lanes"):
        with pg_store.database.writing() as connection:
            connection.exec_driver_sql("ANALYZE wheel_timer")
    statement = prepared(pg_store, name)
    given = {
        **{n: "t" for n in statement.names if n[:5] in ("task_", "name_")},
        **{n: b"t" for n in statement.names if name == "dispatch.find" and n[:5] == "task_"},
        "nullif_1": "",
        "shard": 0,
        "after": "t",
        **{n: n[9:].zfill(16).encode() for n in statement.names if n[:9] == "envelope_"},
    }
    plan = explained(pg_store, statement, tuple(given.get(place, 1) for place in statement.names))
    assert PLANS[name] in plan
    assert not re.search(r"Seq Scan|Filter: \((envelope|task)_id", plan)


def explained(store: SqlStore, statement: Prepared, places: tuple[object, ...]) -> str:
    with store.database.reading() as connection:
        return "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement.sql}", places).scalars())


def test_removed_rows_are_looked_up_one_by_one_among_unarchived_outcomes(pg_store: SqlStore) -> None:
    """A removed settlement must not read all of those outcomes: there may be a million."""
    holder = Holder(pg_store)
    rows = holder.accept(*range(NOW, NOW + 3_000))
    holder.apply(outcomes=[holder.outcome(row.id, "moved") for row in rows])
    with pg_store.database.writing() as connection:
        connection.exec_driver_sql("ANALYZE wheel_timer, wheel_outcome, wheel_shard")
    statement = prepared(pg_store, "history.archived_in_range")
    given = {**span(0, 0, ORIGIN, Position(NOW + 3_000, 0)), "limit": 501}
    plan = explained(pg_store, statement, tuple(given[name] for name in statement.names))
    assert "wheel_outcome_timer" in plan
    assert "wheel_outcome_pkey" not in plan


def test_every_text_that_the_rule_allows_fits_into_every_index(pg_store: SqlStore) -> None:
    """An index row has room for 2,704 bytes, and a random text does not compress."""
    rng = random.Random(1)
    longest = ["".join(chr(rng.randrange(0x10000, 0x110000)) for _ in range(MAX_TEXT_BYTES // 4)) for _ in range(6)]
    names = ("task", "task_id", "exchange", "routing_key", "queue", "key")
    holder = Holder(pg_store)
    row = holder.row(**dict(zip(names, longest, strict=True)))
    holder.apply(rows=[row], tally={hour_of(row): 1})
    assert [row.route.task for row in holder.slice()] == longest[:1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (psycopg.errors.DiskFull("could not extend file"), "has no room on its disk .*; nothing was written, .*; free"),
        (psycopg.errors.SerializationFailure("could not serialize"), "rolled back .*nothing was written"),
        (psycopg.errors.DeadlockDetected("deadlock"), "rolled back the transaction .*is tried again"),
        (psycopg.errors.ReadOnlySqlTransaction("no"), "is read-only: it is a standby .*attrs=read-write"),
        (psycopg.DataError("text cannot contain NUL"), "cannot keep a value .*nothing was written"),
        (psycopg.errors.DuplicatePreparedStatement("exists"), "gives this process's sessions to .*pool_mode=session"),
        (psycopg.errors.AdminShutdown("terminating"), "ended the session.*may be committed or not"),
        (psycopg.errors.CrashShutdown("crash"), "is starting, stopping or recovering .*may be committed or not"),
        (psycopg.errors.InvalidPassword("no"), "does not let this user in .*check user and password"),
        (psycopg.errors.UndefinedTable("no"), "is incomplete"),
        (psycopg.OperationalError("server closed the connection"), "cannot be reached .*may be committed or not"),
        (psycopg.errors.SyntaxError("?"), "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_has_state_consequence_and_remedy(error: Exception, said: str) -> None:
    assert re.match(f"the store wheel on db {said}", describe("wheel on db", error))
    read = describe("wheel on db", error, reading=True)
    assert "; nothing was read; " in read
    assert not re.search("written|committed|adopted|change is", read)


COMMITS = 20


def _turn_off(server: PostgresServer, read: Callable[[str], object]) -> None:
    """Change the configuration; returns when the open session has read it."""
    server.sql("ALTER SYSTEM SET synchronous_commit = off", "SELECT pg_reload_conf()")
    of_the_server = "SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'"
    wait_until(lambda: read(of_the_server) == "off", "the open session has read the configuration")


@pytest.mark.slow
def test_no_acknowledged_commit_is_lost_where_a_reload_turns_synchronous_commit_off() -> None:
    """The log is written seldom, so that every commit that did not wait for it is lost with the server."""
    with PostgresServer(wal_writer_delay="10s") as server:
        with closing(open_store(server.url(), lease_ms=LEASE_MS)) as store:
            holder = Holder(store)
            holder.accept(NOW)
            with store.database.reading() as connection:
                _turn_off(server, lambda query: connection.exec_driver_sql(query).scalar_one())
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
        _turn_off(server, lambda query: connection.exec_driver_sql(query).scalar_one())
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


#: Each update is a new version.
_COUNT = """
    CREATE TABLE version (name text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO version VALUES (TG_TABLE_NAME); RETURN NULL; END';
    CREATE TRIGGER note AFTER UPDATE ON wheel_shard FOR EACH ROW EXECUTE FUNCTION note();
    CREATE TRIGGER note AFTER UPDATE ON wheel_snapshot FOR EACH ROW EXECUTE FUNCTION note();
"""

#: A snapshot as holders write it.
SNAPSHOT: dict[str, object] = {"recent": list(range(300)), "levels": [list(range(300))] * 4}


@pytest.fixture
def holder(pg_store: SqlStore) -> Holder:
    return Holder(pg_store)


@pytest.fixture
def versions(holder: Holder, url: str) -> Iterator[Callable[[], Counter[str]]]:
    """Return the versions made since the last call, by table."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(_COUNT)

        def made() -> Counter[str]:
            return Counter(name for (name,) in session.execute("DELETE FROM version RETURNING name"))

        yield made


def test_a_transaction_makes_one_version_of_its_row_at_most(
    holder: Holder, versions: Callable[[], Counter[str]]
) -> None:
    [row] = holder.accept(NOW)
    assert versions() == {"wheel_shard": 1}
    holder.settle(ORIGIN, place(row), at_ms=NOW - 1)
    assert versions() == {"wheel_shard": 1}, "a settlement has a new seq, and bytes"
    holder.apply(lanes=[LaneState(0, place(row), place(row))])
    holder.apply(answers=[Answer("01900000-0000-7000-8000-000000000001", {}, NOW)])
    holder.store.expire(0, holder.epoch, NOW, NOW)
    holder.store.forget(0, holder.epoch, Retention(before_ms=NOW - 60_000, max_bytes=1_000_000), 10)
    assert versions() == {}, "no seq is new"


def test_a_renewal_writes_the_snapshot_apart(holder: Holder, url: str, versions: Callable[[], Counter[str]]) -> None:
    """Commits rewrite the row of the lease, which must not have the bytes of a snapshot in each version."""
    holder.store.renew(0, holder.epoch, NOW, LEASE_MS, SNAPSHOT)
    assert holder.store.renew_all([Renewal(0, holder.epoch, SNAPSHOT)], NOW, LEASE_MS) == {0}
    assert versions() == {"wheel_shard": 2, "wheel_snapshot": 2}
    assert holder.store.state(0).snapshot == SNAPSHOT
    with psycopg.connect(url) as session:
        [(bytes_,)] = session.execute("SELECT pg_column_size(s) FROM wheel_shard AS s WHERE shard = 0").fetchall()
    assert bytes_ < 200
