"""A holder's transactions make few new versions of rows: PostgreSQL keeps each for every open transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN, Answer, LaneState
from celery_wheel.store.ports import Renewal, Retention
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import LEASE_MS
from tests.kit.holder import NOW, Holder, place
from tests.kit.servers.postgres import PostgresServer

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
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def holder(url: str) -> Iterator[Holder]:
    with closing(open_store(url, shards=2, lease_ms=LEASE_MS)) as store:
        yield Holder(store)


@pytest.fixture
def versions(holder: Holder, url: str) -> Iterator[Callable[[], Counter[str]]]:
    """Return the versions made since the last call, by table."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(_COUNT)

        def made() -> Counter[str]:
            return Counter(name for (name,) in session.execute("DELETE FROM version RETURNING name"))

        yield made


def test_each_transaction_of_a_holder_makes_one_version_of_its_row_at_most(
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


def test_a_renewal_writes_the_snapshot_apart_from_the_lease(
    holder: Holder, url: str, versions: Callable[[], Counter[str]]
) -> None:
    """Commits rewrite the row of the lease, which must not have the bytes of a snapshot in each version."""
    store = holder.store
    store.renew(0, holder.epoch, NOW, LEASE_MS, SNAPSHOT)
    assert store.renew_all([Renewal(0, holder.epoch, SNAPSHOT)], NOW, LEASE_MS) == {0}
    assert versions() == {"wheel_shard": 2, "wheel_snapshot": 2}
    assert store.state(0).snapshot == SNAPSHOT
    with psycopg.connect(url) as session:
        [(bytes_,)] = session.execute("SELECT pg_column_size(s) FROM wheel_shard AS s WHERE shard = 0").fetchall()
    assert bytes_ < 200


def test_a_former_holder_shows_no_snapshot(holder: Holder) -> None:
    assert isinstance(holder.store, SqlStore)
    former = holder.epoch
    holder.store.renew(0, former, NOW, LEASE_MS, {"of": "the former"})
    holder.acquire()
    assert holder.store.renew_all([Renewal(0, former, {"of": "nobody"})], NOW, LEASE_MS) == set()
    assert holder.store.state(0).snapshot == {"of": "the former"}
