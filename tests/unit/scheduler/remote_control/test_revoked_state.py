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
from kombu.exceptions import EncodeError

from celery_wheel.scheduler.remote_control.revoked_state import AWAY_AFTER, SUSPECTS, TRIES, RevokedState
from celery_wheel.scheduler.remote_control.revoked_state import read_request as read
from celery_wheel.store.model import Row
from tests.kit.chunks import make_row


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


def cancelled(body: bytes, content_type: str = "application/json", row_id: int = 1, **headers: Any) -> Row:
    raw_headers = json.dumps({"lang": "py", "task": "t", "id": "id", **headers}).encode()
    properties = json.dumps({"content_type": content_type, "content_encoding": "utf-8", "reply_to": "r"}).encode()
    parts = {"headers": raw_headers, "properties": properties, "body": body}
    row = make_row(row_id, "celery", task="t", priority=3, **parts)
    row.task_id = f"id{row_id}" if row_id > 1 else "id"
    return row


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


class Failing:
    """A result backend that fails for some task ids."""

    def __init__(self, app: Celery, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.fails, self.tried, mark = set[str](), list[str](), app.backend.mark_as_revoked

        def record(task_id: str, *args: Any, **options: Any) -> Any:
            self.tried.append(task_id)
            if task_id in self.fails:
                raise error
            return mark(task_id, *args, **options)

        monkeypatch.setattr(app.backend, "mark_as_revoked", record)


def test_a_task_that_cannot_be_recorded_delays_itself_alone_and_is_tried_again(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record, backend = RevokedState(app, "n", lambda: False), Failing(app, monkeypatch, ConnectionError("secret"))
    backend.fails = {"id2"}
    rows = [cancelled(json_body(), row_id=n) for n in (2, 3)]
    assert record(rows) == {3}
    backend.fails = set()
    assert record(rows[:1]) == {2}
    assert backend.tried == ["id2", "id3", "id2"]
    assert "task id2 (t) was cancelled, and the result backend could not record that (ConnectionError)" in caplog.text
    assert "secret" not in caplog.text


def test_a_backend_that_is_away_is_tried_a_few_times_in_a_call_and_forgets_no_task(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record, backend = RevokedState(app, "n", lambda: False), Failing(app, monkeypatch, ConnectionError("away"))
    backend.fails = {f"id{n}" for n in range(2, 5_000)}
    for start in range(2, 5_000, 40):
        rows = [cancelled(json_body(), row_id=n) for n in range(start, start + 40)]
        backend.tried.clear()
        assert record(rows) == set()
        assert len(backend.tried) == AWAY_AFTER
    for _ in range(2_000):
        assert record(rows[:1]) == set(), "the outage is no fault of the task"
    assert len(record._suspects) <= SUSPECTS
    assert len(caplog.records) == 1
    backend.fails = set()
    assert len(record(rows)) == 40


def test_memory_of_tasks_that_could_not_be_recorded_is_bounded(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheel.scheduler.remote_control.revoked_state.SUSPECTS", 10)
    record, backend = RevokedState(app, "n", lambda: False), Failing(app, monkeypatch, ConnectionError("away"))
    backend.fails = {f"id{n}" for n in range(2, 100)}
    for n in range(2, 100):
        record([cancelled(json_body(), row_id=n)])
    assert list(record._suspects) == list(range(90, 100))


@pytest.mark.parametrize("error", [EncodeError("secret"), ConnectionError("secret")])
def test_a_task_that_alone_can_never_be_recorded_is_given_up(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """A connection error may be the task's own: a server that refuses a value by closing the connection."""
    record, backend = RevokedState(app, "n", lambda: False), Failing(app, monkeypatch, error)
    backend.fails = {"id2"}
    bad, rounds = cancelled(json_body(), row_id=2), 0
    while record([bad]) != {2}:
        rounds += 1
        assert record([cancelled(json_body(), row_id=2 + rounds)]) == {2 + rounds}
        assert rounds < 2 * TRIES
    assert not record._suspects
    assert f"task id2 (t) was cancelled, and the result backend could not record that ({type(error).__name__}); " in (
        caplog.records[-1].getMessage()
    )
    assert "it is not tried again" in caplog.records[-1].getMessage()
    assert "secret" not in caplog.text


@pytest.mark.parametrize("group", [None, "g"])
def test_a_task_whose_body_cannot_be_decoded_is_recorded_without_it(
    app: Celery, caplog: pytest.LogCaptureFixture, group: str | None
) -> None:
    record = RevokedState(app, "n", lambda: False)
    assert record([cancelled(b"{secret", row_id=2, group=group), cancelled(json_body(), row_id=3)]) == {2, 3}
    assert (app.backend.get_state("id2"), app.backend.get_state("id3")) == ("REVOKED", "REVOKED")
    [line] = [one.getMessage() for one in caplog.records]
    assert line == (
        "task id2 (t) was cancelled, and its body cannot be decoded (DecodeError); its state is recorded without its "
        "arguments"
    )
