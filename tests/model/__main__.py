"""The models in their wide bounds, their variants, traces of the simulation, and its planted bugs.

::

    python -m tests.model --traces 10000     seeds from 0 until so many traces are accepted, on every core
    python -m tests.model --planted          the planted bugs of the simulation that a model refuses

Ends with 1 where a state breaks a promise, a variant is not refused, or a trace is.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context

from tests.model.broken import VARIANTS
from tests.model.cancelling import Cancelling
from tests.model.checker import Counterexample, Model, explore
from tests.model.doubt import Doubt
from tests.model.lease import Lease
from tests.model.releasing import Releasing
from tests.model.traces import first_refusal, judge_all
from tests.simulation import test_planted  # noqa: F401  (its imports plant all bugs)
from tests.simulation.planted import PLANTED

WIDE: list[tuple[str, Model]] = [
    ("Lease: 2 rows, 3 epochs", Lease(2, 3)),
    ("Lease: 2 rows, 2 epochs, Redis loses writes once", Lease(2, 2, loses=True)),
    ("Doubt: 1 row, 3 epochs", Doubt(1, 3)),
    ("Cancelling: 2 tasks, 2 requests", Cancelling(2, 2)),
    ("Releasing: 3 rows, a limit of 1", Releasing(3, 1)),
    ("Releasing: 3 rows, a limit of 2", Releasing(3, 2)),
]


def main() -> int:
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--traces", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--planted", action="store_true")
    options = parser.parse_args()
    try:
        if options.planted:
            return _planted()
        _search()
        _follow(options.first, options.traces)
    except Counterexample as found:
        print(found)
        return 1
    return 0


def _search() -> None:
    for name, model in WIDE:
        began_s = time.monotonic()
        found = explore(model)
        took_s = time.monotonic() - began_s
        print(f"{name}: {found.states} states, {found.steps} steps, depth {found.depth}, {took_s:.0f} s", flush=True)
    for variant in VARIANTS:
        try:
            explore(variant)
        except Counterexample as refused:
            print(f"{type(variant).__name__}: {str(refused).partition(chr(10))[0]}")
        else:
            raise Counterexample(f"{type(variant).__name__} is not refused")


def _follow(first: int, wanted: int) -> None:
    total: Counter[str] = Counter()
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        for seed in count(first, 20):
            if sum(n for name, n in total.items() if name.endswith("traces")) >= wanted:
                break
            for counts in pool.map(judge_all, range(seed, seed + 20)):
                total += counts
    print("\n".join(f"{name} {n}" for name, n in sorted(total.items())))


def _planted() -> int:
    """Try each planted bug; most are outside of the models, and are accepted."""
    for plant, known in PLANTED:
        with plant() as broken:
            refused = first_refusal(broken, (known, *range(60)))
        print(f"{plant.__name__}: {refused}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
