"""Faults as a command: power cuts, live or at points of a recorded run; all faults by turns.

::

    python -m tests.faults turns --minutes 60     see tests/faults/turns.py; without minutes each turn once
    python -m tests.faults cuts --cuts 200        see tests/faults/cuts.py
    python -m tests.faults points --points 10000  see tests/faults/points.py

    --store postgresql                              instead of SQLite
    --durability memory, --fsync off, --deaf TEXT   each of these loses tasks, and the command says so
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import turns
from tests.faults.power_cuts import live, recorded, stack_of_cuts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("kind", choices=("turns", "cuts", "points"))
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--store", choices=turns.STORES, default="sqlite")
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30, help="length of the recorded run")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--durability", choices=("disk", "memory"), default="disk")
    parser.add_argument("--fsync", choices=("on", "off"), default="on", help="of PostgreSQL")
    parser.add_argument("--deaf", default="", help="leave syncs of paths with this text out of the recorded run")
    options = parser.parse_args()
    if options.kind == "turns":
        report = turns.run(options.minutes, options.seed)
        print(report)
        return int(bool(report.findings))
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="cuts-") as folder,
        stack_of_cuts(options.store, Path(folder), options.seed, options.durability, options.fsync) as stack,
    ):
        rng = random.Random(options.seed)
        verdict = (
            live(stack, options.cuts)
            if options.kind == "cuts"
            else recorded(stack, options.points, options.seconds, rng, options.deaf)
        )
    print(f"\n{options.store}, seed {options.seed}, {time.monotonic() - began:.0f} s: {verdict}")
    return int(not verdict.is_clean)


if __name__ == "__main__":
    sys.exit(main())
