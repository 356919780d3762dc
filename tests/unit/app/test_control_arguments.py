"""What makes no sense is refused in words, before anybody is asked."""

from __future__ import annotations

from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.errors import ArgumentError

#: Texts that some store cannot hold.
BAD = ["", "a\0b", "\ud800", "x" * 513, "ü" * 513]


@pytest.fixture
def wheel() -> Any:
    return Celery("control", broker="redis://127.0.0.1:1/0", set_as_current=False).wheel


@pytest.mark.parametrize("task", [None, 42, b"a", [b"a"], ["a", None]])
def test_what_is_no_task(wheel: Any, task: Any) -> None:
    for verb in (wheel.cancel, wheel.run_now, wheel.requeue):
        with pytest.raises(TypeError, match=r"^a task must be given by its id or its AsyncResult, got "):
            verb(task)


@pytest.mark.parametrize("text", BAD)
def test_a_text_that_no_store_can_hold(wheel: Any, text: str) -> None:
    """There is no store here: whatever was sent would be a StoreError."""
    refused = [
        ("task id", lambda: wheel.cancel(text)),
        ("task id", lambda: wheel.reschedule(["a", text], countdown=1)),
        ("a key", lambda: wheel.complete(["a", text])),
    ]
    if text:
        refused += [
            ("queue", lambda: wheel.pause(queue=text)),
            ("task", lambda: wheel.resume(task=text)),
            ("reason", lambda: wheel.cancel("a", reason=text)),
            ("actor", lambda: wheel.pause(actor=text)),
        ]
    for name, call in refused:
        with pytest.raises(ArgumentError, match=f"^{name} must be .*, got "):
            call()


@pytest.mark.parametrize("key", [42, None, b"a", [b"a"]])
def test_what_is_no_key(wheel: Any, key: Any) -> None:
    with pytest.raises(TypeError, match=r"^a key must be a text, got "):
        wheel.complete(key)


@pytest.mark.parametrize("row", ["7", -1, True, 10**18])
def test_what_is_no_row(wheel: Any, row: Any) -> None:
    with pytest.raises(TypeError, match=r"^rows must be numbers of rows \(Task\.id\), got "):
        wheel.replay([row])


@pytest.mark.parametrize(("timeout", "error"), [("10", TypeError), (None, TypeError), (-1, ArgumentError)])
def test_what_is_no_timeout(wheel: Any, timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^timeout must be "):
        wheel.cancel("a", timeout=timeout)


@pytest.mark.parametrize("over", ["10m", True])
def test_what_is_no_time(wheel: Any, over: Any) -> None:
    with pytest.raises(TypeError, match=r"^resume must be over a number of seconds, got "):
        wheel.resume(queue="mail", over=over)


@pytest.mark.parametrize("scope", ["queue", "task"])
@pytest.mark.parametrize("name", [None, ""])
def test_a_name_that_was_not_found_is_not_everything(wheel: Any, scope: str, name: Any) -> None:
    for verb in (wheel.pause, wheel.resume):
        with pytest.raises(
            TypeError, match=f" must have a name as its {scope}, got .*; without one it is for everything"
        ):
            verb(**{scope: name})


def test_a_gate_is_of_one_kind(wheel: Any) -> None:
    with pytest.raises(TypeError, match=r"must have a queue or a task, and not both; none is for everything"):
        wheel.pause(queue="mail", task="app.remind")
