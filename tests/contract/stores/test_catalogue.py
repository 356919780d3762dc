"""The catalogue of a SQL store: routes are kept once, messages are packed, and both are found after a restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import delete, text

from celery_wheel.errors import Fenced, StoreError
from celery_wheel.store.model import Change
from celery_wheel.store.sql.catalogue import FIRST_LOOK
from celery_wheel.store.sql.schema import dictionary, route, timer
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.test_tables import rows_of
from tests.kit.holder import EVERYTHING, NOW, Holder
from tests.kit.rows import values_of

BODY = b"[[], {}, {}]" * 50


def test_messages_of_one_route_share_its_row(sql_holder: Holder, sql_store: SqlStore) -> None:
    sql_holder.accept(*range(NOW, NOW + 50), queue="mail")
    sql_holder.accept(*range(NOW, NOW + 50), queue="mail")
    assert len(rows_of(sql_store, route)) == 1
    sql_holder.accept(NOW, queue="mail", priority=3)
    assert len(rows_of(sql_store, route)) == 2
    assert len({id(row.route) for row in sql_holder.slice()}) == 2


def test_a_route_of_a_change_that_was_rolled_back_is_made_again(sql_holder: Holder, sql_store: SqlStore) -> None:
    row = sql_holder.row(NOW, queue="mail")
    with pytest.raises(Fenced):
        sql_store.apply(0, sql_holder.epoch + 1, Change(rows=[row]))
    sql_holder.apply(rows=[row])
    [found] = sql_holder.slice()
    assert found.route.queue == "mail"


def test_a_store_packs_by_what_it_learned_also_after_a_restart(make_sql_store: Callable[[], SqlStore]) -> None:
    store = make_sql_store()
    holder = Holder(store)
    holder.accept(*range(NOW, NOW + FIRST_LOOK), body=b'[["Dear customer, please pay your bill"], {}, {}]')
    holder.accept(NOW, body=b'[["Dear customer, please pay"], {}, {}]')
    before = [values_of(row) for row in holder.slice()]
    assert len(rows_of(store, dictionary)) == 2
    after = make_sql_store().slice(0, 0, *EVERYTHING)
    assert [values_of(row) for row in after] == before
    assert {row.packing.number for row in after} == {row.packing.number for row in holder.slice()}


@pytest.mark.parametrize("table", [route, dictionary])
def test_a_missing_part_of_the_catalogue_is_named(make_sql_store: Callable[[], SqlStore], table: object) -> None:
    Holder(make_sql_store()).accept(NOW, body=BODY)
    again = make_sql_store()
    with again.database.writing() as connection:
        connection.execute(delete(table))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="which is missing: a part of it was deleted or not restored"):
        again.slice(0, 0, *EVERYTHING)
    assert len(rows_of(again, timer)) == 1


def test_a_holder_packs_by_no_dictionary_that_the_database_has_lost(make_sql_store: Callable[[], SqlStore]) -> None:
    store = make_sql_store()
    holder = Holder(store)
    holder.accept(NOW, body=BODY)
    lose_the_catalogue(store)
    holder.acquire()
    holder.accept(NOW, body=BODY)
    [found] = make_sql_store().slice(0, 0, *EVERYTHING)
    assert found.parts().body == BODY


def test_a_route_that_has_the_number_of_a_lost_one_is_read_anew(sql_holder: Holder, sql_store: SqlStore) -> None:
    sql_holder.accept(NOW, queue="mail")
    sql_holder.slice()
    lose_the_catalogue(sql_store)
    sql_holder.acquire()
    sql_holder.accept(NOW, queue="sms")
    [found] = sql_holder.slice()
    assert found.route.queue == "sms"


def lose_the_catalogue(store: SqlStore) -> None:
    """Leave the database as a standby may be that became the server without the last commits."""
    with store.database.writing() as connection:
        for table in (timer, route, dictionary):
            connection.execute(delete(table))
        if connection.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE wheel_route ALTER COLUMN id RESTART"))
            connection.execute(text("ALTER TABLE wheel_dictionary ALTER COLUMN id RESTART"))
