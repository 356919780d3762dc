"""Routes that no row has are forgotten, and never one that a row has or a transaction is about to give to a row."""

from collections import Counter

import pytest
from sqlalchemy import insert, select

from celery_wheel.store import model
from celery_wheel.store.model import HOUR_MS, ORIGIN, Route
from celery_wheel.store.ports import Retention
from celery_wheel.store.sql.schema import route, total
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.conftest import MakeSqlStore
from tests.kit.holder import NO_LIMIT, NOW, Holder, hour_of, place

LATER = NOW + 1_000


def routes(store: SqlStore) -> set[str]:
    with store.database.reading() as connection:
        return set(connection.execute(select(route.c.target)).scalars())


def accept(holder: Holder, *queues: str) -> None:
    rows = [holder.row(queue=queue, routing_key=queue) for queue in queues]
    holder.apply(rows=rows, tally=Counter(map(hour_of, rows)))


def dispatch(holder: Holder) -> None:
    """Settle all rows, and forget them."""
    rows = holder.slice()
    less = Counter({hour: -n for hour, n in holder.store.pending(holder.shard).items()})
    holder.apply(tally=less)
    holder.settle(ORIGIN, place(rows[-1]))
    holder.store.forget(holder.shard, holder.epoch, Retention(LATER, NO_LIMIT), 10_000)


def look(holder: Holder, hours: int) -> None:
    holder.store.expire(0, holder.epoch, NOW + hours * HOUR_MS, NOW)


@pytest.mark.slow
def test_a_route_without_rows_is_forgotten_an_hour_after_it_was_found(sql_store: SqlStore, sql_holder: Holder) -> None:
    accept(sql_holder, *[f"tenant-{n}" for n in range(1_200)])
    look(sql_holder, 1)
    dispatch(sql_holder)
    accept(sql_holder, "tenant-7", "mail")
    look(sql_holder, 2)
    assert len(routes(sql_store)) == 1_201
    look(sql_holder, 3)
    assert routes(sql_store) == {"tenant-7", "mail"}
    assert [row.route.queue for row in sql_holder.slice()] == ["tenant-7", "mail"]
    accept(sql_holder, "tenant-8")
    assert sql_holder.slice()[-1].route.queue == "tenant-8"


def test_a_commit_may_have_more_routes_than_the_process_remembers(
    sql_store: SqlStore, sql_holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_ROUTES", 2)
    names = [f"tenant-{n % 5}" for n in range(12)]
    accept(sql_holder, *names)
    accept(sql_holder, *names)
    assert [row.route.queue for row in sorted(sql_holder.slice(), key=place)] == names * 2
    assert routes(sql_store) == set(names)


def test_a_route_of_history_and_of_unreadable_messages_stays(
    sql_store: SqlStore, sql_holder: Holder, second: Holder
) -> None:
    accept(second, "of another shard")
    accept(sql_holder, "kept")
    [row] = sql_holder.slice()
    sql_holder.apply(moves=[sql_holder.stop(row)], tally=Counter(dict.fromkeys(sql_store.pending(0), -1)))
    sql_holder.apply(rejects=[sql_holder.reject()])
    for hours in (1, 2, 3):
        look(sql_holder, hours)
    assert routes(sql_store) == {"kept", "", "of another shard"}


def test_a_route_that_a_transaction_has_looked_up_is_kept(make_sql_store: MakeSqlStore) -> None:
    """The transaction gives it to a row, and commits later."""
    store, other = make_sql_store(), make_sql_store()
    holder, second = Holder(store), Holder(other, shard=1)
    accept(holder, "mail")
    dispatch(holder)
    accept(holder, "another")
    look(holder, 1)
    if store.name.endswith("sqlite3"):  # it has one writer
        return
    found = second.row(queue="mail", routing_key="mail")
    with other.database.writing() as connection:
        ids = other._catalogue.routes.ids(connection, [Route.of(found.message)])
        look(holder, 2)
        assert "mail" in routes(store)
    assert len(ids) == 1
    second.apply(rows=[found])
    for hours in (3, 4, 5):
        look(holder, hours)
    assert routes(store) == {"mail", "another"}
    assert [row.route.queue for row in second.slice()] == ["mail"]


@pytest.mark.parametrize("signed", [False, True])
def test_a_route_that_another_process_has_made_is_the_same_here(sql_store: SqlStore, *, signed: bool) -> None:
    """A value of another type would make another digest, and so another route at each start."""
    names = dict.fromkeys(("task", "exchange", "exchange_type", "target"), "")
    made = {**names, "routing_key": f"of another process, {signed}", "digest": bytes(16), "signed": signed}
    with sql_store.database.writing() as connection:
        id_ = connection.scalar(insert(route).values(made).returning(route.c.id))
        found = sql_store.catalogue.routes.read(connection, id_)
    assert (found.signed, type(found.signed)) == (signed, bool)


def test_the_routes_of_a_store_whose_rows_were_not_counted_stay(sql_store: SqlStore, sql_holder: Holder) -> None:
    accept(sql_holder, "mail")
    with sql_store.database.writing() as connection:
        connection.execute(total.delete().where(total.c.kind == "route"))
    for hours in (1, 2, 3):
        look(sql_holder, hours)
    assert routes(sql_store) == {"mail"}
