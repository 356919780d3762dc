"""Runs the harness on this machine; see the package's header."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]

#: Systems whose adapters are Python programs. That of pg-boss needs Node and ``npm ci``; the others are compiled.
PYTHONS = ("procrastinate", "absurd", "pgmq", "pgque")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.neutral", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a clone of postgresql-job-queue-benchmarking")
    options, others = parser.parse_known_args()
    peers = options.checkout.resolve()
    sys.path.insert(0, str(peers))
    from bench_harness import adapters, orchestrator  # type: ignore[import-not-found]

    settings = settings_of(peers / "postgres.conf")
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(Path(folder)) as redis,
        PostgresServer(**settings) as postgres,
    ):
        postgres.sql("CREATE ROLE bench SUPERUSER LOGIN")
        adapters.PG_PORT = postgres.port
        lend(orchestrator, postgres)
        register(adapters, peers, redis.url)
        return int(orchestrator.main(["run", *others]))


def settings_of(file: Path) -> dict[str, str]:
    """Return the harness's settings of PostgreSQL; this machine's own are those of a server that keeps its commits."""
    lines = (line.partition("#")[0].partition("=") for line in file.read_text().splitlines())
    found = {name.strip(): value.strip().strip("'") for name, equals, value in lines if equals}
    return {**found, "listen_addresses": "127.0.0.1", "fsync": "on", "full_page_writes": "on"}


def lend(orchestrator: Any, postgres: PostgresServer) -> None:
    """Let the harness start, stop and restart this server in place of a container."""
    replacements: dict[str, Callable[..., None]] = {
        "start_postgres": lambda _image: None,
        "stop_postgres": lambda _image: None,
        "_compose_stop_postgres": lambda _image: postgres.stop(),
        "_compose_start_postgres": lambda _image: postgres.start(),
        "_restart_postgres": lambda _image: postgres.restart(),
    }
    for name, function in replacements.items():
        setattr(orchestrator, name, function)


def register(adapters: Any, peers: Path, broker: str) -> None:
    """Add the wheel to the systems, and let those in Python run without Docker."""
    python = os.environ.get("PEERS_PYTHON", sys.executable)

    def built(_skip: bool) -> None: ...

    def launch(argv: list[str], cwd: Path, **more: str) -> Callable[[Any, dict[str, str]], Any]:
        def launcher(manifest: Any, overrides: dict[str, str]) -> Any:
            return adapters.LaunchSpec(argv, {**adapters._base_env(manifest, overrides), **more}, str(cwd))

        return launcher

    own = launch([sys.executable, "-m", "tests.benchmarks.neutral.adapter"], ROOT, NEUTRAL_BROKER=broker)
    adapters.ADAPTERS["wheel"] = adapters.AdapterEntry(HERE, built, own)
    for name in PYTHONS:
        folder = peers / f"{name}-bench"
        adapters.ADAPTERS[name] = adapters.AdapterEntry(folder, built, launch([python, "main.py"], folder))
    folder = peers / "pgboss-bench"
    adapters.ADAPTERS["pgboss"] = adapters.AdapterEntry(folder, built, launch(["node", "main.js"], folder))


if __name__ == "__main__":
    sys.exit(main())
