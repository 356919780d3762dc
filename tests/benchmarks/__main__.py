"""``python -m tests.benchmarks [names…] [--rows N] [--store NAME] [--json FILE]``; without names, ``DEFAULT``.

The machine and the versions are printed with the figures: a ratio travels, an absolute value does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from celery_wheel.cli.doctor import print_figures
from celery_wheel.operations.figure import Figure
from tests.benchmarks import purgatory, spine, wheel
from tests.benchmarks.databases import KINDS, SQLITE
from tests.kit.servers.redis import redis_binaries

Bench = Callable[..., Iterator[Figure]]

#: Benches with a function of another form than ``run(folder, rows)`` of the module of their name.
OTHERS: dict[str, Bench] = {
    "wheel": lambda _, rows: wheel.run(rows // 2),
    "purgatory": lambda _, rows: purgatory.run(rows // 10),
    "kombu": spine.run_yardstick,
}
BENCHES = (
    *("complete", "decoding", "budget", "producer", "size", "pollers", "rabbit", "lanes", "reading", "many"),
    *("recurring", "idle", "load", "schedules", "analytics", "drivers"),
)
#: Benches on one store, which ``--store`` names.
ON_STORE = ("spine", "herd", "steady", "cold", "scale", "saturation", "processes", "overview", "metrics")
NAMES = (*OTHERS, *BENCHES, *ON_STORE)
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
        facts = machine_facts(folder)
        for name in options.names:
            place = folder / name
            place.mkdir()
            run = OTHERS.get(name) or import_module(f"tests.benchmarks.{name}").run
            figures.extend(run(place, options.rows, *([options.store] if name in ON_STORE else [])))
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
    if {*ON_STORE} & {*names} and free < needed:
        raise SystemExit(
            f"{above} has {free / 1e9:.1f} GB free and {rows:,} rows need {needed / 1e9:.1f}; "
            "make room, set TMPDIR to another disk, or give fewer --rows"
        )
    return Path(tempfile.mkdtemp(prefix="bench-", dir=above))


def _print(figures: list[Figure], facts: dict[str, str], rows: int, interrupted: bool) -> None:
    print(f"{rows:,} rows{'; interrupted: the figures until then' if interrupted else ''}")
    print_figures(figures)
    print("; ".join(f"{name} {fact}" for name, fact in facts.items()))


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    """Let ``kill`` clean up as Ctrl-C does."""
    raise KeyboardInterrupt


def machine_facts(folder: Path) -> dict[str, str]:
    return {
        "cpu": f"{_cpu()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "redis": _redis(),
        "kombu": version("kombu"),
        "disk": f"{_filesystem(folder)}, fsync of 4 kB {_fsync_ms(folder):.1f} ms",
    }


def _cpu() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def _redis() -> str:
    binary = next(iter(redis_binaries().values()), None)
    if binary is None:
        return "none"
    said = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"v=(\S+)", said)
    return found[1] if found else said


def _filesystem(folder: Path) -> str:
    """Return the type of the folder's file system: that of the longest mount point above the folder."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    place = str(folder.resolve())
    under = [(len(at), kind) for _, at, kind, *_ in mounts if f"{place}/".startswith(f"{at.rstrip('/')}/")]
    return max(under)[1]


def _fsync_ms(folder: Path) -> float:
    """Return the median duration of a few fsyncs."""
    path, took = folder / "fsync", list[float]()
    with path.open("wb", buffering=0) as file:
        for _ in range(21):
            file.write(os.urandom(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1e3)
    path.unlink()
    return sorted(took)[10]


if __name__ == "__main__":
    sys.exit(main())
