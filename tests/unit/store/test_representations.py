"""The text of a task in a shell, a log or an error report has no arguments."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from celery_wheel.store import open_store
from celery_wheel.store.model import InboxItem, Unreadable
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.values.format import format_utc
from tests.kit.holder import NOW, Holder


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
