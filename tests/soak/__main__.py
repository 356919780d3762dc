"""``python -m tests.soak --hours 2 --keep folder``: see the package. Exit code 1: a promise was broken."""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.kit import processes
from tests.soak.pairs import PAIRS
from tests.soak.run import Plan, Run


def main() -> int:
    options = _parser().parse_args()
    if options.pair is None:
        return _both(sys.argv[1:])
    signal.signal(signal.SIGTERM, _interrupt)
    seconds = 60 * options.minutes if options.minutes else 3_600 * options.hours
    plan = Plan(seconds, 60 * options.outage, options.rate, options.seed, outage_of=options.of)
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        Path(temporary).chmod(0o711)  # PostgreSQL is another user, where this one is root
        kept = Path(options.keep or temporary).absolute() / options.pair
        run = Run(options.pair, kept, plan)
        print(f"{options.pair}: run {run.number} in {kept}, with an outage of the {run.outage_of}", flush=True)
        try:
            verdict = run()
        except KeyboardInterrupt:
            print(f"{options.pair}: interrupted; the next run on {kept} goes on from here", file=sys.stderr)
            return 130
        finally:
            processes.kill_all()
    print(f"{options.pair}: {json.dumps(verdict.figures(), indent=2)}", flush=True)
    return int(bool(verdict.findings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--minutes", type=float, help="instead of hours")
    parser.add_argument("--keep", help="folder that stays, and with which the next run goes on")
    parser.add_argument("--pair", choices=tuple(PAIRS), help="by default both, side by side")
    parser.add_argument("--outage", type=float, default=35, help="minutes")
    parser.add_argument("--of", choices=("broker", "store"), default="", help="of the outage; by default by turns")
    parser.add_argument("--rate", type=int, default=300, help="tasks a second")
    parser.add_argument("--seed", type=int, default=7)
    return parser


def _both(arguments: list[str]) -> int:
    """Run each pair in a process of its own; Ctrl-C and SIGTERM reach both."""
    command = [sys.executable, "-m", "tests.soak", *arguments]
    running = [subprocess.Popen([*command, "--pair", pair]) for pair in PAIRS]
    signal.signal(signal.SIGTERM, lambda *_: [one.terminate() for one in running])
    codes: list[int] = []
    while len(codes) < len(running):
        try:
            codes.append(running[len(codes)].wait())
        except KeyboardInterrupt:  # they have it too
            continue
    return max(codes)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
