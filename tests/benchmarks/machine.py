"""The machine and versions that figures depend on, printed with them: a ratio travels, an absolute value does not."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from tests.kit.servers.redis import redis_binaries


def facts(folder: Path) -> dict[str, str]:
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
