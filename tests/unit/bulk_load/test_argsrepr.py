"""The fast path for the text of arguments gives the same result as Celery's ``saferepr``."""

from __future__ import annotations

from typing import Any

import pytest
from celery.utils.saferepr import saferepr
from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheel.bulk_load.message_template import argsrepr

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
