"""A holder waits for no row of another shard: while all rows of that shard are locked, its work goes on.

A transaction of one engine names its shard alone. A process that holds several shards may commit the changes of many in
one transaction (``apply_all``), which writes them one by one where a row of one shard is locked. The tables without the
column ``shard`` are small and shared; a holder only adds to them.
"""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from celery_wheel.store import open_store
from celery_wheel.store.model import CANCEL, Position
from celery_wheel.store.sql.schema import metadata
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.test_bulk import BulkRig
from tests.kit.holder import NOW, Holder, place

LEASE_MS = 2_000
SHARED = {
    *("wheel_audit", "wheel_audit_chain", "wheel_dictionary", "wheel_load", "wheel_load_part", "wheel_meta"),
    *("wheel_revision", "wheel_route", "wheel_scheduler"),
}


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url, shards=2, lease_ms=LEASE_MS)) as opened:
        yield opened


@contextmanager
def locked(url: str, shard: int) -> Iterator[None]:
    """Lock every row of a shard, by a session that does not commit."""
    with psycopg.connect(url) as session:
        for table in metadata.sorted_tables:
            if "shard" in table.c:
                session.execute(f"SELECT FROM {table.name} WHERE shard = {shard} FOR UPDATE")  # type: ignore[arg-type]
        yield
        session.rollback()


def fill(store: SqlStore, shard: int) -> None:
    """Give a shard rows of the kinds that a holder writes."""
    holder = Holder(store, shard=shard, name="other")
    done, cancelled, _pending = holder.accept(NOW - 2, NOW - 1, NOW + 60_000)
    holder.apply(moves=[holder.stop(cancelled)], outcomes=[holder.outcome(cancelled.id)])
    holder.settle(Position(0, 0), place(done))
    store.put_commands([(shard, CANCEL, b"{}")])


def work(rig: BulkRig, store: SqlStore) -> None:
    rig.send_all([f"later-{n}" for n in range(4)], 60_000)
    rig.send("due", 1_000, queue="mail", routing_key="mail", group="g")
    rig.run()
    store.put_commands([(0, CANCEL, json.dumps({"id": str(uuid.uuid4()), "task_ids": ["later-0"]}).encode())])
    rig.begin(criteria={"queue": "celery"})
    rig.ingest(rounds=4)
    rig.run("prefetch", "dispatch", "settle", "release_rows", "announce", "keep_house", "tend", after_ms=1_000)


def test_the_holder_of_a_shard_waits_for_no_row_of_another(url: str, store: SqlStore) -> None:
    fill(store, 1)
    rig = BulkRig(store)
    rig.run("tend", rounds=2)
    with locked(url, 1):
        work(rig, store)
    assert rig.engine.stats.store_errors == 0
    assert rig.pushed == ["due"]
    assert {one for one in rig.cancelled() if one.startswith("later")} == {f"later-{n}" for n in range(4)}


@pytest.mark.slow
def test_rows_of_its_own_shard_stop_it(url: str, store: SqlStore) -> None:
    rig = BulkRig(store)
    rig.run("tend", rounds=2)
    with locked(url, 0):
        rig.send("due", 1_000)
        rig.run("ingest")
    assert rig.engine.stats.store_errors > 0


def test_the_tables_that_shards_share_are_few() -> None:
    assert {table.name for table in metadata.sorted_tables if "shard" not in table.c} == SHARED
