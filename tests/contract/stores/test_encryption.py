"""Encryption at rest: nothing that a task is sent with is in the store's bytes; keys come, change and go in use."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from celery_wheel.errors import StoreError
from celery_wheel.store.model import Change, ShardChange
from celery_wheel.store.schedule_model import ScheduleCriteria
from celery_wheel.store.sql import changes, schema
from celery_wheel.store.sql.dictionaries import FIRST_LOOK, SKELETON
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.store_model import PartChunk, PartResult
from celery_wheel.values.keyring import EncryptionKeys, key_of
from tests.contract.stores.backends import SqlBackend, postgresql, sqlite
from tests.contract.stores.test_tables import rows_of
from tests.kit.holder import EVERYTHING, NOW, Holder
from tests.kit.schedules import revision, schedule

OLD, NEW = "the old secret of 32 characters.", "the new secret of 32 characters."
MARK = "Marked4111111111111111"
BODY = f'[["{MARK}"], {{}}, {{}}]'.encode()
DEFINITION = json.dumps({"task": "app.t", "args": [MARK], "options": {"queue": "mail"}}, separators=(",", ":"))

Open = Callable[..., SqlStore]


@pytest.fixture(params=[pytest.param(sqlite, id="sqlite"), pytest.param(postgresql, id="postgresql")])
def open_with(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Yield a function that opens the test's store with these secrets."""
    url = request.param(request).url
    opened: list[SqlStore] = []

    def open_one(*secrets: str) -> SqlStore:
        opened.append(SqlBackend(url, keys=secrets)())
        opened[-1].repacking.kept_s = 0
        opened[-1].repacking.step_rows = 3
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def fill(holder: Holder) -> None:
    """Put the mark wherever a task's arguments may be."""
    holder.accept(*range(NOW, NOW + 7), body=BODY, headers=json.dumps({"argsrepr": MARK}).encode())
    holder.apply(rejects=[holder.reject(b"not JSON: " + MARK.encode())])
    made = schedule(holder, f"s{holder.shard}", definition=DEFINITION)
    before = revision(made, before=json.dumps({"definition": DEFINITION}))
    holder.apply(schedules=[made], revisions=[before])


def arrive(store: SqlStore) -> None:
    """Put the mark where messages and commands arrive."""
    store.put_inbox(0, [("message", BODY)])
    store.put_command(1, "schedule_create", DEFINITION.encode())
    load = store.loads.begin("a load", NOW)
    claim, _ = store.loads.claim(load.id, load.run, 0)
    store.loads.put(claim, [PartChunk(0, 0, 1, "digest", BODY)])
    store.loads.finish(claim, 1)
    store.loads.commit(load.id, load.run, {0: PartResult(claim.attempt, 1)}, NOW)


def everything(store: SqlStore) -> bytes:
    """Return the bytes of all columns of all tables."""
    found = [row for table in schema.metadata.sorted_tables for row in rows_of(store, table)]
    values = [value for row in found for value in row.values()]
    return b" ".join(bytes(one) if isinstance(one, bytes | memoryview) else str(one).encode() for one in values)


def contents(store: SqlStore) -> list[object]:
    """Return all that the store was filled with, as it is read."""
    details = [one for task in (0, 1) for one in store.handover.pending(task)]
    rejected = [one.message.body for shard in (0, 1) for one in store.handover.stopped(shard, ["rejected"])]
    schedules = [one for shard in (0, 1) for one in store.handover.schedules(shard)]
    return [
        *[(one.message.headers, one.message.body) for one in details],
        rejected,
        *[(one.schedule.definition, [change.before for change in one.revisions]) for one in schedules],
    ]


def repack(holder: Holder) -> int:
    """Repack until nothing is left; returns the number of steps."""
    steps = 0
    while holder.store.repack(holder.shard, holder.epoch) is not None:
        steps += 1
    return steps


def finish(*holders: Holder) -> None:
    """Repack all shards, the first one last: its holder ends the work on those that no holder works on alone."""
    for holder in (*holders, *holders):
        repack(holder)


def keys_of(store: SqlStore) -> set[str | None]:
    """Return the ids of the keys of all dictionaries; None: one that is not encrypted."""
    found = [key_of(bytes(row["content"])) for row in rows_of(store, schema.dictionary)]
    return {None if one is None else one.hex() for one in found}


def id_of(secret: str) -> str:
    return EncryptionKeys([secret]).ids[0]


def test_nothing_that_a_task_is_sent_with_can_be_read_without_the_key(open_with: Open, tmp_path: Path) -> None:
    store = open_with(NEW)
    fill(Holder(store))
    fill(Holder(store, 1))
    arrive(store)
    holder = Holder(store)
    holder.accept(*range(NOW, NOW + FIRST_LOOK), body=BODY)  # a dictionary is learnt of them
    assert len(rows_of(store, schema.dictionary)) == 2
    assert MARK.encode() not in everything(store)
    assert not any(MARK.encode() in one.read_bytes() for one in tmp_path.iterdir())
    assert [one.payload for one in store.read_inbox(0, 9)] == [BODY]
    assert [one.payload for one in store.read_inbox(1, 9)] == [DEFINITION.encode()]
    assert [one.payload for one in store.read_loads(0, 9)] == [BODY]
    assert MARK in str(contents(store))


