"""The closed form against the wheel itself. No Spark here."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheel.pipeline.geometry import Shape, cascades, sums, turned

YEAR_MS = 365 * 86_400_000

shapes = st.builds(Shape, st.integers(1, 1_500), st.sampled_from([2, 3, 7, 16, 20, 60, 64, 512]))
delays = st.one_of(st.integers(-50, 3_000), st.integers(0, YEAR_MS), st.sampled_from([0, 1, 20, 400, 8_000]))
pairs = st.lists(st.tuples(st.integers(-5_000, 40_000), delays), max_size=40).map(
    lambda found: [(created, created + delay) for created, delay in found]
)


@given(pairs, shapes)
@example([(0, 450), (0, 446), (0, 455), (0, 473), (0, 350)], Shape(1, 20))
@example([(19, 39), (0, 400), (399, 799)], Shape(1, 20))
def test_the_closed_form_is_what_the_wheel_does(pairs: list[tuple[int, int]], shape: Shape) -> None:
    found, levels = turned(pairs, shape)
    assert sums(pairs, shape) == found
    longest = max((due - created for created, due in pairs), default=0)
    assert levels <= shape.levels(max(longest, 0))


@pytest.mark.parametrize(("due", "expected"), [(19, 0), (20, 0), (21, 1), (350, 1), (400, 0), (401, 1), (450, 2)])
def test_the_worked_example(due: int, expected: int) -> None:
    assert cascades(0, due, Shape(1, 20)) == expected


@pytest.mark.parametrize(
    ("shape", "longest", "levels"), [(Shape(1, 20), 18, 1), (Shape(1, 20), 379, 2), (Shape(1, 512), 300_000, 3)]
)
def test_levels_for_a_delay(shape: Shape, longest: int, levels: int) -> None:
    assert shape.levels(longest) == levels
    assert shape.buckets(longest) == levels * (shape.wheel_size - 1)
