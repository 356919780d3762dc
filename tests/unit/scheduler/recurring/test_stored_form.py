"""A message by the stored form is the one that the wheel queue's reader would have read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.scheduler import occurrences as renderer_module
from celery_wheel.store.model import Message
from tests.unit.scheduler.recurring.conftest import AT_MS, UUID, Rendering

ARGUMENTS: list[Any] = [
    [],
    ["%s %d %% %", 'a"b\\c\n\0', "ü\U0001f600", None, 1.5e300, True],
    [{"nested": [["deep"], {}]}, "x" * 3_000],
    ["}, 1]", '@0 "', ", {"],
]


def fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in Message.__slots__ if name != "created_ms"}


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes renderers read each message from its bytes."""
    return lambda: monkeypatch.setattr(renderer_module, "stored_form", lambda *_: None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expires": 60, "headers": {"tenant": 'a"%s', "n": {"m": [1.0]}}, "priority": 3},
        {"wheel": {"key": 'order "%s"', "misfire": 5}, "queue": "mail %s"},
        {"exchange": "news", "routing_key": "a.b", "reply_to": "r", "shadow": "100 %"},
        {"compression": "zlib"},
        {"serializer": "yaml"},
    ],
)
@pytest.mark.parametrize("keep_eta", [False, True])
def test_the_message_is_the_one_that_the_reader_reads(
    app: Any, read_only: Callable[[], None], options: dict[str, Any], keep_eta: bool
) -> None:
    def rendered() -> list[dict[str, Any]]:
        found = []
        for arguments in [[0], [0], *ARGUMENTS]:
            render = Rendering(app, args=arguments, kwargs={"a": arguments}, options=options)
            render.renderer = shared
            found.append(fields(render(AT_MS + len(found), id_=UUID[:-1] + str(len(found)))))
        return found

    def new_renderer() -> Any:
        return renderer_module.ScheduleRenderer(app, 8 * 2**20, QueuedMessageReader(keep_eta=keep_eta).decode)

    shared = new_renderer()
    by_form = rendered()
    forms = list(shared._forms.values())
    assert [form is not None for form in forms] == [not {"compression", "serializer"} & set(options)]
    read_only()
    shared = new_renderer()
    assert rendered() == by_form
    assert list(shared._forms.values()) == [None]
