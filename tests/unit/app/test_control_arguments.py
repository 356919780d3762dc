"""What makes no sense is refused in words, before anybody is asked."""

from __future__ import annotations

from typing import Any

import pytest

from celery_wheel import Celery


@pytest.fixture
def wheel() -> Any:
    return Celery("control", broker="redis://127.0.0.1:1/0", set_as_current=False).wheel


@pytest.mark.parametrize("task", [None, 42, ""])
def test_what_is_no_task(wheel: Any, task: Any) -> None:
    for verb in (wheel.cancel, wheel.run_now):
        with pytest.raises(TypeError, match=r"^a task must be given by its id or its AsyncResult, got "):
            verb(task)


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
