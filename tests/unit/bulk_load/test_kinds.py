"""The number of messages that Celery's own code makes in a load, which is the slow part: two of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_wheel.bulk_load import renderer
from celery_wheel.bulk_load.message_template import Sampler
from celery_wheel.bulk_load.row import RowReader
from tests.unit.bulk_load.conftest import Inbox, load

AT = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls whose messages Celery's own code makes."""
    calls: list[Any] = []
    send = Sampler.send
    monkeypatch.setattr(Sampler, "send", lambda self, call: calls.append(call) or send(self, call))
    return calls


def in_turns(tasks: int, queues: int, rows: int) -> Iterator[Any]:
    """Generate rows: each kind once before any kind a second time."""
    for number in range(rows):
        task, queue = number % tasks, number // tasks % queues
        yield f"proj.task_{task}", (number,), {}, AT, f"queue-{queue}"


@pytest.mark.parametrize(("tasks", "queues"), [(1, 1), (50, 10)])
def test_two_messages_of_each_kind_are_samples(app: Any, sampled: list[Any], tasks: int, queues: int) -> None:
    kinds = tasks * queues
    assert renderer.MAX_KINDS >= 5_000, "an installation's kinds are not forgotten"
    inbox = Inbox()
    load(app, inbox, in_turns(tasks, queues, 3 * kinds))
    assert len(inbox.raw) == 3 * kinds
    assert len(sampled) == 2 * kinds


def test_the_least_recently_used_kind_is_forgotten(
    app: Any, inbox: Inbox, sampled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renderer, "MAX_KINDS", 3)

    def row(queue: str) -> Any:
        return "proj.touch", (), {}, AT, queue

    load(app, inbox, map(row, "aabbcc" + "a" + "dd" + "acd" + "b"))
    assert "".join(call.options["queue"] for call in sampled) == "aabbccdd" + "b"


def test_a_load_whose_rows_are_all_of_other_kinds_keeps_few(
    app: Any, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renderer, "MAX_KINDS", 10)
    made = renderer.Renderer(app, 1, 2**20)
    read = RowReader(app).read
    for number in range(50):
        made.render(read(("proj.touch", (), {}, AT, f"queue-{number}")))
    assert len(made._templates) == 10
    made.close()


def test_an_app_that_was_used_before_has_templates_too(app: Any, sampled: list[Any]) -> None:
    app.send_task("proj.touch", countdown=60)
    for loads in (1, 2):
        load(app, Inbox(), in_turns(1, 1, 5))
        assert len(sampled) == 2 * loads
