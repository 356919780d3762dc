"""``schedule_many`` into real stores: the content of the inboxes, also after a failure in the middle."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from celery_wheel import Celery
from celery_wheel.broker import shard_of
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.bulk_load import schedule_many
from celery_wheel.engine.intake.inbox import parse
from celery_wheel.errors import StoreError
from celery_wheel.store.model import Message, Row
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import SHARDS, SqlBackend
from tests.kit.holder import Holder
from tests.kit.rows import values_of
from tests.kit.servers.postgres import PostgresServer

AT = datetime(2099, 1, 1, tzinfo=UTC)
ODD = "it's \0 100% \ud800 ü 🕰"


@pytest.fixture
def app() -> Iterator[Any]:
    found = Celery("proj", broker="memory://", set_as_current=False)
    yield found
    found.close()


def rows(count: int) -> list[Any]:
    return [
        ("proj.remind", (n, ODD), {"x": None}, AT + timedelta(seconds=n), "mail", f"key-{n % 5}", n % 3)
        for n in range(count)
    ]


def waiting(store: SqlStore) -> list[Message]:
    found: list[Message] = []
    for shard in range(SHARDS):
        for item in store.read_inbox(shard, 10_000):
            messages = parse(item, QueuedMessageReader().decode, str)
            assert isinstance(messages, list)
            for message in messages:
                assert isinstance(message, Message), message
                assert shard_of(message.key, message.task_id, SHARDS) == shard
                found.append(message)
    return found


def test_a_load_is_in_the_inboxes_in_order(app: Any, sql_store: SqlStore) -> None:
    done = schedule_many(app, sql_store, rows(230), group=50, keep_ids=True)
    assert (done.count, done.rejected) == (230, [])
    found = waiting(sql_store)
    assert sorted(one.task_id for one in found) == sorted(done.ids or [])
    for key in {one.key for one in found}:
        of_key = [one.eta_ms for one in found if one.key == key]
        assert of_key == sorted(of_key)


def test_accepted_messages_equal_the_loaded_ones(app: Any, sql_holder: Holder) -> None:
    """Every value survives the columns: texts with NUL and lone surrogates stand in the body, as escapes."""
    store = sql_holder.store
    schedule_many(app, store, rows(60), group=25)
    items = store.read_inbox(0, 1_000)
    messages = [one for one in waiting(store) if shard_of(one.key, one.task_id, SHARDS) == 0]  # type: ignore[arg-type]
    assert messages
    new = [replace(sql_holder.row(one.eta_ms), message=one) for one in messages]
    sql_holder.apply(rows=new, inbox=[item.id for item in items])
    assert store.read_inbox(0, 1_000) == []
    expected = [Row.of(one.message, one.id, 0, one.due_ms, one.seq) for one in new]
    found = sql_holder.slice()
    assert len(found) == len(expected)
    for row, loaded in zip(found, sorted(expected, key=attrgetter("position")), strict=True):
        assert values_of(row) == values_of(loaded)


def test_a_failure_midway_reports_the_durable_part(app: Any, sql_backend: SqlBackend, sql_store: SqlStore) -> None:
    database, seen = str(make_url(sql_backend.url).database), list[int]()

    def progress(done: Any) -> None:
        """Make the commit of the fourth group fail."""
        seen.append(len(waiting(sql_store)))
        if done.rows == 60 and Path(database).exists():
            Path(database).unlink()
        elif done.rows == 60:
            with psycopg.connect(sql_backend.url) as session:
                session.execute("ALTER TABLE wheel_inbox ADD CHECK (kind <> 'messages') NOT VALID")

    with pytest.raises(StoreError) as caught:
        schedule_many(app, sql_store, rows(230), group=20, progress=progress)
    scheduled = caught.value.scheduled  # type: ignore[attr-defined]
    assert (scheduled.rows, scheduled.count, seen) == (60, 60, [20, 40, 60])
    assert "60 tasks, of the first 60 rows, are in the store" in caught.value.__notes__[0]
    if "postgresql" in sql_backend.url:
        assert len(waiting(sql_store)) == 60


def test_an_ended_session_loses_nothing_that_was_reported_durable(app: Any, postgres: PostgresServer) -> None:
    given = rows(100)

    def progress(done: Any) -> None:
        if done.rows == 40:
            postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    with closing(SqlBackend(postgres.new_database())()) as store:
        try:
            count = schedule_many(app, store, given, group=20, progress=progress).rows
        except StoreError as error:  # the store may also have replaced the dead session in time
            count = error.scheduled.rows  # type: ignore[attr-defined]
            assert count == 40
        schedule_many(app, store, given[count:], group=20)
        found = sorted(waiting(store), key=attrgetter("eta_ms"))
        assert [int(one.body[2:].partition(b",")[0]) for one in found] == list(range(100))
