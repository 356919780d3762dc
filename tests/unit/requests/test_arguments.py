"""An invalid argument raises an error that names it, before a request is sent."""

from __future__ import annotations

from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.errors import ArgumentError

#: Each of these texts is refused by some store.
BAD = ["", "a\0b", "\ud800", "x" * 513, "ü" * 513]


@pytest.fixture
def wheel() -> Any:
    return Celery("control", broker="redis://127.0.0.1:1/0", set_as_current=False).wheel


@pytest.mark.parametrize("task", [None, 42, b"a", [b"a"], ["a", None]])
def test_a_task_is_an_id_or_a_result(wheel: Any, task: Any) -> None:
    for verb in (wheel.cancel, wheel.run_now, wheel.requeue):
        with pytest.raises(TypeError, match=r"^a task must be its id or its AsyncResult, got "):
            verb(task)


@pytest.mark.parametrize("text", BAD)
def test_a_text_that_no_store_can_hold_is_refused(wheel: Any, text: str) -> None:
    """The test has no store, so sending a request would raise a StoreError."""
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
            ("actor", lambda: wheel.pause(everything=True, actor=text)),
        ]
    for name, call in refused:
        with pytest.raises(ArgumentError, match=f"^{name} must be .*, got "):
            call()


@pytest.mark.parametrize("key", [42, None, b"a", [b"a"]])
def test_a_key_is_a_text(wheel: Any, key: Any) -> None:
    with pytest.raises(TypeError, match=r"^a key must be a text, got "):
        wheel.complete(key)


@pytest.mark.parametrize("row", ["7", -1, True, 10**18])
def test_a_row_is_a_number(wheel: Any, row: Any) -> None:
    with pytest.raises(TypeError, match=r"^rows must be numbers of rows \(Task\.id\), got "):
        wheel.replay([row])


@pytest.mark.parametrize(("timeout", "error"), [("10", TypeError), (None, TypeError), (-1, ArgumentError)])
def test_a_timeout_is_a_number_of_seconds_from_0(wheel: Any, timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^timeout must be "):
        wheel.cancel("a", timeout=timeout)


@pytest.mark.parametrize(
    ("over", "error"), [("10m", TypeError), (True, TypeError), (-1, ArgumentError), (10**9, ArgumentError)]
)
def test_a_backlog_is_spread_over_seconds_up_to_a_year(wheel: Any, over: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^over must be "):
        wheel.resume(queue="mail", over=over)


@pytest.mark.parametrize("scope", ["queue", "task"])
@pytest.mark.parametrize("name", [None, ""])
def test_an_empty_name_does_not_stand_for_everything(wheel: Any, scope: str, name: Any) -> None:
    for verb in (wheel.pause, wheel.resume):
        with pytest.raises(TypeError, match=f" must have a name as its {scope}, got .*; nothing was changed"):
            verb(**{scope: name})


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ({}, "one of queue, task and everything=True, got none"),
        ({"queue": "mail", "task": "app.remind"}, "one of queue, task and everything=True, got queue and task"),
        ({"queue": "mail", "everything": True}, "one of queue, task and everything=True, got queue and everything"),
        ({"everything": False}, "everything=True, got False"),
    ],
)
def test_a_gate_names_exactly_one_thing_and_everything_only_in_words(
    wheel: Any, which: dict[str, Any], said: str
) -> None:
    for verb in (wheel.pause, wheel.resume):
        with pytest.raises(TypeError, match=f" must have {said}; nothing was changed"):
            verb(**which)


def test_a_request_that_takes_effect_at_once_is_part_of_no_transaction(wheel: Any) -> None:
    calls: dict[str, Any] = {
        "replay": lambda: wheel.replay([7], transactional=True),
        "complete": lambda: wheel.complete("a", transactional=True),
        "pause": lambda: wheel.pause(everything=True, transactional=True),
        "resume": lambda: wheel.resume(everything=True, transactional=True),
        "accept_clock": lambda: wheel.accept_clock(transactional=True),
    }
    for kind, call in calls.items():
        with pytest.raises(TypeError, match=f"^{kind} must be without the option transactional"):
            call()


def test_a_misspelt_kind_of_outcome_is_refused(wheel: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^kind must be one of rejected, .*, got 'rejectd'$"):
        wheel.outcomes("rejected", "rejectd")
