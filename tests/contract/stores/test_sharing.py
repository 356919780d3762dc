"""``apply_all``: the changes of several shards in one transaction, of which each fails alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

from celery_wheel.errors import (
    Fenced,
    NothingWritten,
    RequestWithdrawn,
    StoreError,
    StoreRolledBack,
    WheelError,
)
from celery_wheel.store.model import Change, LaneState, Position, ShardChange, TallyKey
from celery_wheel.store.ports import Store
from celery_wheel.store.sql import changes
from celery_wheel.store.sql import store as store_module
from celery_wheel.store.sql.store import CommitFailed, SqlStore
from tests.kit.holder import EVERYTHING, NOW, Holder, hour_of, ids, place

SHARDS = 2


def accepting(holder: Holder, *due_ms: int, **parts: Any) -> ShardChange:
    rows = [holder.row(due) for due in due_ms]
    tally = {hour_of(row): len(rows) for row in rows}
    change = Change(seq=holder.highest_seq, rows=rows, tally=tally, **parts)
    return ShardChange(holder.shard, holder.epoch, change)


def failures(answers: list[WheelError | None]) -> list[type[WheelError] | None]:
    return [None if one is None else type(one) for one in answers]


def counts(store: Store) -> list[int]:
    return [store.count(shard, 0, *EVERYTHING) for shard in range(SHARDS)]


@pytest.fixture
def holders(store: Store) -> list[Holder]:
    return [Holder(store, shard) for shard in range(SHARDS)]


@pytest.fixture
def sql_holders(sql_store: SqlStore) -> list[Holder]:
    return [Holder(sql_store, shard) for shard in range(SHARDS)]


def test_each_shard_has_its_own_rows_counts_and_settlements(store: Store, holders: list[Holder]) -> None:
    accepted = [accepting(one, *range(NOW, NOW + 1 + one.shard)) for one in reversed(holders)]
    assert failures(store.apply_all(accepted)) == [None] * SHARDS
    settling = []
    for shard, epoch, change in accepted:
        assert holders[shard].ids() == ids(change.rows)
        assert list(store.pending(shard).values()) == [1 + shard]
        done, end = holders[shard].settlement(Position(0, 0), place(change.rows[0])), place(change.rows[0])
        parts: dict[str, Any] = {"settlements": [done], "tally": {hour_of(change.rows[0]): -1}}
        more = Change(seq=holders[shard].highest_seq, lanes=[LaneState(0, end, end)], **parts)
        settling.append(ShardChange(shard, epoch, more))
    assert failures(store.apply_all(settling)) == [None] * SHARDS
    for shard, _, change in accepted:
        assert store.lanes(shard)[0].offset == place(change.rows[0])
        assert sum(store.pending(shard).values()) == shard
        assert store.state(shard).accepted == 1 + shard


def test_the_changes_are_one_transaction(sql_store: SqlStore, sql_holders: list[Holder]) -> None:
    statements: list[str] = []

    def noted(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    sql_holders[0].accept(NOW)  # the first message makes a dictionary, in a transaction of its own
    with sql_store.database.writing() as connection:
        engine = connection.engine
    event.listen(engine, "before_cursor_execute", noted)
    try:
        sql_store.apply_all([accepting(one, NOW) for one in sql_holders])
    finally:
        event.remove(engine, "before_cursor_execute", noted)
    assert statements.count("COMMIT") == 1


@pytest.mark.parametrize(("rows", "sizes"), [(1, [2]), (2, [1, 1])])
def test_a_transaction_has_a_bounded_number_of_rows(
    sql_store: SqlStore,
    sql_holders: list[Holder],
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    sizes: list[int],
) -> None:
    """No lease of its shards is renewed until it ends."""
    found, write = list[int](), changes.write

    def noted(connection: Any, statements: Any, catalogue: Any, wanted: Any) -> Any:
        found.append(len(wanted))
        return write(connection, statements, catalogue, wanted)

    monkeypatch.setattr(changes, "write", noted)
    monkeypatch.setattr(store_module, "SHARED_ROWS", 3)
    wanted = [accepting(one, *range(NOW, NOW + rows)) for one in sql_holders]
    assert failures(sql_store.apply_all(wanted)) == [None] * SHARDS
    assert found == sizes
    assert counts(sql_store) == [rows] * SHARDS


def test_a_shard_with_another_holder_is_fenced_alone(store: Store, holders: list[Holder]) -> None:
    wanted = [accepting(one, NOW) for one in holders]
    former = holders[1].acquire() - 1
    assert wanted[1].epoch == former
    assert failures(store.apply_all(wanted)) == [None, Fenced]
    assert counts(store) == [1, 0]
    assert sum(store.pending(1).values()) == 0
    wanted = [accepting(one, NOW + 1) for one in holders]
    assert failures(store.apply_all(wanted)) == [None] * SHARDS
    assert counts(store) == [2, 1]


def test_a_shard_that_has_lost_commits_fails_alone(store: Store, holders: list[Holder]) -> None:
    wanted = [accepting(one, NOW, known=int(one.shard == 1)) for one in holders]
    assert failures(store.apply_all(wanted)) == [None, StoreRolledBack]
    assert counts(store) == [1, 0]


def test_a_withdrawn_request_fails_alone(store: Store, holders: list[Holder]) -> None:
    wanted = [accepting(one, NOW, inbox=[77] if one.shard == 1 else []) for one in holders]
    assert failures(store.apply_all(wanted)) == [None, RequestWithdrawn]
    assert counts(store) == [1, 0]


def test_a_change_that_cannot_be_written_fails_alone(sql_store: SqlStore, sql_holders: list[Holder]) -> None:
    wanted = [accepting(one, NOW) for one in sql_holders]
    wanted[0].change.tally[TallyKey(2**70, "q", "t")] = 1
    assert failures(sql_store.apply_all(wanted)) == [StoreError, None]
    assert counts(sql_store) == [0, 1]


def test_a_commit_without_an_answer_leaves_all_in_doubt(
    sql_store: SqlStore, sql_holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql_holders[0].accept(NOW)  # the first message makes a dictionary, in a transaction of its own
    writing = sql_store.database.writing

    @contextmanager
    def silent(**_: Any) -> Iterator[Connection]:
        with writing() as connection:
            yield connection
        raise StoreError("simulated, after the commit")

    monkeypatch.setattr(sql_store.database, "writing", silent)
    answers = sql_store.apply_all([accepting(one, NOW) for one in sql_holders])
    monkeypatch.undo()
    assert failures(answers) == [CommitFailed] * SHARDS
    assert counts(sql_store) == [2, 1], "nothing was written a second time"


def test_a_store_that_is_silent_is_not_asked_once_more_for_each_shard(
    sql_store: SqlStore, sql_holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql_holders[0].accept(NOW)
    asked: list[int] = []

    @contextmanager
    def silent(**_: Any) -> Iterator[Connection]:
        asked.append(1)
        raise StoreError("simulated") from OperationalError("BEGIN", None, ConnectionError("gone"))
        yield

    monkeypatch.setattr(sql_store.database, "writing", silent)
    monkeypatch.setattr(sql_store.database, "may_pass", lambda _: True)
    answers = sql_store.apply_all([accepting(one, NOW) for one in sql_holders])
    assert failures(answers) == [StoreError] * SHARDS
    assert len(asked) == 1


def test_a_store_that_falls_silent_is_asked_for_a_few_seconds_only(
    sql_store: SqlStore, sql_holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the shared transaction, which was certainly rolled back."""
    sql_holders[0].accept(NOW)
    asked: list[int] = []

    @contextmanager
    def silent(**_: Any) -> Iterator[Connection]:
        kind = StoreError if asked else NothingWritten
        asked.append(1)
        raise kind("simulated") from OperationalError("BEGIN", None, ConnectionError("gone"))
        yield

    monkeypatch.setattr(sql_store.database, "writing", silent)
    monkeypatch.setattr(sql_store.database, "may_pass", lambda _: True)
    monkeypatch.setattr(store_module, "PATIENCE_S", 0.0)
    answers = sql_store.apply_all([accepting(one, NOW) for one in sql_holders])
    assert failures(answers) == [NothingWritten] * SHARDS
    assert len(asked) == 1


def test_a_commit_whose_session_ended_behind_it_is_not_made_again(
    sql_store: SqlStore, sql_holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql_holders[0].accept(NOW)
    writing = sql_store.database.writing

    @contextmanager
    def ending(**_: Any) -> Iterator[Connection]:
        with writing() as connection:
            yield connection
        raise NothingWritten("simulated, of the session's end after the commit")

    monkeypatch.setattr(sql_store.database, "writing", ending)
    with pytest.raises(CommitFailed):
        sql_store.apply(*accepting(sql_holders[0], NOW))
    monkeypatch.undo()
    assert counts(sql_store) == [2, 0]
