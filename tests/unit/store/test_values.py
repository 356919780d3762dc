"""Routes, packed messages, dictionaries and ids: each comes back as it was; the text of a task has no arguments."""

import json
import sqlite3
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.bulk_load import PACK_BYTES, PACK_COUNT
from celery_wheel.store import model, open_store
from celery_wheel.store.message_pack import WHOLE, PackTemplate, pack, unpack
from celery_wheel.store.model import PLAIN, InboxItem, Parts, Route, Unreadable, join, split
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql.dictionaries import FIRST_LOOK, LOOK_FACTOR, SKELETON, Dictionary, Learner
from celery_wheel.store.sql.schema import UUID_BYTES, bytes_to_task_id, bytes_to_uuid, task_id_to_bytes, uuid_to_bytes
from celery_wheel.values.format import format_utc
from tests.kit.holder import NOW, Holder, message
from tests.kit.packs import lines


def test_messages_of_equal_destinations_have_one_route() -> None:
    assert Route.of(message(queue="mail")) is Route.of(message(queue="mail"))
    assert Route.of(message(queue="mail")) is not Route.of(message(queue="sms"))


def test_routes_in_memory_are_bounded_also_where_threads_have_made_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_ROUTES", {})
    for number in range(5):
        Route.of(message(queue=f"queue-{number}"))
    monkeypatch.setattr(model, "MAX_ROUTES", 3)
    for number in range(5, 20):
        Route.of(message(queue=f"queue-{number}"))
        assert len(model._ROUTES) <= 3


def test_unpack_returns_the_packed_messages() -> None:
    reminder = PackTemplate('{"id": %s, "again": %s, "share": "100%%", "n": %s}', (1, 1, 0), ("n", "id"))
    messages = [
        (reminder, ("7", '"\\u00e4"')),
        (WHOLE, ('{"whole": "50%"}',)),
        (PackTemplate("[%s]", (0,)), ("8",)),
        (reminder, ("9", '"b"')),
    ]
    whole = [
        '{"id": "\\u00e4", "again": "\\u00e4", "share": "100%", "n": 7}',
        '{"whole": "50%"}',
        "[8]",
        '{"id": "b", "again": "b", "share": "100%", "n": 9}',
    ]
    unpacked = lines(pack(messages))
    assert [form.fill(values).decode() for form, values in unpacked] == whole
    assert [form.names for form, _ in unpacked] == [("n", "id"), (), (), ("n", "id")]
    assert unpacked[0][0] is unpacked[3][0]
    assert [form.fill(values).decode() for form, values in messages] == whole
    assert [form.size(values) for form, values in messages] == list(map(len, whole))
    assert lines(pack([])) == []