def test_a_message_grows_by_at_most_forty_bytes(open_with: Open) -> None:
    plain, encrypted = Holder(open_with()), Holder(open_with(NEW), 1)
    for holder in (plain, encrypted):
        holder.accept(NOW, body=BODY)
    sizes = {row["shard"]: len(row["message"]) for row in rows_of(open_with(NEW), schema.timer)}
    assert 0 < sizes[1] - sizes[0] <= 40


def test_a_key_is_added_to_a_store_in_use_replaced_and_removed(open_with: Open) -> None:
    store = open_with()
    fill(Holder(store))
    fill(Holder(store, 1))
    wanted = contents(store)
    assert MARK.encode() in everything(store)
    for secrets, used in (((OLD,), OLD), ((OLD, NEW), OLD), ((NEW, OLD), NEW), ((NEW,), NEW), (("", NEW), None)):
        store.close()
        store = open_with(*secrets)
        holders = [Holder(store), Holder(store, 1)]
        assert contents(store) == wanted
        steps = [repack(one) for one in holders]
        [repack(one) for one in holders]  # the last holder to end deletes dictionaries, and so do the others after it
        assert (min(steps) > 3) == (secrets in ((OLD,), (NEW, OLD), ("", NEW)))
        assert contents(store) == wanted
        assert keys_of(store) == {None if used is None else id_of(used)}
        assert (MARK.encode() in everything(store)) == (used is None)
    store.close()
    assert contents(open_with()) == wanted  # no key is needed any more


@pytest.mark.parametrize("secrets", [(), ("", OLD)], ids=["no key", "ended"])
def test_damaged_bytes_that_begin_like_encrypted_ones_are_read_as_they_came(
    open_with: Open, secrets: tuple[str, ...]
) -> None:
    store, damaged = open_with(*secrets), [bytes([mark]) + BODY * 3 for mark in (1, 2, 3)]
    store.put_inbox(0, [("message", one) for one in damaged])
    assert [one.payload for one in store.read_inbox(0, 9)] == damaged
    item = store.put_command(0, "cancel", damaged[0])
    assert store.command_payload(item) == damaged[0]
    assert store.withdraw(item, (0, "cancel", damaged[0]))


def test_without_its_key_an_encrypted_store_takes_nothing_and_keeps_all(open_with: Open) -> None:
    store = open_with(OLD)
    fill(Holder(store))
    arrive(store)
    before = everything(store)
    store.close()
    without = open_with()
    with pytest.raises(StoreError, match=rf"encrypted by the key {id_of(OLD)}, and this process has no keys; nothing"):
        without.put_inbox(0, [("message", b"x")])
    with pytest.raises(StoreError, match="set wheel_encryption_keys as the scheduler has it"):
        without.put_command(0, "cancel", b"x")
    with pytest.raises(StoreError, match=rf"by the key {id_of(OLD)}, and this process has {id_of(NEW)}; nothing was"):
        open_with(NEW).put_command(0, "cancel", b"x")
    for other in (without, open_with(NEW)):
        with pytest.raises(StoreError, match=id_of(OLD)):
            other.read_inbox(0, 9)
        with pytest.raises(StoreError, match=id_of(OLD)):
            other.read_loads(0, 9)
        with pytest.raises(StoreError, match=id_of(OLD)):
            other.due_schedules(0, NOW, 9)
        with pytest.raises(StoreError, match=id_of(OLD)):
            other.slice(0, 0, *EVERYTHING)
    assert everything(without) == before


def test_a_key_of_which_only_a_load_is_left_is_still_needed(open_with: Open) -> None:
    store = open_with(OLD)
    arrive(store)
    store.close()
    store = open_with(NEW, OLD)
    finish(Holder(store), Holder(store, 1))
    assert keys_of(store) == {id_of(NEW)}
    assert store.browse.keys() == [id_of(OLD), id_of(NEW)]


def test_lists_and_filters_need_no_key(open_with: Open) -> None:
    holder = Holder(open_with(OLD))
    fill(holder)
    [row] = holder.accept(NOW, body=BODY)
    without = open_with()
    for store in (without, open_with(OLD)):
        [one] = store.browse.schedules(ScheduleCriteria(task="app.t", queue="mail")).items
        assert (one.name, MARK in one.definition) == ("s0", store is not without)
        assert not list(store.browse.schedules(ScheduleCriteria(queue="other")).items)
    [detail] = without.browse.find(row.message.task_id, with_bytes=False)
    assert detail.state == "pending"
    with pytest.raises(StoreError, match=f"cannot be read: a key with the id {id_of(OLD)} is needed"):
        without.browse.find(row.message.task_id)
    with pytest.raises(StoreError, match=f"cannot be read: a key with the id {id_of(OLD)} is needed"):
        without.browse.schedule("s0")


