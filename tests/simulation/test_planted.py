"""The judge is judged: with a bug planted in the product, or in the world around it, a seed shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.simulation import planted, planted_rabbit
from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.world import Violation, World

#: Seeds that showed a rare one, to be tried first. After a change of the simulation others may.
SHOWN_BY = {
    "outcome_after_the_chunk": (845,),
    "moved_without_a_reservation": (5304,),
    "five_ms_early": (446,),
    "refused_rows_are_overtaken": (621,),
    "unknown_without_a_look": (83,),
    "lease_not_looked_at": (140,),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", [*planted.PLANTED, *planted_rabbit.PLANTED], ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[], AbstractContextManager[type[World]]]) -> None:
    with plant() as broken:
        seeds = [*SHOWN_BY.get(plant.__name__, ()), *range(1_500)]
        found = next(filter(None, (_violation(broken, seed) for seed in seeds)), None)
        assert found is not None, "1,500 seeds did not find the planted bug"
        seed, violation = found
        assert f"seed {seed}:" in str(violation)
        assert not isinstance(violation.__cause__, TypeError | AttributeError | NameError), "the planted bug is broken"
        again = _violation(broken, seed)
        assert again is not None
        assert str(again[1]) == str(violation)
    sound = RabbitWorld if issubclass(broken, RabbitWorld) else World
    assert _violation(sound, seed) is None, "the seed fails without the bug as well"


def _violation(world: type[World], seed: int) -> tuple[int, Violation] | None:
    try:
        world(seed).run()
    except Violation as violation:
        return seed, violation
    return None
