"""The judge is judged: with a bug planted in the product, or in the world around it, a seed shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.simulation import planted, planted_rabbit
from tests.simulation.happenings import Violation
from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.world import World


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", [*planted.PLANTED, *planted_rabbit.PLANTED], ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[], AbstractContextManager[type[World]]]) -> None:
    with plant() as broken:
        found = next(filter(None, (_violation(broken, seed) for seed in range(1_500))), None)
        assert found is not None, "1,500 seeds did not find the planted bug"
        seed, violation = found
        assert f"seed {seed}:" in str(violation)
        assert not isinstance(violation.__cause__, TypeError | AttributeError | NameError), "the planted bug is broken"
        redelivered = _violation(broken, seed)
        assert redelivered is not None
        assert str(redelivered[1]) == str(violation)
    sound = RabbitWorld if issubclass(broken, RabbitWorld) else World
    assert _violation(sound, seed) is None, "the seed fails without the bug as well"


def _violation(world: type[World], seed: int) -> tuple[int, Violation] | None:
    try:
        world(seed).run()
    except Violation as violation:
        return seed, violation
    return None