@pytest.mark.parametrize("body", [pytest.param(BODY * 9, id="packed"), pytest.param(b"short", id="as it is")])
def test_no_row_is_packed_by_an_earlier_dictionary_once_a_pass_has_begun(open_with: Open, body: bytes) -> None:
    """A thread may have packed a message before the pass, and write it after its place was read."""
    store = open_with()
    fill(Holder(store))
    late = store.catalogue.dictionaries.pack([b"\x1e\x1e" + body])
    store.close()
    store = open_with(NEW)
    holder = Holder(store)
    assert store.repack(0, holder.epoch) == 3  # of eight rows
    first = "00000000-0000-7000-8000-000000000000"
    change = Change(rows=[holder.row(NOW, body=body, envelope_id=first)])
    late_change = ShardChange(holder.shard, holder.epoch, change), late
    with (
        pytest.raises(StoreError, match="replaced meanwhile; nothing was written; it is tried again"),
        store.database.writing() as connection,
    ):
        changes.write(connection, store.database.statements, store.catalogue, [late_change])
    holder.apply(rows=change.rows)
    finish(holder, Holder(store, 1))
    assert keys_of(store) == {id_of(NEW)}
    assert body in str(contents(store)).encode()


def test_schedulers_whose_first_keys_differ_leave_nothing_by_the_old_key(open_with: Open) -> None:
    """They are restarted one after the other, so one of them goes on by the old key for a while."""
    before = open_with(OLD)
    fill(Holder(before, 1))
    before.close()
    late = Holder(open_with(OLD, NEW), 1)
    late.accept(NOW, body=BODY)
    early = Holder(open_with(NEW, OLD))
    early.accept(NOW, body=BODY)
    repack(early)
    made = schedule(late, "late", definition=DEFINITION)
    late.apply(schedules=[made], revisions=[revision(made, before=json.dumps({"definition": DEFINITION}))])
    repack(late)
    made = schedule(late, "later", definition=DEFINITION)
    late.apply(schedules=[made], revisions=[revision(made, before=json.dumps({"definition": DEFINITION}))])
    late.accept(*range(NOW, NOW + FIRST_LOOK), body=BODY)  # a dictionary is learnt of them
    finish(early, late)
    assert keys_of(early.store) == {id_of(NEW)}
    assert len(contents(open_with(NEW))) == len(contents(open_with(NEW, OLD)))


def test_a_schedule_that_moves_between_two_passes_is_not_forgotten(open_with: Open) -> None:
    store = open_with(OLD)
    fill(Holder(store, 1))
    store.close()
    store = open_with(NEW, OLD)
    holders = Holder(store), Holder(store, 1)
    repack(holders[0])
    [one] = store.due_schedules(1, NOW, 9)
    holders[1].apply(moved_schedules={one.id: 0})
    finish(*holders)
    assert contents(open_with(NEW))


def test_a_step_that_is_lost_is_made_again(open_with: Open) -> None:
    store = open_with()
    holder = Holder(store)
    fill(holder)
    wanted = contents(store)
    store.close()
    store = open_with(NEW)
    holder = Holder(store)
    assert [store.repack(0, holder.epoch) for _ in range(2)] == [3, 6]
    again = Holder(store)  # takes the shard over
    assert repack(again) > 3
    repack(Holder(store, 1))
    repack(again)
    assert contents(store) == wanted
    assert keys_of(store) == {id_of(NEW)}


def test_a_damaged_message_stays_damaged_and_stops_nothing(open_with: Open) -> None:
    store = open_with(OLD)
    holder = Holder(store)
    first, *_ = holder.accept(NOW, NOW + 1, body=BODY)
    with store.database.writing() as connection:
        connection.execute(update(schema.timer).where(schema.timer.c.id == first.id).values(message=b"\x01damaged"))
    store.close()
    store = open_with(NEW, OLD)
    holder = Holder(store)
    repack(holder)
    repack(Holder(store, 1))
    repack(holder)
    assert keys_of(store) == {id_of(NEW)}
    damaged, good = holder.slice()
    assert good.parts().body == BODY
    with pytest.raises(ValueError, match=r"they were changed|must begin with their mark"):
        damaged.parts()


def test_erased_text_leaves_the_dictionaries(open_with: Open) -> None:
    store = open_with()
    holder = Holder(store)
    holder.accept(*range(NOW, NOW + FIRST_LOOK), body=BODY)
    assert any(MARK.encode() in bytes(row["content"]) for row in rows_of(store, schema.dictionary))
    with store.database.writing() as connection:
        connection.execute(delete(schema.timer))
    store.catalogue.dictionaries.replace()
    repack(holder)
    repack(Holder(store, 1))
    repack(holder)
    assert [bytes(row["content"]) for row in rows_of(store, schema.dictionary)] == [SKELETON]
    assert MARK.encode() not in everything(store)
