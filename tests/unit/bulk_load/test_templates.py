"""Templates save Celery's own code, which makes two messages of each kind, and ``saferepr``, with the same results."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from celery.utils.saferepr import saferepr
from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheel.bulk_load import renderer
from celery_wheel.bulk_load.message_template import argsrepr
from celery_wheel.bulk_load.row import RowReader
from tests.unit.bulk_load.conftest import Inbox, load

PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=5))
DEEP = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(PLAIN, inner) | st.tuples(inner, inner))


class Odd(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return "odd"


@given(
    value=st.one_of(st.lists(DEEP), st.tuples(), st.tuples(DEEP), st.tuples(DEEP, DEEP), st.dictionaries(PLAIN, DEEP)),
    max_length=st.integers(0, 60) | st.just(1024),
    max_levels=st.integers(0, 4),
)
@example(value=("it's",), max_length=99, max_levels=3)
@example(value=[Odd("x"), 2**80, float("nan"), '\n\\"\0ü'], max_length=99, max_levels=3)
@example(value={1: "a", None: True, "x" * 50: 1e300}, max_length=99, max_levels=3)
def test_the_text_equals_that_of_saferepr(value: Any, max_length: int, max_levels: int) -> None:
    assert argsrepr(value, max_length, max_levels) == saferepr(value, max_length, maxlevels=max_levels)


@pytest.mark.parametrize("length", range(15, 25))
def test_the_text_ends_where_that_of_saferepr_ends(length: int) -> None:
    value = ("x" * 8, "y" * 4)
    assert argsrepr(value, length, 3) == saferepr(value, length, maxlevels=3)


AT = datetime(2099, 1, 1, tzinfo=UTC)


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
