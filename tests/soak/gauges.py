"""The gauges of a run: figures that may grow with age, read every few seconds into the ledger."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.soak.consumer import now_ms
from tests.soak.load import SCHEDULERS, Load

EVERY_S = 10.0


def watch(load: Load, parts: dict[str, Any], kept: Path) -> None:
    while not load.stop.wait(EVERY_S):
        at_ms = now_ms()
        found = dict(_of_schedulers(load))
        found["files"] = sum(1 for path in kept.rglob("*") if path.is_file() and "sqlite3" in path.name)
        found["rss of the test"] = psutil.Process().memory_info().rss
        for part in parts.values():
            with suppress(Exception):  # it hangs, starts, or is away
                found |= part.gauges()
        rows = [(load.run, at_ms, name, value) for name, value in found.items()]
        load.ledger.write("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)


def _of_schedulers(load: Load) -> Iterator[tuple[str, float]]:
    for name in SCHEDULERS:
        with suppress(psutil.Error):
            process = psutil.Process(load[name].pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                with process.oneshot():
                    yield f"rss of {name}", process.memory_info().rss
                    yield f"threads of {name}", process.num_threads()
                    yield f"cpu of {name}", sum(process.cpu_times()[:2])
                yield f"descriptors of {name}", process.num_fds()
        logs = load.folder.glob(f"{name}-*.log")
        yield f"log of {name}", sum(path.stat().st_size for path in logs)
