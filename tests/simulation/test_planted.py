"""The simulation finds a bug that is planted in the product or in the model of a broker or store."""

import re

import pytest

from tests.simulation import (  # noqa: F401  (their import plants their bugs)
    planted_collapsing,
    planted_fleets,
    planted_groups,
    planted_rabbit,
    planted_recurring,
)
from tests.simulation.planted import PLANTED, Plant
from tests.simulation.worlds import violation_of

ADDRESS = re.compile("0x[0-9a-f]+")


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "known"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(plant: Plant, known: int) -> None:
    with plant() as broken:
        found = next(filter(None, (violation_of(broken, seed) for seed in [known, *range(1_500)])), None)
        assert found is not None, "1,500 seeds did not find the planted bug"
        seed, violation = found
        assert f"seed {seed}:" in str(violation)
        assert not isinstance(violation.__cause__, TypeError | AttributeError | NameError), "the planted bug is broken"
        repeated = violation_of(broken, seed)
        assert repeated is not None
        # Pytest's explanation of an assert has addresses of objects.
        assert ADDRESS.sub("", str(repeated[1])) == ADDRESS.sub("", str(violation))
    assert violation_of(broken, seed) is None, "the seed fails without the bug as well"
