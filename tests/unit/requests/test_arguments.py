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


WRONG: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a key must be a text, got ": (lambda wheel, one: wheel.complete(one), [42, None, b"a", [b"a"]], []),
    r"rows must be numbers of rows \(Task\.id\), got ": (
        lambda wheel, one: wheel.replay([one]),
        ["7", -1, True, 10**18],
        [],
    ),
    "timeout must be ": (lambda wheel, one: wheel.cancel("a", timeout=one), ["10", None], [-1]),
    "over must be ": (lambda wheel, one: wheel.resume(queue="mail", over=one), ["10m", True], [-1, 10**9]),  # a year
}


@pytest.mark.parametrize("message", WRONG)
def test_a_value_of_another_type_or_out_of_its_range_is_refused(wheel: Any, message: str) -> None:
    call, of_another_type, out_of_range = WRONG[message]
    for error, values in ((TypeError, of_another_type), (ArgumentError, out_of_range)):
        for value in values:
            with pytest.raises(error, match=f"^{message}"):
                call(wheel, value)


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
