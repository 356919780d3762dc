"""``python -m tests.simulation SEED``: run one seed and print what happened in it; ``SEED recurring``: with schedules,
``SEED groups``: with groups.

``python -m tests.simulation planted``: the first seed that shows each planted bug, for its decorator.
"""

import logging
import sys

from tests.simulation.group_world import GroupWorld
from tests.simulation.planted import PLANTED
from tests.simulation.recurring_world import RecurringWorld
from tests.simulation.test_planted import violation_of
from tests.simulation.world import World

if sys.argv[1] == "planted":
    logging.disable(logging.CRITICAL)
    for plant, known in PLANTED:
        with plant() as broken:
            first = next((seed for seed in (known, *range(1_500)) if violation_of(broken, seed)), None)
        print(f"{plant.__name__}: seed={first}")
else:
    kind = {"recurring": RecurringWorld, "groups": GroupWorld}.get("".join(sys.argv[2:]), World)
    world = kind(int(sys.argv[1])).run()
    print("\n".join(world.log))
