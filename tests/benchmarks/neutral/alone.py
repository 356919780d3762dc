"""The wheel's adapter without the harness: its smallest form, which shows that it keeps to the harness's contract."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from threading import Thread
from typing import IO

from tests.benchmarks.databases import DURABLE
from tests.benchmarks.figure import Figure
from tests.benchmarks.neutral.adapter import MANIFEST
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer

RATE, TOKENS_PER_S, SECONDS = 100, 10, 12
UNITS = {"claim_p50_ms": "ms", "claim_p99_ms": "ms", "completion_rate": "jobs/s"}


def neutral(folder: Path, rows: int) -> Iterator[Figure]:
    """Immediate jobs as others measure them: from the call that sends a job to its start in a Celery worker."""
    with RedisServer(folder / "redis") as redis, PostgresServer(**DURABLE) as postgres:
        settings = {"DATABASE_URL": postgres.new_database(), "NEUTRAL_BROKER": redis.url, "SAMPLE_EVERY_S": "2"}
        command = [sys.executable, "-m", "tests.benchmarks.neutral.adapter"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(
            command, env={**os.environ, **settings, "WORKER_COUNT": "4"}, text=True, bufsize=1, **pipes
        ) as adapter:
            assert adapter.stdin is not None
            assert adapter.stdout is not None
            first = json.loads(adapter.stdout.readline())
            assert first["event_tables"] == MANIFEST["event_tables"], first
            Thread(target=_ask, args=(adapter.stdin,), daemon=True).start()
            found: dict[str, list[float]] = {name: [] for name in UNITS}
            for line in adapter.stdout:
                record = json.loads(line)
                if record["metric"] in found:
                    found[record["metric"]].append(record["value"])
                if len(found["completion_rate"]) == SECONDS // 2:
                    adapter.send_signal(signal.SIGTERM)
                    break
    assert adapter.returncode == 0, adapter.returncode
    for name, unit in UNITS.items():
        yield Figure("neutral", f"{RATE}/s: {name}, median", median(found[name][1:]), unit)


def _ask(stdin: IO[str]) -> None:
    """Ask for jobs as the harness does, until the adapter has ended."""
    with suppress(BrokenPipeError, ValueError):
        while True:
            stdin.write(f"ENQUEUE {RATE // TOKENS_PER_S}\n")
            stdin.flush()
            time.sleep(1 / TOKENS_PER_S)
