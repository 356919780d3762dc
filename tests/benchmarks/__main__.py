"""``python -m tests.benchmarks [names…] [--rows N] [--store NAME] [--json FILE]``; without names, ``DEFAULT``.

``all`` names every benchmark. Each runs in a process of its own: what one leaves (threads, garbage, a Django that is
set up) is not measured by the next. One that fails is named at the end, and the others run; the exit code is then 1.
The machine and the versions are printed with the figures: a ratio travels, an absolute value does not.
"""

import argparse
import json
import multiprocessing
import os
import platform
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from tests.benchmarks.databases import KINDS, SQLITE
from tests.benchmarks.figure import Figure, print_figures
from tests.kit.servers.redis import redis_binaries

#: Module → its benchmarks, each a function of that name; ``run`` where the module has the benchmark's name.
BENCHES = {
    "timing": ("wheel", "purgatory"),
    "messages": ("decoding", "producer", "schedules", "keys"),
    "rounds": ("budget", "lanes"),
    "many": ("many", "load", "complete"),
    "recurring": ("recurring",),
    "tables": ("tables",),
    "rabbit": ("rabbit",),
    "poison": ("poison",),
    "pollers": ("pollers",),
    "analytics": ("analytics", "drivers"),
    "spine": ("spine",),
    "lateness": ("herd", "steady", "saturation"),
    "disk": ("size", "cold"),
    "beats": ("idle", "scale", "shards", "processes"),
    "pending": ("pending",),
    "watching": ("overview", "metrics"),
    "groups": ("groups",),
    "bulk_actions": ("bulk",),
    "neutral.alone": ("neutral",),
}
MODULES = {name: module for module, names in BENCHES.items() for name in names}
#: Benches on one store, which ``--store`` names → bytes a row of the database with its indexes and its log, and of
#: Redis's swap; measured, with room to spare. The rows of ``pending`` have no arguments.
ON_STORE = {
    **dict.fromkeys(("spine", "herd", "steady", "cold", "scale", "shards", "saturation", "processes"), 3_000),
    **dict.fromkeys(("overview", "metrics", "groups", "bulk"), 3_000),
    "pending": 650,
}
DEFAULT = (
    *("wheel", "purgatory", "complete", "decoding", "producer", "spine", "rabbit", "many"),
    *("size", "herd", "steady", "cold", "idle"),
)
ROWS, MIN_ROWS = 2_000_000, 10_000
FORK = multiprocessing.get_context("fork")


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    figures: list[Figure] = []
    facts, interrupted, failed = {}, False, list[str]()
    folder = _folder(options.names, options.rows)
    try:
        facts = _machine_facts(folder)
        for name in options.names:
            print(f"{name} …", file=sys.stderr)
            place = folder / name
            place.mkdir()
            if not _measure(name, (place, options.rows, *([options.store] if name in ON_STORE else [])), figures):
                failed.append(name)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{options.rows:,} rows{'; interrupted: the figures until then' if interrupted else ''}")
    print_figures(figures)
    print("; ".join(f"{name} {fact}" for name, fact in facts.items()))
    if options.json:
        found = {"rows": options.rows, "machine": facts, "figures": [figure.as_dict() for figure in figures]}
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    if failed:
        print(f"failed: {', '.join(failed)}; the errors are above", file=sys.stderr)
    return 128 + signal.SIGINT if interrupted else int(bool(failed))


def _measure(name: str, given: tuple[Any, ...], figures: list[Figure]) -> bool:
    """Run a benchmark in a process of its own, and add its figures as they come; return whether it ended well."""
    reader, writer = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_send_figures, args=(name, given, writer))
    child.start()
    writer.close()
    try:
        while True:
            figures.append(reader.recv())
    except EOFError:
        child.join()
    finally:
        child.terminate()  # nothing, if it has ended
        child.join()
    return child.exitcode == 0


def _send_figures(name: str, given: tuple[Any, ...], writer: Connection) -> None:
    os.setsid()  # an interrupt of the terminal reaches it once, from the process that waits for it
    try:
        for figure in _bench(name)(*given):
            writer.send(figure)
    except pytest.skip.Exception as absent:
        print(f"{name}: {absent.msg}; it is not measured (make services)", file=sys.stderr)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def _bench(name: str) -> Callable[..., Iterator[Figure]]:
    module = import_module(f"tests.benchmarks.{MODULES[name]}")
    found: Callable[..., Iterator[Figure]] = getattr(module, "run", None) or getattr(module, name)
    return found


def _options() -> argparse.Namespace:
    names = ", ".join(MODULES)
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"{names}, or all; default: {', '.join(DEFAULT)}")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"pending messages; default {ROWS:,}")
    parser.add_argument("--store", choices=KINDS, default=SQLITE, help=f"of {', '.join(ON_STORE)}; default {SQLITE}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    options = parser.parse_args()
    options.names = list(MODULES) if options.names == ["all"] else options.names or list(DEFAULT)
    if unknown := [name for name in options.names if name not in MODULES]:
        parser.error(f"name must be one of {names}, got {', '.join(unknown)}")
    if options.rows < MIN_ROWS:
        parser.error(f"--rows must be at least {MIN_ROWS:,}, got {options.rows:,}")
    return options


def _folder(names: list[str], rows: int) -> Path:
    above = Path(os.environ.get("TMPDIR") or (Path(__file__).parents[2] / ".run" / "bench"))
    above.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(above).free, rows * max(ON_STORE.get(name, 0) for name in names)
    if free < needed:
        raise SystemExit(
            f"{above} has {free / 1e9:.1f} GB free and {rows:,} rows need {needed / 1e9:.1f}; "
            "make room, set TMPDIR to another disk, or give fewer --rows"
        )
    return Path(tempfile.mkdtemp(prefix="bench-", dir=above))


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    """Let ``kill`` clean up as Ctrl-C does."""
    raise KeyboardInterrupt


def _machine_facts(folder: Path) -> dict[str, str]:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    [server, *_] = redis_binaries().values() or [None]
    said = server and subprocess.run([server, "--version"], check=True, capture_output=True, text=True).stdout
    mounts = {one.mountpoint.rstrip("/"): one.fstype for one in psutil.disk_partitions(all=True)}
    above = (str(path).rstrip("/") for path in folder.resolve().parents)
    kind = next(mounts[path] for path in above if path in mounts)
    return {
        "cpu": f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "redis": re.findall(r"v=(\S+)", said)[0] if said else "none",
        "kombu": version("kombu"),
        "disk": f"{kind}, fsync of 4 kB {_fsync_ms(folder):.1f} ms",
    }


def _fsync_ms(folder: Path) -> float:
    path, took = folder / "fsync", list[float]()
    with path.open("wb", buffering=0) as file:
        for _ in range(21):
            file.write(os.urandom(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1e3)
    path.unlink()
    return statistics.median(took)


if __name__ == "__main__":
    sys.exit(main())
