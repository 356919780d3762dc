"""``python -m tests.benchmarks [names…] [--rows N] [--store NAME] [--json FILE]``; without names, ``DEFAULT``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from celery_wheel.cli.doctor import print_figures
from celery_wheel.operations.figure import Figure
from tests.benchmarks import (
    analytics,
    budget,
    cold,
    complete,
    decoding,
    drivers,
    herd,
    idle,
    lanes,
    load,
    machine,
    many,
    metrics,
    overview,
    pollers,
    processes,
    producer,
    purgatory,
    rabbit,
    reading,
    recurring,
    saturation,
    scale,
    schedules,
    size,
    spine,
    steady,
    wheel,
)
from tests.benchmarks.databases import KINDS, SQLITE

Bench = Callable[..., Iterator[Figure]]

BENCHES: dict[str, Bench] = {
    "wheel": lambda _, rows: wheel.run(rows // 2),
    "purgatory": lambda _, rows: purgatory.run(rows // 10),
    "complete": lambda folder, rows: complete.run(folder, rows // 20),
    "decoding": decoding.run,
    "budget": budget.run,
    "kombu": spine.run_yardstick,
    "producer": producer.run,
    "size": size.run,
    "pollers": pollers.run,
    "rabbit": rabbit.run,
    "lanes": lanes.run,
    "reading": reading.run,
    "many": many.run,
    "recurring": recurring.run,
    "idle": idle.run,
    "load": load.run,
    "schedules": schedules.run,
    "analytics": analytics.run,
    "drivers": drivers.run,
}
#: Benches on one store, which ``--store`` names.
ON_STORE: dict[str, Bench] = {
    "spine": spine.run,
    "herd": herd.run,
    "steady": steady.run,
    "cold": cold.run,
    "scale": scale.run,
    "saturation": saturation.run,
    "processes": processes.run,
    "overview": overview.run,
    "metrics": metrics.run,
}
NAMES = (*BENCHES, *ON_STORE)
DEFAULT = (
    *("wheel", "purgatory", "complete", "decoding", "producer", "spine", "rabbit", "many"),
    *("size", "herd", "steady", "cold", "idle"),
)
ROWS = 2_000_000
MIN_ROWS = 10_000

#: Bytes of the database with its indexes and its log, and of Redis's swap; measured, with room to spare.
BYTES_A_ROW = 3_000


RUN = Path(__file__).parents[2] / ".run" / "bench"


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    figures: list[Figure] = []
    facts, interrupted = {}, False
    folder = _folder(options.names, options.rows)
    try:
        facts = machine.facts(folder)
        for name in options.names:
            place = _made(folder / name)
            found = (
                BENCHES[name](place, options.rows)
                if name in BENCHES
                else ON_STORE[name](place, options.rows, options.store)
            )
            figures.extend(found)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _print(figures, facts, options.rows, interrupted)
    if options.json:
        found = {"rows": options.rows, "machine": facts, "figures": [figure.as_dict() for figure in figures]}
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return 128 + signal.SIGINT if interrupted else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(NAMES)}; default: {DEFAULT}")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"pending messages; default {ROWS:,}")
    parser.add_argument("--store", choices=KINDS, default=SQLITE, help=f"of {', '.join(ON_STORE)}; default {SQLITE}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    options = parser.parse_args()
    options.names = options.names or list(DEFAULT)
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"name must be one of {', '.join(NAMES)}, got {', '.join(unknown)}")
    if options.rows < MIN_ROWS:
        parser.error(f"--rows must be at least {MIN_ROWS:,}, got {options.rows:,}")
    return options


def _folder(names: list[str], rows: int) -> Path:
    """Return a new folder on a real disk: in the repository, or in TMPDIR if that is set."""
    above = Path(os.environ.get("TMPDIR") or RUN)
    above.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(above).free, rows * BYTES_A_ROW
    if ON_STORE.keys() & names and free < needed:
        raise SystemExit(
            f"{above} has {free / 1e9:.1f} GB free and {rows:,} rows need {needed / 1e9:.1f}; "
            "make room, set TMPDIR to another disk, or give fewer --rows"
        )
    return Path(tempfile.mkdtemp(prefix="bench-", dir=above))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _print(figures: list[Figure], facts: dict[str, str], rows: int, interrupted: bool) -> None:
    print(f"{rows:,} rows{'; interrupted: the figures until then' if interrupted else ''}")
    print_figures(figures)
    print("; ".join(f"{name} {fact}" for name, fact in facts.items()))


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    """Let ``kill`` clean up as Ctrl-C does."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
