"""The recorded state of revoked tasks: the fields of a message, bodies that are never opened, a backend that fails."""

from __future__ import annotations

import json
import pickle
import zlib
from typing import Any

import celery
import pytest
from celery import Celery, signals
from celery.backends import cache

from celery_wheel.scheduler.remote_control.pending_request import read
from celery_wheel.scheduler.remote_control.revoked_state import RevokedState
from celery_wheel.store.model import TaskRow
from tests.kit.chunks import make_row


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


def cancelled(body: bytes, content_type: str = "application/json", row_id: int = 1, **headers: Any) -> TaskRow:
    raw_headers = json.dumps({"lang": "py", "task": "t", "id": "id", **headers}).encode()
    properties = json.dumps({"content_type": content_type, "content_encoding": "utf-8", "reply_to": "r"}).encode()
    parts = {"headers": raw_headers, "properties": properties, "body": body}
    row = make_row(row_id, "celery", task="t", priority=3, **parts)
    return TaskRow(f"id{row_id}" if row_id > 1 else "id", row)


def json_body(**embed: Any) -> bytes:
    return json.dumps(
        [[1], {"a": 2}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None, **embed}]
    ).encode()


def test_a_request_has_the_fields_that_a_worker_reads() -> None:
    context = read(cancelled(json_body(chord={"task": "end"}), group="g", group_index=2, mine="own"), "wheel@h").context
    assert (context.id, context.task, context.args, context.kwargs) == ("id", "t", [1], {"a": 2})
    assert (context.chord, context.group, context.group_index) == ({"task": "end"}, "g", 2)
    assert (context.hostname, context.reply_to) == ("wheel@h", "r")
    assert context.delivery_info == {"exchange": "", "routing_key": "celery", "priority": 3, "redelivered": False}
    assert context.headers["mine"] == "own"


def test_a_compressed_body_is_read() -> None:
    one = cancelled(zlib.compress(json_body(chord={"task": "end"})), compression="application/x-gzip")
    assert read(one, "n").context.chord == {"task": "end"}


def test_a_body_of_protocol_1_has_all_fields() -> None:
    body = json.dumps({"id": "id", "task": "t", "args": [1], "kwargs": {}, "taskset": "g", "chord": {"task": "end"}})
    context = read(cancelled(body.encode()), "n").context
    assert (context.group, context.chord, context.args) == ("g", {"task": "end"}, [1])


@pytest.mark.parametrize("content_type", ["application/x-python-serialize", "application/data", "text/strange"])
def test_a_pickle_is_never_loaded(content_type: str) -> None:
    found = read(cancelled(pickle.dumps(Bomb()), content_type), "n")
    assert not found.opened
    assert found.context.args is None


@pytest.fixture
def app() -> Celery:
    cache._DUMMY_CLIENT_CACHE.clear()  # one for all backends of the process
    return Celery("revoked", broker="memory://", backend="cache+memory://", set_as_current=False)


def test_a_revoked_task_is_recorded_as_a_worker_does(app: Celery) -> None:
    heard: list[tuple[Any, ...]] = []

    def receiver(sender: Any, request: Any, terminated: bool, signum: Any, expired: bool, **_: Any) -> None:
        heard.append((sender, request.id, terminated, signum, expired))

    signals.task_revoked.connect(receiver, weak=False)
    try:
        record = RevokedState(app, "wheel@h", lambda: False)
        assert record([cancelled(json_body())]) == {1}
    finally:
        signals.task_revoked.disconnect(receiver)
    assert heard == [("t", "id", False, None, False)]
    assert app.backend.get_state("id") == "REVOKED"


@pytest.mark.parametrize(
    ("task_options", "header", "stored"),
    [
        ({}, None, True),
        ({"ignore_result": True}, None, False),
        ({"ignore_result": True}, False, celery.VERSION >= (5, 7)),  # older calls that do not say it send False
        ({}, True, False),
        ({"store_errors_even_if_ignored": True}, True, True),
    ],
)
def test_an_ignored_result_is_not_stored(app: Celery, task_options: Any, header: Any, stored: bool) -> None:
    @app.task(name="t", shared=False, **task_options)
    def t() -> None: ...

    RevokedState(app, "n", lambda: False)([cancelled(json_body(), ignore_result=header)])
    assert (app.backend.get_state("id") == "REVOKED") is stored


def test_a_task_that_cannot_be_recorded_delays_itself_alone_and_is_tried_later(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record, tried, mark = RevokedState(app, "n", lambda: False), list[str](), app.backend.mark_as_revoked

    def fail(task_id: str, *args: Any, **options: Any) -> Any:
        tried.append(task_id)
        if task_id == "id2":
            raise ConnectionError("away")
        return mark(task_id, *args, **options)

    monkeypatch.setattr(app.backend, "mark_as_revoked", fail)
    rows = [cancelled(json_body(), row_id=n) for n in (2, 3)]
    assert record(rows) == {3}
    assert record(rows[:1]) == set()
    assert tried == ["id2", "id3"]
    assert "task id2 was cancelled" in caplog.text


def test_a_broken_message_is_not_recorded_and_not_lost(app: Celery) -> None:
    assert RevokedState(app, "n", lambda: False)([cancelled(b"{no json"), cancelled(json_body(), row_id=2)]) == {2}


def test_a_result_backend_that_is_away_fills_no_log(
    app: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("simulated")

    monkeypatch.setattr(app.backend, "mark_as_revoked", away)
    record = RevokedState(app, "n", lambda: False)
    assert record([cancelled(json_body(), row_id=number) for number in range(1, 30)]) == set()
    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1
