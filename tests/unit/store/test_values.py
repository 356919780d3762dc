"""Routes: one object for equal values, and a bounded number of them in memory.

Packed messages are unpacked unchanged, and other bytes are refused.

The text of a task in a shell, a log or an error report has no arguments.
"""

from __future__ import annotations

import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from celery_wheel.store import message_pack as packed
from celery_wheel.store import model, open_store
from celery_wheel.store.message_pack import WHOLE, PackTemplate, pack, unpack
from celery_wheel.store.model import InboxItem, Route, Unreadable
from celery_wheel.store.ports.pages import Criteria
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
    monkeypatch.setattr(packed, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="must be whole, and at most 10 bytes when unpacked"):
        unpack(good)


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
