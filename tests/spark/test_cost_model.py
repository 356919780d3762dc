"""The closed form of a wheel's cost equals the wheel itself. Without Spark."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheel.pipeline.cost_model import WheelShape, compute_cost, count_cascades, simulate_cost

YEAR_MS = 365 * 86_400_000

shapes = st.builds(WheelShape, st.integers(1, 1_500), st.sampled_from([2, 3, 7, 16, 20, 60, 64, 512]))
delays = st.one_of(st.integers(-50, 3_000), st.integers(0, YEAR_MS), st.sampled_from([0, 1, 20, 400, 8_000]))
pairs = st.lists(st.tuples(st.integers(-5_000, 40_000), delays), max_size=40).map(
    lambda delays: [(created, created + delay) for created, delay in delays]
)


@given(pairs, shapes)
@example([(0, 450), (0, 446), (0, 455), (0, 473), (0, 350)], WheelShape(1, 20))
@example([(19, 39), (0, 400), (399, 799)], WheelShape(1, 20))
def test_the_closed_form_equals_the_wheel(pairs: list[tuple[int, int]], shape: WheelShape) -> None:
    simulated, levels = simulate_cost(pairs, shape)
    assert compute_cost(pairs, shape) == simulated
    longest = max((due - created for created, due in pairs), default=0)
    assert levels <= shape.levels(max(longest, 0))


@pytest.mark.parametrize(("due", "expected"), [(19, 0), (20, 0), (21, 1), (350, 1), (400, 0), (401, 1), (450, 2)])
def test_the_cascades_of_the_worked_example(due: int, expected: int) -> None:
    assert count_cascades(0, due, WheelShape(1, 20)) == expected


@pytest.mark.parametrize(
    ("shape", "longest", "levels"),
    [(WheelShape(1, 20), 18, 1), (WheelShape(1, 20), 379, 2), (WheelShape(1, 512), 300_000, 3)],
)
def test_the_levels_and_buckets_of_a_delay(shape: WheelShape, longest: int, levels: int) -> None:
    assert shape.levels(longest) == levels
    assert shape.buckets(longest) == levels * (shape.wheel_size - 1)
