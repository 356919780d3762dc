"""``python -m tests.simulation SEED``: run one seed and print what happened in it."""

from __future__ import annotations

import sys

from tests.simulation.world import World

world = World(int(sys.argv[1])).run()
print("\n".join(world.log))
