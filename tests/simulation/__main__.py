"""The simulation from the command line.

::

    python -m tests.simulation seed 7 groups              what happens in a seed of a world
    python -m tests.simulation seed 7 groups --minimise   the shortest history that breaks the same promise
    python -m tests.simulation many 0 2500 --keep FILE    seeds 0 to 2,499 of each world; FILE adds up the parts
    … many 0 100 --keep FILE --aim                        and bring about what no part before has met
    python -m tests.simulation planted                    the first seed that shows each planted bug, for its decorator

``--plant NAME`` plants a bug before. ``many`` ends with 1 where a promise breaks, and names each fault and step that
could meet and never met: the rarest take more than 20,000 runs, or ``--aim`` (the table is in ``meetings``).
"""

import argparse
import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tests.simulation import test_planted  # noqa: F401  (its imports plant all bugs)
from tests.simulation.many import Tally, run_many
from tests.simulation.minimise import Minimiser
from tests.simulation.planted import PLANTED
from tests.simulation.worlds import WORLDS, violation_of


def main() -> int:
    logging.disable(logging.CRITICAL)
    options = _options()
    return {"seed": _seed, "many": _many, "planted": _planted}[options.what](options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    kinds = parser.add_subparsers(dest="what", required=True)
    seed = kinds.add_parser("seed")
    seed.add_argument("seed", type=int)
    seed.add_argument("world", nargs="?", choices=WORLDS, default="redis")
    seed.add_argument("--minimise", action="store_true")
    seed.add_argument(
        "--aim", nargs=2, action="append", metavar=("STEP", "FAULT"), help="as a part with --aim printed it"
    )
    seed.add_argument("--plant", choices=[plant.__name__ for plant, _ in PLANTED])
    many = kinds.add_parser("many")
    many.add_argument("first", type=int)
    many.add_argument("end", type=int)
    many.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    many.add_argument("--keep", type=Path, help="a file that adds up the parts of a long run")
    many.add_argument("--aim", action="store_true", help="let the faults come that never met a step in the kept parts")
    kinds.add_parser("planted")
    return parser.parse_args()


def _seed(options: argparse.Namespace) -> int:
    plants = (plant() for plant, _ in PLANTED if plant.__name__ == options.plant)
    planted: AbstractContextManager[Any] = next(plants, nullcontext(WORLDS[options.world]))
    with planted as world:
        world = type(world.__name__, (world,), {"aims": frozenset(map(tuple, options.aim or ()))})
        if not options.minimise:
            try:
                print("\n".join(world(options.seed).run().log))
            except AssertionError as violation:
                print(violation)
                return 1
            return 0
        least = Minimiser(world, options.seed)
        least.minimise()
    print(f"{len(least.kept)} of {least.events} events are left, after {least.runs} runs")
    print(least.violation)
    return 1


def _many(options: argparse.Namespace) -> int:
    tally = Tally.of(options.keep)
    aims = frozenset(tally.meetings.empty()) if options.aim else frozenset()
    run_many(options.worlds, options.first, options.end, tally, aims)
    tally.keep(options.keep)
    print("\n".join(tally.report()))
    return int(bool(tally.violations))


def _planted(_options: argparse.Namespace) -> int:
    for plant, known in PLANTED:
        with plant() as broken:
            first = next((seed for seed in (known, *range(5_000)) if violation_of(broken, seed)), None)
        print(f"{plant.__name__}: seed={first}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