def test_bytes_that_were_not_packed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = pack([(WHOLE, ("{}",))])
    for bad in (
        b"",
        b"{}",
        good[:-4],
        zlib.compress(b'{"v": 2, "kinds": [], "order": null}'),
        zlib.compress(b'{"v": 1, "kinds": [["%s", [0], [], 2, 1]], "order": null}\x1e1'),
        zlib.compress(b'{"v": 1, "kinds": [["%s", [0], [], 1, 1]], "order": null}'),
        zlib.compress(b'{"v": 1, "kinds": [["%s", [0], [], 1, 1]], "order": [0, 0]}\x1e1'),
        zlib.compress(b"[]"),
        zlib.compress(b"x"),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
            unpack(bad)
    with pytest.raises(ValueError, match="must be whole, and at most 10 bytes when unpacked"):
        unpack(good, 10)


def test_a_bomb_in_the_inbox_is_not_unpacked_and_the_largest_packs_are() -> None:
    bomb = zlib.compress(b'{"v": 1, "kinds": [["%s", [0], [], 1, 1]], "order": null}\x1e' + b"1" * 9 * 2**20)
    with pytest.raises(ValueError, match="at most 8,388,608 bytes when unpacked"):
        unpack(bomb)
    texts = ['"' * (PACK_BYTES // PACK_COUNT) + str(n) for n in range(PACK_COUNT)]
    kinds = [PackTemplate(text + "%s", (0,)) for text in texts]
    assert len(unpack(pack([(one, ("1",)) for one in kinds])).kinds) == PACK_COUNT


def test_a_task_is_shown_by_its_name_id_state_and_queue(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")) as store:
        Holder(store).accept(NOW + 1)
        page = store.browse.pending(Criteria())
        [task] = page
        detail = store.browse.detail(task.id)
    assert detail is not None
    shown = repr(replace(detail, headers=b"secret", properties=b"secret", body=b"secret"))
    assert "secret" not in shown
    assert len(shown) < 200
    for part in (task.task, task.task_id, "pending", repr(task.target)):
        assert part in shown
    line = f"<{task.task} {task.task_id}: due {format_utc(task.due_ms)}, queue {task.target!r}>"
    assert repr(task) == line
    assert repr(page) == f"<page of 1: {line}; next=None>"
    gone = replace(task, dispatched_ms=NOW + 5)
    assert repr(gone) == line.replace(f"due {format_utc(task.due_ms)}", f"dispatched {format_utc(NOW + 5)}")


def test_bytes_of_messages_are_not_shown() -> None:
    assert "secret" not in repr(InboxItem(1, "message", b"secret"))
    assert "secret" not in repr(Unreadable("id", "reason", b"secret"))


UUIDS = st.uuids().map(str)
#: Task ids that the rule of texts allows, those of fifteen and sixteen bytes among them.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NEARLY = UUIDS.flatmap(
    lambda uuid: st.sampled_from([uuid.upper(), uuid.replace("-", ""), f"{{{uuid}}}", uuid[:15], uuid[:16]])
)


@given(one=UUIDS | TEXTS | NEARLY, other=UUIDS | TEXTS | NEARLY)
def test_a_task_id_comes_back_as_it_was(one: str, other: str) -> None:
    assert bytes_to_task_id(task_id_to_bytes(one)) == one
    assert (task_id_to_bytes(one) == task_id_to_bytes(other)) == (one == other)


@given(UUIDS)
def test_a_uuid_takes_sixteen_bytes(uuid: str) -> None:
    assert len(task_id_to_bytes(uuid)) == len(uuid_to_bytes(uuid)) == UUID_BYTES
    assert bytes_to_uuid(uuid_to_bytes(uuid)) == uuid
    assert uuid_to_bytes(uuid.upper()) == UUID(uuid).bytes


@pytest.mark.parametrize("task_id", ["", "a", "x" * 15, "x" * 16, "ü" * 8, "nightly-2026-11-22", str(UUID(int=7))])
def test_sparks_sql_reads_a_task_id_as_it_was(task_id: str) -> None:
    columns = pytest.importorskip("celery_wheel.pipeline.source.statements")
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE wheel_timer (task_id)")
        database.execute("INSERT INTO wheel_timer VALUES (?)", (task_id_to_bytes(task_id),))
        found = database.execute(f"SELECT {columns.TASK_ID_SQL['sqlite']} FROM wheel_timer t").fetchone()
    database.close()
    assert found == (task_id,)


FIRST = Dictionary(1, SKELETON)


def plain(number: int) -> bytes:
    id_ = str(UUID(int=Random(number).getrandbits(128)))
    headers = {"lang": "py", "task": "shop.mail.tasks.remind", "id": id_, "root_id": id_, "argsrepr": f"({number},)"}
    properties = {"content_type": "application/json", "correlation_id": id_, "delivery_mode": 2}
    body = json.dumps([[number], {"address": f"{number}@example.com"}, {"callbacks": None, "chord": None}])
    return join(json.dumps(headers).encode(), json.dumps(properties).encode(), body.encode())


#: Bytes that are no separator.
PART = st.binary().filter(lambda one: b"\x1e" not in one)


@given(PART, PART, st.binary())
def test_parts_come_back_as_they_were(headers: bytes, properties: bytes, body: bytes) -> None:
    whole = join(headers, properties, body)
    assert split(PLAIN.unpack(whole)) == Parts(headers, properties, body)
    [packed] = FIRST.pack([whole])
    assert FIRST.unpack(packed) == whole


@pytest.mark.parametrize("parts", [(b"\x1e", b"", b""), (b"", b"a\x1eb", b"")])
def test_parts_that_could_not_be_told_apart_are_refused(parts: tuple[bytes, bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="no control characters"):
        join(*parts)


def test_damaged_bytes_are_an_error_of_the_row() -> None:
    [packed] = FIRST.pack([plain(1)])
    with pytest.raises(ValueError, match="its bytes in the store are damaged"):
        FIRST.unpack(packed[:-3])


def test_the_first_dictionary_packs_a_message_to_a_quarter() -> None:
    [packed] = FIRST.pack([plain(1)])
    assert len(packed) < len(plain(1)) / 2


def test_a_dictionary_is_learned_from_the_first_thousand_messages_and_not_again_if_it_is_hardly_better() -> None:
    learner, last = Learner(), LOOK_FACTOR * FIRST_LOOK
    assert not learner.see([plain(n) for n in range(FIRST_LOOK - 1)])
    assert learner.see([plain(FIRST_LOOK)])
    content = learner.train(FIRST)
    assert content is not None
    learned, new = Dictionary(2, content), [plain(n) for n in range(10_000, 10_100)]
    assert sum(map(len, learned.pack(new))) < 0.7 * sum(map(len, FIRST.pack(new)))
    assert [learned.unpack(one) for one in learned.pack(new)] == new
    assert not learner.see([plain(n) for n in range(FIRST_LOOK, last - 1)])
    assert learner.see([plain(last)])
    assert learner.train(learned) is None


def test_messages_with_nothing_in_common_teach_nothing() -> None:
    learner = Learner()
    learner.see([b"\x1e\x1e"] * FIRST_LOOK)
    assert learner.train(FIRST) is None


def test_large_messages_are_sampled_by_their_beginning() -> None:
    learner = Learner()
    tracemalloc.start()
    try:
        for number in range(50):
            learner.see([plain(number) + b"%d" % number * 2**19])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2**20


def test_threads_pack_and_unpack_by_one_dictionary() -> None:
    def work(first: int) -> list[int]:
        numbers = range(first, first + 300)
        return [number for number in numbers if FIRST.unpack(*FIRST.pack([plain(number)])) != plain(number)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(0, 4_000, 1_000))) == [[]] * 4
